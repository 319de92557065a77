"""Sessions of LiteLLM whose client closes the connection as soon as it has read the result of `initialize`.

At /mcp, not at /mcp/, its route cancels what still writes the stream, and the session that it has just announced
is dropped. Later requests with its id are served without a session, so nothing that needs one works: no question
reaches the client.
"""

import json
import re
import socket

TRIES = 20
SAID = "Stripping stale header"  # for each request with the id of a session that is gone


def post(port, path, body, *headers, until=None):
    """The response, or its beginning up to `until`."""
    content = json.dumps({"jsonrpc": "2.0", **body})
    lines = [
        f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Connection: close", "Content-Type: application/json",
        "Accept: application/json, text/event-stream", f"Content-Length: {len(content)}", *headers, "", content]
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.sendall("\r\n".join(lines).encode())
        received = b""
        while (until is None or until not in received) and (more := connection.recv(65536)):
            received += more
    return received.decode(errors="replace")


def lost(peer, path, until):
    """How many of the sessions are unknown to the next request."""
    before = peer.log.read_text().count(SAID)
    caller = [f"{name}: {value}" for name, value in peer.caller.items()]
    client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "early", "version": "1"}}
    for _ in range(TRIES):
        opened = post(peer.port, path, {"id": 1, "method": "initialize", "params": client}, *caller, until=until)
        session = re.search(r"mcp-session-id: \S+", opened, re.IGNORECASE).group(0)
        post(peer.port, path, {"id": 2, "method": "ping"}, *caller, session, "MCP-Protocol-Version: 2025-11-25")
    return peer.log.read_text().count(SAID) - before


def sessions(peer):
    cases = {
        "/mcp": ("/mcp", b"protocolVersion"), "/mcp/": ("/mcp/", b"protocolVersion"), "/mcp read to its end": ("/mcp", None)}
    counts = {name: lost(peer, *case) for name, case in cases.items()}
    return "; ".join(f"{name}: {'some lost' if count else 'all kept'}" for name, count in counts.items())
