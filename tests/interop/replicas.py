"""Real clients through three replicas of the real binary, behind a balancer that sends each request to the next one.

usage: python replicas.py BINARY RMCP_SERVER RMCP_CLIENT

As run.py, but with a store (redis-server) that the replicas share: questions are answered, lists are walked and changes
heard of through other replicas than the one that was asked. Fails if any client does.
"""

import pathlib
import shutil
import socket
import sys
import tempfile

import run

SEAL_KEY = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
REPLICAS = 3


class Replicas(run.Stage):
    """The same servers, before three gateways instead of one."""

    def gateway(self, binary, config):
        store = self.store()
        urls = []
        for number in range(REPLICAS):
            environment = {
                "PROMPTGATE__CLUSTER__STORE": store,
                "PROMPTGATE__CLUSTER__REPLICA": f"replica-{number}",
                "PROMPTGATE__CLUSTER__TIMEOUT": "5s",  # the machine may be busy with the clients
                "PROMPTGATE_SEAL_KEY": SEAL_KEY,
                "PROMPTGATE__AUDIT__PATH": f"{config.stem}-audit-{number}",
            }
            command = [binary, "serve", "--config", str(config)]
            urls.append(self.start(command, r"listens on (\S+)", **environment))
        for url in urls:
            self.until_listed(binary, url, config)
        targets = [url.removeprefix("http://").removesuffix("/mcp") for url in urls]
        balance = [sys.executable, str(run.HERE / "balance.py"), *targets]
        return "http://" + self.start(balance, r"listening: (\S+)") + "/mcp"

    def store(self):
        """A server of its own for each gateway; returns its URL."""
        program = shutil.which("redis-server") or shutil.which("valkey-server") or sys.exit("redis-server is missing")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.start([program, *settings], r"(Ready to accept connections)")
        return f"redis://127.0.0.1:{port}"


def main(binary, rmcp_server, rmcp_client):
    with tempfile.TemporaryDirectory() as folder:
        stage = Replicas(pathlib.Path(folder), binary, rmcp_server, None)
        try:
            expect = str(run.HERE / "expect.json")
            runs = [[*run.program(script), stage.url, expect, *mode] for script, mode in run.CLIENTS]
            runs += [[rmcp_client, stage.url, expect, mode] for mode in ("legacy", "modern")]
            runs += [[*run.program(script), stage.sse, expect, *mode] for script, mode in run.SSE]
            for upstream in ("modern", "legacy"):
                prompt, lead = f"{upstream}__{run.QUESTION}", f"[{upstream}] "
                # Often enough that each message comes to each replica.
                asks = [[*run.program(script), stage.asking, prompt, lead, *mode] for script, mode in run.ASK]
                asks.append([*run.program("ask_fm.py"), stage.asking.removesuffix("/mcp") + "/sse", prompt, lead])
                runs += asks * REPLICAS
            failed = [command for command in runs if not run.run(command)]
            failed += run.hear_all(stage, "library")
        finally:
            stage.stop()
    count = len(runs) + len(run.CLIENTS)
    print(f"{count - len(failed)} passed, {len(failed)} failed, through {REPLICAS} replicas")
    sys.exit("\n".join(["failed:", *(" ".join(command) for command in failed)]) if failed else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
