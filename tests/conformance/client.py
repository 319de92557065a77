"""The official conformance suite's client scenarios: mock servers test how the gateway asks its upstreams.

usage: python client.py BINARY

The suite starts this file again for each scenario, with the revision that the gateway is told and the URL
of the mock server. Fails if a scenario fails or warns, is skipped, passes other than the checks counted
here, or is neither run nor in left-out-client.txt.
"""

import base64
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import tool_relay
from gate import REVISIONS, gateway_toml, start

HERE = pathlib.Path(__file__).resolve().parent
# The number of client scenarios in this exact version of the suite.
ALL = {"2025-11-25": 19, "2026-07-28": 33, "extension": 10}
# What runs, and how many different checks must pass. The others of a scenario are of what we never send.
RUN = {
    ("2025-11-25", "initialize"): 1,
    ("2025-11-25", "sse-retry"): 3,
    ("2026-07-28", "request-metadata"): 5,
    ("2026-07-28", "http-standard-headers"): 3,
    ("2025-11-25", "auth/pre-registration"): 5,
    ("2026-07-28", "auth/pre-registration"): 5,
    ("2026-07-28", "auth/resource-mismatch"): 2,
    ("2026-07-28", "auth/metadata-issuer-mismatch"): 3,
    ("extension", "auth/client-credentials-basic"): 5,
    ("extension", "auth/client-credentials-jwt"): 5,
    ("extension", "sep-2640-client-no-prefetch"): 1,
    ("extension", "sep-2640-client-verify-digest"): 1,
    ("extension", "sep-2640-client-verify-size"): 1,
    ("2025-11-25", "auth/metadata-default"): 15,
    ("2025-11-25", "auth/metadata-var1"): 15,
    ("2025-11-25", "auth/metadata-var2"): 15,
    ("2025-11-25", "auth/metadata-var3"): 15,
    ("2025-11-25", "auth/scope-from-www-authenticate"): 11,
    ("2025-11-25", "auth/scope-from-scopes-supported"): 11,
    ("2025-11-25", "auth/scope-omitted-when-undefined"): 11,
    ("2025-11-25", "auth/scope-retry-limit"): 10,
    ("2025-11-25", "auth/token-endpoint-auth-basic"): 16,
    ("2025-11-25", "auth/token-endpoint-auth-post"): 16,
    ("2025-11-25", "auth/token-endpoint-auth-none"): 16,
    ("2026-07-28", "auth/metadata-default"): 16,
    ("2026-07-28", "auth/metadata-var1"): 16,
    ("2026-07-28", "auth/metadata-var2"): 16,
    ("2026-07-28", "auth/metadata-var3"): 16,
    ("2026-07-28", "auth/scope-from-www-authenticate"): 12,
    ("2026-07-28", "auth/scope-from-scopes-supported"): 12,
    ("2026-07-28", "auth/scope-omitted-when-undefined"): 12,
    ("2026-07-28", "auth/scope-retry-limit"): 11,
    ("2026-07-28", "auth/token-endpoint-auth-basic"): 17,
    ("2026-07-28", "auth/token-endpoint-auth-post"): 17,
    ("2026-07-28", "auth/token-endpoint-auth-none"): 17,
    ("2026-07-28", "auth/offline-access-scope"): 13,
    ("2026-07-28", "auth/offline-access-not-supported"): 12,
    ("2026-07-28", "auth/authorization-server-migration"): 14,
    ("2026-07-28", "auth/iss-supported"): 12,
    ("2026-07-28", "auth/iss-not-advertised"): 12,
    ("2026-07-28", "auth/iss-supported-missing"): 8,
    ("2026-07-28", "auth/iss-wrong-issuer"): 8,
    ("2026-07-28", "auth/iss-unexpected"): 8,
    ("2026-07-28", "auth/iss-normalized"): 8,
}
# The upstream is one that nobody should get a token for, or none is good enough for it: the gateway is right to give up.
REFUSED = {"auth/resource-mismatch", "auth/metadata-issuer-mismatch", "auth/scope-retry-limit"}
# The gateway authenticates as itself. In all others of "auth/" a person signs in.
AS_ITSELF = {
    "auth/pre-registration",
    "auth/resource-mismatch",
    "auth/metadata-issuer-mismatch",
    "auth/client-credentials-basic",
    "auth/client-credentials-jwt",
}
# The redirect back is not of the authorization server, as far as the gateway can tell.
NOT_SIGNED_IN = {"auth/iss-supported-missing", "auth/iss-wrong-issuer", "auth/iss-unexpected", "auth/iss-normalized"}
# The upstream has another authorization server after its first answer.
MOVES = {"auth/authorization-server-migration"}
# The mock server answers a tool only, on a stream that it ends.
TOOLS = {"sse-retry": "test_reconnection"}
# Its skill has a file that differs from its entry: a host that does not look has to be refused it.
DIFFERS = {"sep-2640-client-verify-digest", "sep-2640-client-verify-size"}
# The id of the upstream in gateway_toml, and what the gateway says when it needs a sign-in.
UPSTREAM = "fixture"
LOGIN = re.compile(rf'promptgate login {UPSTREAM}(?: --scope "([^"]*)")?')
# Seconds for each of the steps of a drive; the suite gives up after 30.
PATIENCE = 7
# How many scenarios run at once; much of their time is the start of processes.
AT_ONCE = 3


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


