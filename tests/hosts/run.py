"""Hosts that people use, before the real binary: each lists what it can use, over each transport that it has.

usage: python run.py BINARY

Run with the Python of `requirements.txt`. Beside it stand an environment of `requirements-arxiv.txt`, and the Node
packages of this folder and of ../interop. Starts the gateway before the everything server, mcp-server-fetch,
arxiv-mcp-server and a child that exits at its start, and connects each host by its own command line or library,
with the entries that `promptgate connect` writes where the host reads a file. A second gateway has the tools of the
everything server (`[passthrough]`): hosts that call tools without a model call one. Prints a table; fails if any host does.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
BIN = pathlib.Path(sys.executable).parent
NODE = HERE / "node_modules/.bin"
PATIENCE = int(os.environ.get("PROMPTGATE_HOST_PATIENCE", "90"))  # seconds for one command of a host
EVERYTHING = HERE.parent / "interop/node_modules/@modelcontextprotocol/server-everything/dist/index.js"
BROKEN = "import no_such_module"
PROMPTS = ["everything__simple-prompt", "fetch__fetch", "library__review-code"]
PAIR = ["find_prompt", "use_prompt"]


def toml(folder):
    command = lambda *words: json.dumps([str(word) for word in words])
    return f"""
[server]
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:0"
[server.limits]
pre_drain = "0s"
[upstreams.library]
transport = "library"
path = {json.dumps(str(HERE.parent.parent / "examples/library"))}
[upstreams.everything]
transport = "stdio"
command = {command("node", EVERYTHING, "stdio")}
[upstreams.fetch]
transport = "stdio"
command = {command(BIN / "mcp-server-fetch")}
[upstreams.arxiv]
transport = "stdio"
command = {command(HERE / ".venv-arxiv/bin/arxiv-mcp-server", "--storage-path", folder / "papers")}
env = {{ HOME = {json.dumps(str(folder))} }}
[upstreams.broken]
transport = "stdio"
command = {command(sys.executable, "-c", BROKEN)}
[views.pair]
expose = ["prompts", "tools"]
[views.each]
expose = ["tools"]
tools = "each"
"""


def tools_toml():
    return f"""
