"""Real clients list, page, get, complete, answer questions and hear of changes through the real
binary, in front of real servers.

usage: python run.py BINARY RMCP_SERVER RMCP_CLIENT [SCHEMAS]

Starts the official everything server (Node), an rmcp server, FastMCP over HTTP, over HTTP+SSE and as a
child of the gateway, and the gateway itself, all on free ports of loopback, and runs every client against
it, over each transport. A second gateway stands before a server that asks, spoken to in both eras. With
SCHEMAS, the folder of the official JSON schemas, every message of the gateway is validated on its way.
Fails if any client does.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE = 120  # seconds for one client
FASTMCP = [sys.executable, str(HERE / "servers/fastmcp_server.py")]
FIXTURE = [sys.executable, str(HERE.parent / "conformance/fixture.py")]
QUESTION = "test_input_required_result_prompt"


class Stage:
    """The servers, the gateway before them, and what changes their lists."""

    def __init__(self, folder, *given):
        self.folder = pathlib.Path(folder)
        self.processes = []
        try:
            self.set(*given)
        except BaseException:
            self.stop()
            raise

    def set(self, binary, rmcp_server, schemas):
        shutil.copytree(HERE.parent.parent / "examples/library", self.folder / "library")
        everything = HERE / "node_modules/@modelcontextprotocol/server-everything/dist/index.js"
        node = ["node", "--import", str(HERE / "loopback.mjs"), str(everything), "streamableHttp"]
        at = {
            "everything": self.start(node, r"loopback: (\S+)", PORT="0"),
            "rmcp": self.start([rmcp_server], r"listening: (\S+)"),
            "fastmcp": self.start(
                [*FASTMCP, "http", "0"], r"listening: (\S+)", TRIGGER_FILE=str(self.trigger("fastmcp"))
            ),
        }
        sse = self.start(
            [*FASTMCP, "sse", "0"], r"listening: (\S+)", TRIGGER_FILE=str(self.trigger("sse"))
        )
        config = self.folder / "gateway.toml"
        config.write_text(self.gateway_toml(at, sse))
        self.stdio = [binary, "serve", "--stdio", "--config", str(config)]
        url = self.gateway(binary, config)
        self.sse = url.removesuffix("/mcp") + "/sse"
        asking = self.folder / "asking.toml"
        asking.write_text(self.asking_toml(self.start(FIXTURE, r"listening: (\S+)")))
        self.asking = self.validated(self.gateway(binary, asking), schemas)
        self.url = self.validated(url, schemas)

    def gateway(self, binary, config):
        """Starts a gateway and returns its URL once it lists prompts of every upstream."""
        url = self.serve(binary, config)
        self.until_listed(binary, url, config)
        return url

    def serve(self, binary, config):
        """Starts a gateway and returns its URL."""
        return self.start([binary, "serve", "--config", str(config)], r"listens on (\S+)")

    def until_listed(self, binary, url, config):
        """Waits until a gateway lists prompts of every upstream: the first list does not wait for slow ones."""
        upstreams = tomllib.loads(config.read_text())["upstreams"]
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            listed = subprocess.run([binary, "list", "--url", url], capture_output=True, text=True, timeout=PATIENCE)
            missing = [name for name in upstreams if f"{name}__" not in listed.stdout]
            if not missing:
                return
            time.sleep(0.1)
        sys.exit(f"no prompts of {missing} within {PATIENCE} s: {listed.stderr}")

    def validated(self, url, schemas):
        """The URL of a proxy that validates every message on its way, if there are schemas."""
        if not schemas:
            return url
        validate = [sys.executable, str(HERE / "validate.py"), url, schemas]
        return self.start(validate, r"listening: (\S+)") + "/mcp"

    def start(self, command, pattern, **environment):
        """Starts a server and returns what `pattern` finds in its output."""
        env = {**os.environ, **environment}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        said = []
        self.processes.append((process, said))
        for line in process.stdout:
            found = re.search(pattern, line)
            if found:
                # Nobody may block on a pipe that is not read.
                threading.Thread(target=lambda: said.extend(process.stdout), daemon=True).start()
                return found.group(1)
        sys.exit(f"{command[0]} ended before it listened")

    def stop(self):
        """Ends all, the last first, and returns what those that validate printed and whether all was
        right."""
        for process, _ in reversed(self.processes):
            process.terminate()
            process.wait(timeout=PATIENCE)
        judges = [(p, said) for p, said in self.processes if any("validate.py" in part for part in p.args)]
        return "".join("".join(said) for _, said in judges), all(p.returncode == 0 for p, _ in judges)

    def trigger(self, upstream):
        return self.folder / f"{upstream}.trigger"

    def add(self, upstream, name):
        """Adds a prompt to an upstream's list while it runs."""
        if upstream == "library":
            (self.folder / f"library/{name}.md").write_text(f"---\nname: {name}\ndescription: x\n---\nx\n")
            return
        with self.trigger(upstream).open("a") as file:
            file.write(f"{name}\n")

    def asking_toml(self, fixture):
        upstream = '[upstreams.{}]\ntransport = "http"\nurl = "http://{}/mcp"\nrevision = "{}"\n'
        upstreams = upstream.format("modern", fixture, "auto") + upstream.format("legacy", fixture, "2025-11-25")
        server = '[server]\nlisten = "127.0.0.1:0"\n[server.limits]\npre_drain = "0s"\n'
        # The other gateway writes into the same folder.
        return f'{server}[admin]\nlisten = ""\n[audit]\npath = "audit-asking"\n{upstreams}'

    def gateway_toml(self, at, sse):
        remote = "".join(
            f'[upstreams.{name}]\ntransport = "http"\nurl = "http://{address}/mcp"\n' for name, address in at.items()
        )
        child = json.dumps([*FASTMCP, "stdio"])
        return f"""
[server]
listen = "127.0.0.1:0"
[admin]
listen = ""
[server.limits]
pre_drain = "0s"
[listing]
page_size = 4
{remote}
[upstreams.library]
transport = "library"
path = "library"
[upstreams.sse]
transport = "http"  # which it turns out not to be
url = "http://{sse}/sse"
[upstreams.child]
transport = "stdio"
command = {child}
env = {{ TRIGGER_FILE = {json.dumps(str(self.trigger("child")))} }}
"""


