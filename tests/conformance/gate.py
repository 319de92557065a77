"""The official conformance suite against a fixture directly, and through the gateway: both must pass
the same scenarios.

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
# The gateway speaks to the fixture in the era that it finds, and in the older one. Once it offers its prompts as tools.
LEGS = {"found": ("auto", ["prompts", "tools"]), "older": ("2025-11-25", ["prompts"])}
# Learns its Mcp-Name from a tool of tools/list.
NEEDS_TOOLS = "http-header-validation"


def start(command, pattern):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        found = re.search(pattern, line)
        if found:
            return process, found.group(1)
    sys.exit(f"{command[0]} ended before it listened")


def gateway_toml(url, revision, expose=("prompts",)):
    return f"""
[server]
listen = "127.0.0.1:0"
expose = {json.dumps(expose)}
[admin]
listen = ""
[audit]
path = "audit-{revision}"
[server.limits]
pre_drain = "0s"
[upstreams.fixture]
transport = "http"
url = "{url}"
revision = "{revision}"
prefix = ""
"""


def main(binary):
    processes, failed = [], []
    with tempfile.TemporaryDirectory() as folder:
        try:
            fixture, address = start([sys.executable, str(HERE / "fixture.py")], r"listening: (\S+)")
            processes.append(fixture)
            upstream = f"http://{address}/mcp"
            targets = {"the fixture": (upstream, [NEEDS_TOOLS])}
            for leg, (revision, expose) in LEGS.items():
                config = pathlib.Path(folder) / f"{leg}.toml"
                config.write_text(gateway_toml(upstream, revision, expose))
                gateway, url = start([binary, "serve", "--config", str(config)], r"listens on (\S+)")
                processes.append(gateway)
                left_out = [] if "tools" in expose else [NEEDS_TOOLS]
                targets[f"the gateway ({leg} era upstream)"] = (url, left_out)
            for target, (url, left_out) in targets.items():
                for revision in REVISIONS:
                    print(f"--- {target}, {revision}", flush=True)
                    if subprocess.run([str(HERE / "run.sh"), url, revision, *left_out]).returncode != 0:
                        failed.append(f"{target}, {revision}")
        finally:
            for process in processes:
                process.terminate()
    print(f"{len(targets) * len(REVISIONS) - len(failed)} passed, {len(failed)} failed")
    sys.exit(f"failed: {'; '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
