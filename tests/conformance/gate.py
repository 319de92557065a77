"""The official conformance suite against a fixture directly, and through the gateway: both must pass
the same scenarios, but for what left-out.txt has for the gateway.

usage: python gate.py BINARY
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
REVISIONS = ["2025-11-25", "2026-07-28"]
# target of left-out.txt -> the era of the upstream, the one that is found or the older; what is offered; whether the
# tools and resources are those of the fixture, through [passthrough]
LEGS = {
    "prompts": ("auto", ["prompts", "tools"], False),
    "found": ("auto", ["prompts"], True),
    "older": ("2025-11-25", ["prompts"], True),
}


REST = """
server_requests = ["elicitation", "sampling", "roots"]
[passthrough]
upstream = "fixture"
"""


def start(command, pattern):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        found = re.search(pattern, line)
        if found:
            return process, found.group(1)
    sys.exit(f"{command[0]} ended before it listened")


def gateway_toml(url, revision, expose=("prompts",), rest=False):
    return f"""
[server]
listen = "127.0.0.1:0"
expose = {json.dumps(expose)}
[admin]
listen = ""
[audit]
path = "audit-{revision}-{'rest' if rest else 'prompts'}"
[server.limits]
pre_drain = "0s"
[upstreams.fixture]
transport = "http"
url = "{url}"
revision = "{revision}"
prefix = ""
""" + (REST if rest else "")


def main(binary):
    processes, failed = [], []
    with tempfile.TemporaryDirectory() as folder:
        try:
            fixture, address = start([sys.executable, str(HERE / "fixture.py")], r"listening: (\S+)")
            processes.append(fixture)
            upstream = f"http://{address}/mcp"
            targets = {"fixture": upstream}
            for leg, (revision, expose, rest) in LEGS.items():
                config = pathlib.Path(folder) / f"{leg}.toml"
                config.write_text(gateway_toml(upstream, revision, expose, rest))
                gateway, targets[leg] = start([binary, "serve", "--config", str(config)], r"listens on (\S+)")
                processes.append(gateway)
            for target, url in targets.items():
                for revision in REVISIONS:
                    print(f"--- {target}, {revision}", flush=True)
                    if subprocess.run([str(HERE / "run.sh"), url, revision, target]).returncode != 0:
                        failed.append(f"{target}, {revision}")
        finally:
            for process in processes:
                process.terminate()
    print(f"{len(targets) * len(REVISIONS) - len(failed)} passed, {len(failed)} failed")
    sys.exit(f"failed: {'; '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
