"""Real clients list, page, get and complete through the real binary, in front of real servers.

usage: python run.py BINARY RMCP_SERVER RMCP_CLIENT

Starts the official everything server (Node), an rmcp server and the gateway, all on free ports of
loopback, and runs every client against the gateway. Fails if any client does, or if fewer clients
ran than are listed here.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE = 120  # seconds for one client


def start(command, pattern, **options):
    """Starts a server and returns it with what `pattern` finds in its output."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
    for line in process.stdout:
        found = re.search(pattern, line)
        if found:
            return process, found.group(1)
    sys.exit(f"{command[0]} ended before it listened")


def main(binary, rmcp_server, rmcp_client):
    everything = HERE / "node_modules/@modelcontextprotocol/server-everything/dist/index.js"
    node_server = ["node", "--import", str(HERE / "loopback.mjs"), str(everything), "streamableHttp"]
    servers = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            process, everything_at = start(node_server, r"loopback: (\S+)", env={**os.environ, "PORT": "0"})
            servers.append(process)
            process, rmcp_at = start([rmcp_server], r"listening: (\S+)")
            servers.append(process)
            config = pathlib.Path(folder) / "gateway.toml"
            config.write_text(gateway_toml(everything_at, rmcp_at))
            process, url = start([binary, "serve", "--config", str(config)], r"listens on (\S+)")
            servers.append(process)
            clients = commands(url, rmcp_client)
            failed = [label for label, command in clients if not run(label, command)]
        finally:
            for process in servers:
                process.terminate()
    print(f"{len(clients) - len(failed)} passed, {len(failed)} failed")
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def gateway_toml(everything_at, rmcp_at):
    library = HERE.parent.parent / "examples/library"
    return f"""
[server]
listen = "127.0.0.1:0"
[listing]
page_size = 4
[upstreams.everything]
transport = "http"
url = "http://{everything_at}/mcp"
[upstreams.library]
transport = "library"
path = {json.dumps(str(library))}
[upstreams.rmcp]
transport = "http"
url = "http://{rmcp_at}/mcp"
"""


def commands(url, rmcp_client):
    expect = str(HERE / "expect.json")
    node = lambda name, *mode: ["node", str(HERE / "clients" / name), url, expect, *mode]
    python = lambda name, mode: [sys.executable, str(HERE / "clients" / name), url, expect, mode]
    return [
        ("TypeScript SDK 1.x", node("ts1.mjs")),
        ("TypeScript SDK 2.x, legacy", node("ts2.mjs", "legacy")),
        ("TypeScript SDK 2.x, modern", node("ts2.mjs", "modern")),
        ("Python mcp, legacy", python("py.py", "legacy")),
        ("Python mcp, modern", python("py.py", "modern")),
        ("rmcp, legacy", [rmcp_client, url, expect, "legacy"]),
        ("rmcp, modern", [rmcp_client, url, expect, "modern"]),
    ]


def run(label, command):
    try:
        return subprocess.run(command, timeout=PATIENCE).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"FAIL {label}: no answer within {PATIENCE} s")
        return False


if __name__ == "__main__":
    main(*sys.argv[1:])
