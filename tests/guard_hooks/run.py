"""Runs the hooks of examples/guards behind a real gateway: Presidio as it is, and a moderation model that is scripted.

usage: tests/guard_hooks/run.py PROMPTGATE
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import urllib.request
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/guards"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
REVISION = "2026-07-28"


class Model(BaseHTTPRequestHandler):
    """Flags insults."""

    def do_POST(self):
        texts = json.loads(self.rfile.read(int(self.headers["content-length"])))["input"]
        results = [{"flagged": "rude" in text, "categories": {"harassment/threatening": "rude" in text}} for text in texts]
        answer = json.dumps({"results": results}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def started(stack, command, environment, begins):
    """Starts a process, and returns the line of its output that begins like this."""
    output = stack.enter_context(
        subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    )
    stack.callback(output.terminate)
    for line in output.stdout:
        if begins in line:
            threading.Thread(target=output.stdout.read, daemon=True).start()
            return line
    raise SystemExit(f"{command} has ended without {begins!r}")


def get(port, text):
    meta = {
        "io.modelcontextprotocol/protocolVersion": REVISION,
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "lib__note", "arguments": {"text": text}, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "prompts/get", "params": params}).encode()
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": REVISION,
        "mcp-method": "prompts/get",
        "mcp-name": "lib__note",
    }
    with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/mcp", body, headers)) as response:
        return json.loads(response.read().decode().split("data: ")[-1])


def unsigned(port):
    """Returns the status for a message without a signature."""
    try:
        urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/", b"{}"))
    except urllib.error.HTTPError as error:
        return error.code
    return 200


def guard(name, port):
    http = f'{{ url = "http://127.0.0.1:{port}/", secret = {{ value = "{SECRET}" }}, timeout = "20s" }}'
    return f'[[guards]]\nname = "{name}"\non = ["arguments"]\nmode = "enforce"\nhttp = {http}\n'


def main(promptgate):
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "lib").mkdir()
        (folder / "lib/note.md").write_text("---\nname: note\ndescription: d\narguments:\n  - name: text\n---\n{{ text }}\n")
        model = HTTPServer(("127.0.0.1", 0), Model)
        threading.Thread(target=model.serve_forever, daemon=True).start()
        environment = {
            "GUARD_SECRET": SECRET,
            "GUARD_MODEL": "blank",
            "OPENAI_API_KEY": "k",
            "MODERATION_URL": f"http://127.0.0.1:{model.server_port}/v1/moderations",
        }
        ports = {}
        for name in ["presidio", "moderation"]:
            line = started(stack, [sys.executable, EXAMPLES / f"{name}.py", "0"], environment, "listening on ")
            ports[name] = int(line.rsplit(" ", 1)[1])
            assert unsigned(ports[name]) == 401, name
        toml = '[server]\nlisten = "127.0.0.1:0"\n' + "".join(guard(name, port) for name, port in ports.items())
        toml += '[upstreams.lib]\ntransport = "library"\npath = "lib"\n'
        (folder / "gateway.toml").write_text(toml)
        command = [promptgate, "serve", "--config", folder / "gateway.toml"]
        line = started(stack, command, {"NO_COLOR": "1"}, " listens on http://")
        port = int(line.split("http://127.0.0.1:", 1)[1].split("/")[0])
        served = get(port, "mail ann@example.com about 4111 1111 1111 1111")
        text = served["result"]["messages"][0]["content"]["text"]
        assert text.strip() == "mail <EMAIL_ADDRESS> about <CREDIT_CARD>", served
        refused = get(port, "rude words")["error"]
        assert refused["data"]["code"] == "harassment_threatening", refused
        assert get(port, "kind words")["result"]["messages"][0]["content"]["text"].strip() == "kind words"
    print("Presidio and a moderation model decide on texts of the gateway")


main(Path(sys.argv[1]).resolve())
