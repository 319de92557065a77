"""A relay before a mock server that has a tool and no prompts: it offers the tool as a prompt, and carries its
event streams line by line, so that the suite can test how the gateway resumes them."""

import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

CARRIED = ("Content-Type", "Mcp-Session-Id")


def as_prompt(text):
    """The message of the mock server as one about prompts."""
    message = json.loads(text)
    result = message.get("result", {})
    if "content" in result:
        message["result"] = {"messages": [{"role": "user", "content": content} for content in result["content"]]}
    if "capabilities" in result:
        result["capabilities"] = {"prompts": {}}
    return json.dumps(message)


def handler(target, tool):
    class Relay(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            self.forward(b"")

        def do_DELETE(self):
            self.answer(200, {}, b"")

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            message = json.loads(body)
            if message.get("method") == "prompts/list":
                result = {"prompts": [{"name": tool}]}
                answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
                return self.answer(200, {"Content-Type": "application/json"}, json.dumps(answer).encode())
            if message.get("method") == "prompts/get":
                message["method"] = "tools/call"
            self.forward(json.dumps(message).encode())

        def forward(self, body):
            connection = http.client.HTTPConnection(target.hostname, target.port)
            headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "content-length")}
            connection.request(self.command, target.path or "/", body or None, headers)
            answer = connection.getresponse()
            kept = {name: answer.headers[name] for name in CARRIED if answer.headers[name]}
            if kept.get("Content-Type") == "text/event-stream":
                return self.stream(answer, kept)
            text = answer.read().decode()
            self.answer(answer.status, kept, (as_prompt(text) if text else "").encode())

        def answer(self, status, headers, body):
            self.send_response_only(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def stream(self, answer, headers):
            self.close_connection = True
            self.send_response_only(answer.status)
            for name, value in {**headers, "Connection": "close"}.items():
                self.send_header(name, value)
            self.end_headers()
            while line := answer.readline():
                name, _, value = line.decode().partition(": ")
                is_message = name == "data" and value.strip()
                self.wfile.write(f"data: {as_prompt(value)}\n".encode() if is_message else line)
                self.wfile.flush()

    return Relay


def start(url, tool):
    """The URL of a relay before the mock server at `url`; it runs until the process ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(urlsplit(url), tool))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/mcp"
