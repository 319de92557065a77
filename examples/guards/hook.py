"""The part that all hooks of guards share: a server that verifies the signature of each message.

The message and the answers are described in docs/guards.md#hooks.
"""

import base64
import hashlib
import hmac
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = base64.b64decode(os.environ["GUARD_SECRET"].removeprefix("whsec_"))
MAX_BODY = 2 << 20  # The gateway sends texts of at most 1 MiB.
TOLERANCE = 300  # Seconds by which the clocks may differ; an older message is a replay.
NO_TEXT = {"blob", "data", "mimeType", "role", "type", "uri"}  # Members of results.


def is_signed(headers, body):
    """As https://www.standardwebhooks.com says."""
    at = headers.get("webhook-timestamp", "")
    signed = f"{headers.get('webhook-id', '')}.{at}.".encode() + body
    expected = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    is_recent = at.isdigit() and abs(time.time() - int(at)) <= TOLERANCE
    return is_recent and hmac.compare_digest(f"v1,{expected}", headers.get("webhook-signature", ""))


def texts(message):
    """Yields the texts of the arguments or the result with their pointers (RFC 6901)."""
    left_out = NO_TEXT if "result" in message else set()
    values = [("", message.get("result", message.get("arguments")))]
    for pointer, value in values:
        if isinstance(value, str):
            yield pointer, value
        members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, member in members:
            if key not in left_out:
                values.append((f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}", member))


def serve(decide):
    """Answers each signed message with what `decide` returns for it."""

    class Hook(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            length = int(self.headers.get("content-length", 0))
            body = self.rfile.read(min(length, MAX_BODY))
            is_accepted = length <= MAX_BODY and is_signed(self.headers, body)
            answer = json.dumps(decide(json.loads(body))) if is_accepted else ""
            self.send_response(200 if is_accepted else 401)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer.encode())))
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, *_):
            """Nothing: texts of calls do not belong in a log."""

    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if sys.argv[1:] else 8787), Hook)
    print(f"listening on {server.server_address[1]}", flush=True)
    server.serve_forever()
