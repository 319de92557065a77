"""Hosts of skills through the real binary, before servers of skills, all of other projects: rmcp, the
TypeScript SDK and FastMCP.

usage: python skills.py BINARY RMCP_SERVER RMCP_CLIENT [SCHEMAS]

Run with the Python of tests/interop; that of FastMCP and the Node packages stand here. One gateway is
before the three servers, and before each in the era of initialize, too. Each client lists, gets and reads
all with its own checks, and as a client of each era takes skills as prompts and as tools; then a file
changes at each server. With SCHEMAS, the folder of the official JSON schemas, every message of the gateway
is validated on its way; these do not have the extension, whose results the clients check. Then the
extension's conformance scenarios run, through a gateway before one server each. Fails if any of it does.
"""

import hashlib
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "interop"))

import run  # noqa: E402

PATIENCE = run.PATIENCE
FASTMCP = str(HERE / ".venv/bin/python")
CLIENTS = {"fm": [FASTMCP, str(HERE / "clients/fm.py")], "ts": ["node", str(HERE / "clients/ts.mjs")]}
SERVERS = {"fm": [FASTMCP, str(HERE / "servers/fm.py")], "ts": ["node", str(HERE / "servers/ts.mjs")]}
# FastMCP has skills for clients of 2026-07-28 only.
OLDER = {"ts-older": "ts", "rmcp-older": "rmcp", "fm-older": "fm"}
NO_SKILLS = {"fm-older"}

# The files of each server. `café menu.txt` is percent-encoded in URIs.
FILES = {
    "refunds/SKILL.md": "---\nname: refunds\ndescription: Refund a customer\n"
    "metadata:\n  version: '1.0'\n  owner: sales\n---\n\nRead [the rules](forms/eu.md) of “EU” first.\n",
    "refunds/forms/eu.md": "Within 14 days.\r\nNo reason is needed.\n",
    "refunds/forms/café menu.txt": "crème brûlée\n",
    "refunds/logo.png": b"\x89PNG\r\n\x1a\n\x00\xff",
    "acme/billing/SKILL.md": "---\nname: billing\ndescription: Write an invoice\n---\nUse the table.\n",
    "acme/billing/tables/prices.csv": "item,price\n" + "tea,4\n" * 100_000,
    "acme/billing/empty.txt": "",
    "changing/SKILL.md": "---\nname: changing\ndescription: Read the notes\n---\nSee notes.md.\n",
    "changing/notes.md": "Version 0\n",
    "secret/SKILL.md": "---\nname: secret\ndescription: Denied by a rule\n---\nSecret.\n",
}
INVALID_PARAMS = -32602
# A skill without digests, which hosts may decline, is denied, too.
DENIED, UNKNOWN, DYNAMIC = "secret", "nosuch", "live"
PAGE = 4


def content(file):
    return file if isinstance(file, bytes) else file.encode()


def uri_of(upstream, path):
    return f"skill://{upstream}/{urllib.parse.quote(path)}"


