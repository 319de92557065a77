"""The official conformance suite's client scenarios: mock servers test how the gateway asks its upstreams.

usage: python client.py BINARY

The suite starts this file again for each scenario, with the revision that the gateway is told and the URL
of the mock server. Fails if a scenario fails or warns, is skipped, passes other than the checks counted
here, or is neither run nor in left-out-client.txt.
"""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

from gate import REVISIONS, gateway_toml, start

HERE = pathlib.Path(__file__).resolve().parent
# The number of client scenarios in this exact version of the suite.
ALL = {"2025-11-25": 19, "2026-07-28": 33, "extension": 10}
# What runs, and how many different checks must pass. The others of a scenario are of what we never send.
RUN = {
    ("2025-11-25", "initialize"): 1,
    ("2026-07-28", "request-metadata"): 5,
    ("2026-07-28", "http-standard-headers"): 3,
    ("2025-11-25", "auth/pre-registration"): 5,
    ("2026-07-28", "auth/pre-registration"): 5,
    ("2026-07-28", "auth/resource-mismatch"): 2,
    ("2026-07-28", "auth/metadata-issuer-mismatch"): 3,
    ("extension", "auth/client-credentials-basic"): 5,
    ("extension", "auth/client-credentials-jwt"): 5,
}
# The upstream is one that nobody should get a token for: the gateway is right to give up.
REFUSED = {"auth/resource-mismatch", "auth/metadata-issuer-mismatch"}
# Seconds for each of the four steps of a drive; the suite gives up after 30.
PATIENCE = 7


def suite(*arguments):
    index = HERE / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
    command = [HERE / "node_modules/.bin/node", index, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def uncounted():
    """What speaks against the lists above and in left-out-client.txt."""
    listed = re.findall(r"^  - (\S+) \[(.*)\]$", suite("list", "--client").stdout, re.MULTILINE)
    there = {(revision, name) for name, revisions in listed for revision in revisions.split(",")}
    left_out = set()
    for line in (HERE / "left-out-client.txt").read_text().splitlines():
        if words := line.split("#")[0].split():
            left_out |= {(revision, words[1]) for revision in (REVISIONS if words[0] == "*" else words[:1])}
    for revision, count in ALL.items():
        found = sum(r == revision for r, _ in there)
        if found != count:
            yield f"the suite has {found} client scenarios for {revision}, not {count}"
    there = {(revision, name) for revision, name in there if revision in ALL}
    yield from (f"neither run nor left out: {one}" for one in sorted(there - left_out - RUN.keys()))
    yield from (f"not in the suite: {one}" for one in sorted((left_out | RUN.keys()) - there))
    yield from (f"run and left out: {one}" for one in sorted(left_out & RUN.keys()))


def run(binary, told, revision, scenario):
    """How many different checks passed, and what the suite says if it is not content."""
    command = shlex.join([sys.executable, str(HERE / "client.py"), binary, told])
    with tempfile.TemporaryDirectory() as folder:
        options = ["--scenario", scenario, "--output-dir", folder]
        if revision in REVISIONS:
            options += ["--spec-version", revision]
        ended = suite("client", "--command", command, *options)
        checks = [c for file in pathlib.Path(folder).rglob("checks.json") for c in json.loads(file.read_text())]
    passed = {c["name"] for c in checks if c["status"] == "SUCCESS" and c["id"] != "wire-schema-valid"}
    return len(passed), ended.stdout if ended.returncode != 0 else ""


def ask(*command):
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE)
    if ended.returncode != 0:
        sys.exit(f"{shlex.join(command)} failed\n{ended.stdout}")
    return ended.stdout


def credential(scenario, folder):
    """What the gateway shows to the mock server, where the scenario is about that."""
    if not scenario.startswith("auth/"):
        return ""
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    client = {"client_id": context.get("client_id", "gate")}
    if pem := context.get("private_key_pem"):
        (pathlib.Path(folder) / "key.pem").write_text(pem)
        client |= {"private_key": {"file": "key.pem"}, "algorithm": context["signing_algorithm"]}
    else:
        client |= {"client_secret": {"value": context.get("client_secret", "secret")}}
    def toml(value):
        table = isinstance(value, dict)
        return "{ " + ", ".join(f"{k} = {toml(v)}" for k, v in value.items()) + " }" if table else json.dumps(value)
    return f"credential = {toml({'oauth': client})}\n"


def drive(binary, told, url):
    """Makes the gateway ask the mock server all that it asks an upstream."""
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    with tempfile.TemporaryDirectory() as folder:
        config = str(pathlib.Path(folder) / "gateway.toml")
        pathlib.Path(config).write_text(gateway_toml(url, told) + credential(scenario, folder))
        # One dial, one answer; a gateway that serves would try again.
        dial = [binary, "check", "--dial", "--config", config]
        if scenario in REFUSED:
            return subprocess.run(dial, timeout=PATIENCE)
        ask(*dial)
        gateway, endpoint = start([binary, "serve", "--config", config], r"listens on (\S+)")
        try:
            for prompt in json.loads(ask(binary, "list", "--json", "--url", endpoint)):
                ask(binary, "get", prompt["name"], "--url", endpoint)
        finally:
            gateway.terminate()
            gateway.wait(PATIENCE)


def main(binary):
    failed = list(uncounted())
    for (revision, scenario), expected in RUN.items():
        for told in ["auto", revision if revision in REVISIONS else REVISIONS[0]]:
            one = f"{scenario}, {revision} (told {told})"
            passed, output = run(binary, told, revision, scenario)
            if output or passed != expected:
                print(f"FAIL {one}: {passed} of {expected} checks\n{output}", flush=True)
                failed.append(one)
            else:
                print(f"ok   {one} ({passed})", flush=True)
    sys.exit(f"failed: {'; '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) == 2 else drive(*sys.argv[1:])