def is_served(binary, uri, endpoint):
    command = [binary, "get", uri, "--url", endpoint]
    return subprocess.run(command, stdout=subprocess.DEVNULL, timeout=PATIENCE).returncode == 0


def is_sign_in(scenario):
    return scenario.startswith("auth/") and scenario not in AS_ITSELF


def credential(scenario, folder):
    """What the gateway shows to the mock server, where the scenario is about that."""
    if not scenario.startswith("auth/"):
        return ""
    if is_sign_in(scenario):
        return "credential = { login = {} }\n[logins]\npath = \"logins\"\n"
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


def sign_in(binary, config, scope=None):
    """Signs in as a person with a browser would, at an authorization server that says yes by itself."""
    command = [binary, "login", UPSTREAM, "--no-browser", "--config", config, *(["--scope", scope] if scope else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as login:
        url = next((line.strip() for line in login.stdout if line.startswith("http")), None)
        if url:
            try:
                urllib.request.urlopen(url, timeout=PATIENCE).read()
            except urllib.error.HTTPError as refused:
                print(f"{refused.url}: {refused}")
        return login.wait(PATIENCE) == 0


def dial(binary, config):
    """Dials. If that fails, a person does what the gateway tells, and dials once more."""
    command = [binary, "check", "--dial", "--config", config]
    dialled = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE)
    print(dialled.stdout)
    if dialled.returncode != 0 and (told := LOGIN.search(dialled.stdout)) and sign_in(binary, config, told[1]):
        dialled = subprocess.run(command, timeout=PATIENCE)
    return dialled.returncode == 0


def drive(binary, told, url):
    """Makes the gateway ask the mock server all that it asks an upstream."""
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    os.environ["PROMPTGATE_SEAL_KEY"] = base64.b64encode(os.urandom(32)).decode()
    if scenario in TOOLS:
        url = tool_relay.start(url, TOOLS[scenario])
    with tempfile.TemporaryDirectory() as folder:
        config = str(pathlib.Path(folder) / "gateway.toml")
        pathlib.Path(config).write_text(gateway_toml(url, told) + credential(scenario, folder))
        if is_sign_in(scenario) and sign_in(binary, config) == (scenario in NOT_SIGNED_IN):
            sys.exit("the sign-in ended the other way")
        if scenario in NOT_SIGNED_IN:
            return
        # One dial, one answer; a gateway that serves would try again.
        is_reached = dial(binary, config)
        if scenario in MOVES:
            is_reached = dial(binary, config)
        if is_reached == (scenario in REFUSED):
            sys.exit("the dial ended the other way")
        if not is_reached:
            return
        gateway, endpoint = start([binary, "serve", "--config", config], r"listens on (\S+)")
        try:
            for prompt in json.loads(ask(binary, "list", "--json", "--url", endpoint)):
                ask(binary, "get", prompt["name"], "--url", endpoint)
            for skill in json.loads(ask(binary, "list", "--skills", "--json", "--url", endpoint)):
                if scenario in DIFFERS and is_served(binary, skill["uri"], endpoint):
                    for file in skill["resources"]:
                        ask(binary, "get", file["uri"], "--url", endpoint)
        finally:
            gateway.terminate()
            gateway.wait(PATIENCE)


def main(binary):
    failed = list(uncounted())
    legs = []
    for revision, scenario in RUN:
        # Sign-ins do not depend on the revision that the gateway is told.
        told = [] if is_sign_in(scenario) else [revision if revision in REVISIONS else REVISIONS[0]]
        legs += [(one, revision, scenario) for one in ["auto", *told]]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for leg, (passed, output) in zip(legs, threads.map(lambda leg: run(binary, *leg), legs)):
            told, revision, scenario = leg
            one, expected = f"{scenario}, {revision} (told {told})", RUN[revision, scenario]
            if output or passed != expected:
                print(f"FAIL {one}: {passed} of {expected} checks\n{output}", flush=True)
                failed.append(one)
            else:
                print(f"ok   {one} ({passed})", flush=True)
    sys.exit(f"failed: {'; '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) == 2 else drive(*sys.argv[1:])