# How each client is run, and in which modes.
CLIENTS = [
    ("ts1.mjs", []),
    ("ts1.mjs", ["17"]),
    ("ts1.mjs", ["11"]),
    *((script, [mode]) for script in ("ts2.mjs", "py.py", "fm.py") for mode in ("legacy", "modern")),
]


# Those that answer what a prompt asks.
ASK = [
    ("ask_ts1.mjs", []),
    ("ask_ts1.mjs", ["17"]),
    *((script, [mode]) for script in ("ask_ts2.mjs", "ask_py.py") for mode in ("legacy", "modern")),
]
SSE = [*(("sse_ts1.mjs", minor) for minor in ([], ["17"], ["11"], ["9"])), ("sse_py.py", ["legacy"])]
STDIO = [
    *(("stdio_ts1.mjs", minor) for minor in ([], ["17"], ["11"], ["9"])),
    *((script, [mode]) for script in ("stdio_ts2.mjs", "stdio_py.py") for mode in ("legacy", "modern", "auto")),
]


def program(script):
    return ["node" if script.endswith(".mjs") else sys.executable, str(HERE / "clients" / script)]


def main(binary, rmcp_server, rmcp_client, schemas=None):
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(folder, binary, rmcp_server, schemas)
        try:
            expect = str(HERE / "expect.json")
            runs = [[*program(script), stage.url, expect, *mode] for script, mode in CLIENTS]
            runs += [[rmcp_client, stage.url, expect, mode] for mode in ("legacy", "modern")]
            runs += [[*program(script), stage.sse, expect, *mode] for script, mode in SSE]
            runs += [[*program(script), expect, *mode, "--", *stage.stdio] for script, mode in STDIO]
            for upstream in ("modern", "legacy"):
                prompt, lead = f"{upstream}__{QUESTION}", f"[{upstream}] "
                runs += [[*program(script), stage.asking, prompt, lead, *mode] for script, mode in ASK]
            failed = [command for command in runs if not run(command)]
            # Afterwards, since these leave prompts behind that expect.json does not know.
            upstreams = ["child", "fastmcp", "library", "sse"]
            with ThreadPoolExecutor(max_workers=4) as pool:
                heard = list(pool.map(lambda upstream: hear_all(stage, upstream), upstreams))
            failed += [command for commands in heard for command in commands]
        finally:
            said, is_right = stage.stop()
    count = len(runs) + len(upstreams) * len(CLIENTS)
    if schemas:
        print(said.strip())
        count, failed = count + 1, failed + ([] if is_right else [["schemas"]])
    print(f"{count - len(failed)} passed, {len(failed)} failed")
    sys.exit("\n".join(["failed:", *(" ".join(command) for command in failed)]) if failed else 0)


def run(command):
    try:
        return subprocess.run(command, timeout=PATIENCE).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"no answer within {PATIENCE} s: {command}")
        return False


def hear_all(stage, upstream):
    """Every client hears of a change in this upstream; returns the commands of those that did not."""
    failed = []
    for number, (script, mode) in enumerate(CLIENTS):
        name = f"added-{number}"
        command = [*program(f"changed_{script}"), stage.url, f"{upstream}__{name}", *mode]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for line in process.stdout:  # the clients give up by themselves
            if line == "ready\n":
                stage.add(upstream, name)
            else:
                print(f"{upstream}: {line}", end="")
        if process.wait() != 0:
            failed.append(command)
    return failed


if __name__ == "__main__":
    main(*sys.argv[1:])