class Skills(run.Stage):
    """The three servers, each with files of its own, and the gateway before them."""

    def set(self, binary, rmcp_server, schemas):
        self.binary, self.process_of = binary, {}
        servers = {**SERVERS, "rmcp": [rmcp_server]}
        self.urls = {name: self.serve_skills(name, command) for name, command in servers.items()}
        upstreams = {name: (url, "auto") for name, url in self.urls.items()}
        upstreams |= {name: (self.urls[server], "2025-11-25") for name, server in OLDER.items()}
        config = self.folder / "gateway.toml"
        config.write_text(self.gateway_toml(upstreams))
        self.upstreams = [name for name in upstreams if name not in NO_SKILLS]
        self.url = self.serve(binary, config)
        self.until_all_are_listed()
        self.url = self.validated(self.url, schemas)

    def serve_skills(self, name, command):
        """Starts a server, and returns its URL."""
        folder = self.folder / name
        for path, file in FILES.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content(file))
        address = self.start([*command, str(folder)], r"listening: (\S+)")
        self.process_of[name] = self.processes[-1]
        return f"http://{address}/mcp"

    def gateway_toml(self, upstreams):
        tables = "".join(
            f"""
[upstreams.{name}]
transport = "http"
url = "{url}"
revision = "{revision}"
expose_skills = ["prompts"]
"""
            for name, (url, revision) in upstreams.items()
        )
        return f"""
[server]
listen = "127.0.0.1:0"
expose = ["prompts", "tools"]
[server.limits]
pre_drain = "0s"
[admin]
listen = ""
[audit]
path = "audit-{"-".join(upstreams)}"
[listing]
page_size = {PAGE}
[telemetry]
log = "error"  # much is refused here
[[access.rules]]
allow = ["list", "get", "complete"]
[[access.rules]]
deny = ["list", "get", "complete"]
prompts = ["{DENIED}", "{DYNAMIC}"]
{tables}"""

    def conforms(self, server):
        """Whether the gateway before one server passes the scenarios of the extension."""
        config = self.folder / f"{server}.toml"
        config.write_text(self.gateway_toml({server: (self.urls[server], "auto")}))
        url = self.serve(self.binary, config)
        print(f"--- the gateway before {server}, the scenarios of the extension", flush=True)
        return subprocess.run([HERE.parent / "conformance/run.sh", url, "extension"]).returncode == 0

    def until_all_are_listed(self):
        wanted = set(self.expected()["skills"])
        command = [self.binary, "list", "--skills", "--json", "--url", self.url]
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            listed = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
            found = {skill["uri"] for skill in json.loads(listed.stdout or "[]")}
            if found == wanted:
                return
            time.sleep(0.1)
        sys.exit(f"after {PATIENCE} s missing: {wanted - found}, too many: {found - wanted}")

    def expected(self):
        """What a client has to find."""
        served = [path for path in FILES if not path.startswith(DENIED)]
        skills = [path.removesuffix("/SKILL.md") for path in served if path.endswith("/SKILL.md")]
        found = {"skills": {}, "folders": {}, "prompts": {"modern": [], "legacy": []}, "tools": []}
        for upstream in self.upstreams:
            for skill in skills:
                files = {uri_of(upstream, p): digest(FILES[p]) for p in served if p.startswith(f"{skill}/")}
                found["skills"][uri_of(upstream, f"{skill}/SKILL.md")] = files
            forms = [path for path in served if path.startswith("refunds/forms/")]
            folders = {"refunds": ["refunds/SKILL.md", "refunds/logo.png", "refunds/forms"], "refunds/forms": forms}
            for folder, children in folders.items():
                found["folders"][uri_of(upstream, folder)] = [uri_of(upstream, path) for path in children]
            for mode, prompts in found["prompts"].items():
                prompts += self.prompts(upstream, mode)
            found["tools"] += self.tools(upstream)
        refused = [(upstream, name) for upstream in self.urls for name in (DENIED, UNKNOWN)]
        refused += [("rmcp", DYNAMIC), ("fm-older", "refunds"), (UNKNOWN, "refunds")]
        found["refused"] = [uri_of(upstream, f"{name}/SKILL.md") for upstream, name in refused]
        found["pages"] = len(found["skills"]) // PAGE
        return found

    def prompts(self, upstream, mode):
        """The skills as prompts; clients of initialize get the names of the files, others links."""
        forms = ["forms/eu.md", "forms/caf%C3%A9%20menu.txt", "logo.png"]
        if mode == "modern":
            forms = [f"skill://{upstream}/refunds/{form}" for form in forms]
        instructions = "Read [the rules](forms/eu.md) of “EU” first."
        return [
            {
                "name": f"{upstream}__refunds",
                "arguments": {"task": "Refund Ann"},
                "contains": [instructions, "Refund Ann", *forms],
            },
            {"name": f"{upstream}__billing", "contains": ["Use the table."]},
            {"name": f"{upstream}__{DENIED}", "code": INVALID_PARAMS},
        ]

    def tools(self, upstream):
        name = f"{upstream}/refunds"
        menu = "forms/café menu.txt"
        read = [("SKILL.md", None), ("forms/eu.md", "forms/eu.md"), (menu, menu), (menu, urllib.parse.quote(menu))]
        return [
            {"name": "find_skill", "arguments": {"query": "refund"}, "contains": [name]},
            *(
                {
                    "name": "read_skill",
                    "arguments": {"name": name} | ({"file": file} if file else {}),
                    "contains": [FILES[f"refunds/{path}"]],
                }
                for path, file in read
            ),
            *(
                {"name": "read_skill", "arguments": {"name": f"{upstream}/{unknown}"}, "isError": True}
                for unknown in (DENIED, UNKNOWN)
            ),
        ]

    def change(self, server, number):
        """Changes a file of a server, which knows it afterwards."""
        (self.folder / server / "changing/notes.md").write_text(f"Version {number}\n")
        process, said = self.process_of[server]
        before = said.count("reloaded\n")
        process.send_signal(signal.SIGHUP)
        until = time.monotonic() + PATIENCE
        while said.count("reloaded\n") == before:
            if time.monotonic() > until:
                sys.exit(f"{server} did not read its folder again within {PATIENCE} s")
            time.sleep(0.05)


def digest(file):
    return f"sha256:{hashlib.sha256(content(file)).hexdigest()}"


def hear(stage, command, server, number):
    """Whether a client sees a change of a file as it should."""
    command = [*command, stage.url, uri_of(server, "changing/SKILL.md"), "changed"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        ending = threading.Timer(PATIENCE, client.kill)
        ending.start()
        for line in client.stdout:
            if line != "ready\n":
                print(line, end="", flush=True)
                continue
            stage.change(server, number)
            client.stdin.write("\n")
            client.stdin.flush()
        is_right = client.wait() == 0
        ending.cancel()
    return is_right


def main(binary, rmcp_server, rmcp_client, schemas=None):
    clients, failed = {**CLIENTS, "rmcp": [rmcp_client]}, []
    with tempfile.TemporaryDirectory() as folder:
        stage = Skills(folder, binary, rmcp_server, schemas)
        try:
            expect = stage.folder / "expect.json"
            expect.write_text(json.dumps(stage.expected()))
            runs = [[*c, stage.url, str(expect), mode] for c in clients.values() for mode in ("modern", "legacy")]
            failed += [command for command in runs if not run.run(command)]
            changes = [(client, server) for server in stage.urls for client in clients]
            for number, (client, server) in enumerate(changes, 1):
                if not hear(stage, clients[client], server, number):
                    failed.append([client, server, "changed"])
            for server in stage.urls:
                if not stage.conforms(server):
                    failed.append([server, "conformance"])
        finally:
            said, is_right = stage.stop()
    count = len(runs) + len(changes) + len(stage.urls)
    if schemas:
        print(said.strip())
        count, failed = count + 1, failed + ([] if is_right else [["schemas"]])
    print(f"{count - len(failed)} passed, {len(failed)} failed")
    sys.exit("\n".join(["failed:", *(" ".join(command) for command in failed)]) if failed else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
