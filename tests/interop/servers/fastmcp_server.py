"""A prompt server built with FastMCP: nobody here wrote how it speaks.

usage: python fastmcp_server.py http PORT | sse PORT | stdio

Over HTTP it prints "listening: 127.0.0.1:PORT" (0: a free one); the endpoint is /mcp, or for the old
HTTP+SSE transport /sse. Whoever writes names to the file that TRIGGER_FILE names adds prompts of these
names while the server runs.

FastMCP 4 says nothing when prompts are added outside a request (although it declares listChanged to
legacy clients) and does not serve subscriptions/listen. Both are added here from the parts it and the
SDK under it offer; with SILENT=1 they are not, and only who lists again learns of a change.
"""

import asyncio
import os
import pathlib
import socket
import sys
from contextlib import asynccontextmanager, suppress

import mcp_types as types
from fastmcp import FastMCP
from fastmcp.prompts import Message, Prompt
from fastmcp.server.middleware import Middleware
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, PromptsListChanged

POLL = 0.1  # seconds


class Sessions(Middleware):
    """Remembers who initialized: the legacy clients."""

    def __init__(self):
        self.all = []

    async def on_initialize(self, context, call_next):
        self.all.append(context.fastmcp_context.session)
        return await call_next(context)


sessions = Sessions()
bus = InMemorySubscriptionBus()


@asynccontextmanager
async def lifespan(server):
    trigger = os.environ.get("TRIGGER_FILE")
    task = asyncio.create_task(follow(server, pathlib.Path(trigger))) if trigger else None
    yield
    if task:
        task.cancel()


async def follow(server, trigger):
    added = set()
    while True:
        new = set(trigger.read_text().split()) - added if trigger.exists() else set()
        for name in new:
            server.add_prompt(Prompt.from_function(lambda: "Here I am", name=name, description="Added later"))
        if new:
            added |= new
            await bus.publish(PromptsListChanged())
            for session in sessions.all:
                with suppress(Exception):  # it may have gone
                    await session.send_prompt_list_changed()
        await asyncio.sleep(POLL)


mcp = FastMCP("fastmcp-prompts", version="1.0.0", lifespan=lifespan)
if not os.environ.get("SILENT"):
    mcp.add_middleware(sessions)
    mcp._mcp_server.add_request_handler(
        "subscriptions/listen", types.SubscriptionsListenRequestParams, ListenHandler(bus)
    )


@mcp.prompt
def summarize(text: str, style: str = "plain") -> str:
    """Summarizes a text"""
    return f"Summarize in a {style} style: {text}"


@mcp.prompt
def dialogue() -> list[Message]:
    """Two messages"""
    return [Message("What is MCP?"), Message("A protocol.", role="assistant")]


async def serve_http(transport, port):
    listener = socket.create_server(("127.0.0.1", port))
    print("listening: {}:{}".format(*listener.getsockname()), flush=True)
    await mcp.run_http_async(transport=transport, show_banner=False, log_level="warning", sockets=[listener])


match sys.argv[1:]:
    case ["http" | "sse" as transport, port]:
        with suppress(KeyboardInterrupt):
            asyncio.run(serve_http(transport, int(port)))
    case ["stdio"]:
        mcp.run(transport="stdio", show_banner=False)
    case _:
        sys.exit("usage: fastmcp_server.py http PORT | sse PORT | stdio")
