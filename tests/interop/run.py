"""Real clients list, page, get, complete and hear of changes through the real binary, in front of
real servers.

usage: python run.py BINARY RMCP_SERVER RMCP_CLIENT [SCHEMAS]

Starts the official everything server (Node), an rmcp server, FastMCP over HTTP and as a child of the
gateway, and the gateway itself, all on free ports of loopback, and runs every client against it. With
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
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE = 120  # seconds for one client
FASTMCP = [sys.executable, str(HERE / "servers/fastmcp_server.py")]


class Stage:
    """The servers, the gateway before them, and what changes their lists."""

    def __init__(self, folder, binary, rmcp_server, schemas):
        self.folder = pathlib.Path(folder)
        self.processes = []
        try:
            self.set(binary, rmcp_server, schemas)
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
        config = self.folder / "gateway.toml"
        config.write_text(self.gateway_toml(at))
        self.url = self.start([binary, "serve", "--config", str(config)], r"listens on (\S+)")
        if schemas:
            validate = [sys.executable, str(HERE / "validate.py"), self.url, schemas]
            self.url = self.start(validate, r"listening: (\S+)") + "/mcp"

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
        """Ends all, the last first, and returns what the last one printed and its exit code."""
        for process, _ in reversed(self.processes):
            process.terminate()
            process.wait(timeout=PATIENCE)
        process, said = self.processes[-1]
        return "".join(said), process.returncode

    def trigger(self, upstream):
        return self.folder / f"{upstream}.trigger"

    def add(self, upstream, name):
        """Adds a prompt to an upstream's list while it runs."""
        if upstream == "library":
            (self.folder / f"library/{name}.md").write_text(f"---\nname: {name}\ndescription: x\n---\nx\n")
            return
        with self.trigger(upstream).open("a") as file:
            file.write(f"{name}\n")

    def gateway_toml(self, at):
        remote = "".join(
            f'[upstreams.{name}]\ntransport = "http"\nurl = "http://{address}/mcp"\n' for name, address in at.items()
        )
        child = json.dumps([*FASTMCP, "stdio"])
        return f"""
[server]
listen = "127.0.0.1:0"
[server.limits]
pre_drain = "0s"
[listing]
page_size = 4
{remote}
[upstreams.library]
transport = "library"
path = "library"
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


def program(script):
    return ["node" if script.endswith(".mjs") else sys.executable, str(HERE / "clients" / script)]


def main(binary, rmcp_server, rmcp_client, schemas=None):
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(folder, binary, rmcp_server, schemas)
        try:
            expect = str(HERE / "expect.json")
            runs = [[*program(script), stage.url, expect, *mode] for script, mode in CLIENTS]
            runs += [[rmcp_client, stage.url, expect, mode] for mode in ("legacy", "modern")]
            failed = [command for command in runs if not run(command)]
            # Afterwards, since these leave prompts behind that expect.json does not know.
            upstreams = ["child", "fastmcp", "library"]
            with ThreadPoolExecutor(max_workers=3) as pool:
                heard = list(pool.map(lambda upstream: hear_all(stage, upstream), upstreams))
            failed += [command for commands in heard for command in commands]
        finally:
            said, code = stage.stop()
    count = len(runs) + len(upstreams) * len(CLIENTS)
    if schemas:
        print(said.strip())
        count, failed = count + 1, failed + ([["schemas"]] if code else [])
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