[server]
listen = "127.0.0.1:0"
[admin]
listen = ""
[audit]
path = ""
[server.limits]
pre_drain = "0s"
[passthrough]
upstream = "everything"
[upstreams.everything]
transport = "stdio"
command = {json.dumps(["node", str(EVERYTHING), "stdio"])}
"""


class Stage:
    """A folder, a home folder for the hosts, and the gateways."""

    def __init__(self, folder, binary):
        self.folder = pathlib.Path(folder)
        self.binary = str(pathlib.Path(binary).resolve())
        self.config = self.folder / "gateway.toml"
        self.config.write_text(toml(self.folder))
        self.env = {
            **{k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "TMPDIR", "NODE_EXTRA_CA_CERTS")},
            "HOME": str(self.folder),
            "XDG_RUNTIME_DIR": str(self.folder),
            "PROMPTGATE_CONFIG": str(self.config),
            "NO_COLOR": "1",
            "CI": "1",
        }
        self.gateways = []
        self.url = self.serve(self.config)
        tools = self.folder / "tools.toml"
        tools.write_text(tools_toml())
        self.tools_url = self.serve(tools)
        self.stdio = [self.binary, "serve", "--stdio", "-c", str(self.config)]

    def serve(self, config):
        """Starts a gateway, and returns its URL."""
        command = [self.binary, "serve", "-c", str(config)]
        log = config.with_suffix(".log").open("w")
        gateway = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=self.env, cwd=self.folder
        )
        self.gateways.append(gateway)
        return re.search(r"listens on (\S+)", gateway.stdout.readline()).group(1)

    def end(self):
        for gateway in self.gateways:
            gateway.terminate()
            gateway.wait(timeout=PATIENCE)

    def run(self, *command, cwd=None, stdin=None):
        """What a command prints; it must succeed."""
        done = subprocess.run(
            [str(word) for word in command], capture_output=True, text=True, timeout=PATIENCE, env=self.env,
            cwd=cwd or self.folder, input=stdin,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"{command[0]} exited with {done.returncode}: {said[-2000:]}"
        return said

    def folder_of(self, host):
        folder = self.folder / host
        folder.mkdir(exist_ok=True)
        return folder

    def wait_for_upstreams(self):
        """Until each upstream has its prompts, and the broken one its reason."""
        deadline = time.monotonic() + PATIENCE
        while True:
            done = subprocess.run([self.binary, "status", "--json"], capture_output=True, text=True, env=self.env)
            rows = {row["upstream"]: row for row in json.loads(done.stdout or "{}").get("upstreams", [])}
            if all(rows.get(name, {}).get("listed") for name in ("library", "everything", "fetch", "arxiv")):
                reason = rows["broken"].get("error", {}).get("message", "")
                if reason.startswith("exited with code 1: ModuleNotFoundError: No module named 'no_such_module'"):
                    return rows
            assert time.monotonic() < deadline, json.dumps(rows, indent=1)
            time.sleep(0.2)


def holds(text, names):
    missing = [name for name in names if name not in text]
    assert not missing, f"{missing} not in {text[-2000:]}"


def fastmcp_http(stage):
    fastmcp = BIN / "fastmcp"
    holds(stage.run(fastmcp, "list", stage.url, "--prompts"), PROMPTS)
    holds(stage.run(fastmcp, "list", f"{stage.url}/pair"), PAIR)
    holds(stage.run(fastmcp, "list", f"{stage.url}/each"), PROMPTS)
    found = stage.run(fastmcp, "call", f"{stage.url}/pair", "find_prompt", json.dumps({"query": "review code"}))
    holds(found, ["library__review-code"])
    arguments = {"name": "library__review-code", "arguments": {"code": "let x"}}
    holds(stage.run(fastmcp, "call", f"{stage.url}/pair", "use_prompt", json.dumps(arguments)), ["[user]", "let x"])
    each = stage.run(fastmcp, "call", f"{stage.url}/each", "library__review-code", json.dumps({"code": "let y"}))
    holds(each, ["[user]", "let y"])
    holds(stage.run(fastmcp, "call", stage.tools_url, "echo", json.dumps({"message": "hello"})), ["Echo: hello"])


def fastmcp_stdio(stage):
    command = " ".join(stage.stdio)
    holds(stage.run(BIN / "fastmcp", "list", "--command", command, "--prompts"), PROMPTS)


def typescript(stage):
    for mode in ("legacy", "modern"):
        stage.run("node", HERE / "tools.mjs", stage.url, stage.tools_url, mode, "ts2")
    stage.run("node", HERE / "tools.mjs", stage.url, stage.tools_url, "legacy", "ts1")


def pydantic_ai_http(stage):
    turn = lambda *words: stage.run(sys.executable, HERE / "pydantic_ai_turn.py", *words)
    holds(turn(stage.url), ["success"])
    holds(turn(f"{stage.url}/pair", "find_prompt"), ["library__review-code"])
    holds(turn(stage.tools_url, "echo"), ["Echo: "])


def pydantic_ai_stdio(stage):
    holds(stage.run(sys.executable, HERE / "pydantic_ai_turn.py", *stage.stdio), ["success"])


def adk_tools(stage, *target):
    said = stage.run(sys.executable, HERE / "adk_tools.py", *target)
    return sorted(json.loads(re.search(r"^tools: (.*)$", said, re.MULTILINE).group(1)))


def adk_http(stage):
    assert adk_tools(stage, stage.url) == []
    assert adk_tools(stage, f"{stage.url}/pair") == PAIR
    assert "echo" in adk_tools(stage, stage.tools_url)
    called = stage.run(sys.executable, HERE / "adk_tools.py", stage.tools_url, "echo", '{"message": "hello"}')
    holds(called, ["Echo: hello"])


def adk_stdio(stage):
    assert adk_tools(stage, *stage.stdio) == []


def codex_servers(stage):
    """The MCP servers as `codex app-server` sees them, by name."""
    send = lambda **message: json.dumps(message) + "\n"
    app = subprocess.Popen(
        [str(NODE / "codex"), "app-server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, env=stage.env, cwd=stage.folder,
    )
    try:
        info = {"clientInfo": {"name": "hosts", "version": "1"}}
        app.stdin.write(send(id=1, method="initialize", params=info))
        app.stdin.flush()
        for line in app.stdout:
            message = json.loads(line)
            if message.get("id") == 1:
                app.stdin.write(send(method="initialized") + send(id=2, method="mcpServerStatus/list", params={}))
                app.stdin.flush()
            elif message.get("id") == 2:
                return {server["name"]: server for server in message["result"]["data"]}
        raise AssertionError("codex app-server ended")
    finally:
        app.kill()
        app.wait()


def codex_http(stage):
    stage.run(stage.binary, "connect", "codex", "--write")
    stage.run(stage.binary, "connect", "codex", "--write", "--view", "pair", "--name", "tools")
    config = stage.folder / ".codex/config.toml"
    config.write_text(f'{config.read_text()}\n[mcp_servers.rest]\nurl = "{stage.tools_url}"\n')
    servers = codex_servers(stage)
    assert "echo" in servers["rest"]["tools"], servers["rest"]
    assert servers["prompts"]["tools"] == {} and servers["prompts"]["toolsError"] is None, servers["prompts"]
    assert sorted(servers["tools"]["tools"]) == PAIR, servers["tools"]


def codex_stdio(stage):
    config = stage.folder / ".codex/config.toml"
    command, *arguments = stage.stdio
    entry = f"[mcp_servers.child]\ncommand = {json.dumps(command)}\nargs = {json.dumps(arguments)}\n"
    config.write_text(entry)
    child = codex_servers(stage)["child"]
    assert child["toolsError"] is None and child["serverInfo"]["name"] == "promptgate", child


def claude_http(stage):
    folder = stage.folder_of("claude")
    stage.run(NODE / "claude", "mcp", "add", "--transport", "http", "prompts", stage.url, cwd=folder)
    holds(stage.run(NODE / "claude", "mcp", "list", cwd=folder), ["prompts:", "Connected"])


def claude_stdio(stage):
    folder = stage.folder_of("claude-stdio")
    stage.run(NODE / "claude", "mcp", "add", "prompts", "--", *stage.stdio, cwd=folder)
    holds(stage.run(NODE / "claude", "mcp", "list", cwd=folder), ["prompts:", "Connected"])


def trust_folders(stage):
    """Gemini CLI connects no server in a folder that nobody has trusted."""
    settings = stage.folder / ".gemini/settings.json"
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(json.dumps({"security": {"folderTrust": {"enabled": False}}}))


def gemini_http(stage):
    trust_folders(stage)
    folder = stage.folder_of("gemini")
    stage.run(stage.binary, "connect", "gemini", "--write", cwd=folder)
    holds(stage.run(NODE / "gemini", "mcp", "list", cwd=folder), ["prompts:", "Connected"])


def gemini_stdio(stage):
    trust_folders(stage)
    folder = stage.folder_of("gemini-stdio")
    command, *arguments = stage.stdio
    stage.run(NODE / "gemini", "mcp", "add", "prompts", command, "--", *arguments, cwd=folder)
    holds(stage.run(NODE / "gemini", "mcp", "list", cwd=folder), ["prompts:", "Connected"])


def module_version(name):
    from importlib.metadata import version

    return lambda stage: version(name)


def command_version(name):
    return lambda stage: re.search(r"\d+\.\d+\.\d+", stage.run(NODE / name, "--version")).group(0)


HOSTS = [
    ("FastMCP CLI", module_version("fastmcp"), [("HTTP", fastmcp_http), ("stdio", fastmcp_stdio)]),
    ("TypeScript SDK, tools in both forms", lambda stage: "1.32.2, 2.4.0", [("HTTP", typescript)]),
    ("Pydantic AI", module_version("pydantic-ai-slim"), [("HTTP", pydantic_ai_http), ("stdio", pydantic_ai_stdio)]),
    ("Google ADK", module_version("google-adk"), [("HTTP", adk_http), ("stdio", adk_stdio)]),
    ("Codex app-server", command_version("codex"), [("HTTP", codex_http), ("stdio", codex_stdio)]),
    ("Claude Code", command_version("claude"), [("HTTP", claude_http), ("stdio", claude_stdio)]),
    ("Gemini CLI", command_version("gemini"), [("HTTP", gemini_http), ("stdio", gemini_stdio)]),
]


def main(binary):
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(folder, binary)
        try:
            rows = stage.wait_for_upstreams()
            listed = {name: row["listed"] for name, row in rows.items()}
            print(f"upstreams: {listed}; broken: {rows['broken']['error']['message']}", flush=True)
            for host, version, transports in HOSTS:
                for transport, check in transports:
                    started = time.monotonic()
                    try:
                        check(stage)
                        result = "ok"
                    except (AssertionError, KeyError, ValueError, subprocess.TimeoutExpired) as error:
                        result = f"FAILED: {error}"
                        failed.append(f"{host} over {transport}")
                    taken = time.monotonic() - started
                    print(f"{host:36} {version(stage):14} {transport:6} {taken:5.1f}s  {result}", flush=True)
        finally:
            stage.end()
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
