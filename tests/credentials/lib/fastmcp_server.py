"""A prompt server built with FastMCP that lets in whom an authorization server has signed in.

usage: python fastmcp_server.py ISSUER SCOPE     (prints "listening: URL", and "heard: ..." for all that is sent to it)
"""

import asyncio
import json
import socket
import sys
from contextlib import suppress

from fastmcp import FastMCP
from fastmcp.server.auth import RemoteAuthProvider
from fastmcp.server.auth.providers.jwt import JWTVerifier
from fastmcp.server.dependencies import get_access_token
from pydantic import AnyHttpUrl
from starlette.middleware import Middleware


def server(issuer, scope, base):
    verifier = JWTVerifier(jwks_uri=f"{issuer}/jwks", issuer=issuer, audience=f"{base}/mcp", required_scopes=[scope])
    auth = RemoteAuthProvider(token_verifier=verifier, authorization_servers=[AnyHttpUrl(issuer)], base_url=base)
    mcp = FastMCP("wiki", version="1.0.0", auth=auth)

    @mcp.prompt
    def onboarding() -> str:
        """For the first day"""
        return "Explain how we work."

    @mcp.prompt
    def minutes() -> str:
        """Of a meeting"""
        return f"Write the minutes for {get_access_token().claims['sub']}."

    return mcp


class Recorder:
    """Prints the requests."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        async def hear():
            message = await receive()
            note(message.get("body", b""))
            return message

        if scope["type"] == "http":
            note(scope["path"].encode(), scope["query_string"], *(part for pair in scope["headers"] for part in pair))
        await self.app(scope, hear, send)


def note(*parts):
    print("heard:", json.dumps([part.decode("latin-1") for part in parts]), flush=True)


async def serve(issuer, scope):
    listener = socket.create_server(("127.0.0.1", 0))
    base = "http://{}:{}".format(*listener.getsockname())
    mcp = server(issuer, scope, base)
    print(f"listening: {base}/mcp", flush=True)
    options = {"show_banner": False, "log_level": "warning", "middleware": [Middleware(Recorder)]}
    await mcp.run_http_async(sockets=[listener], **options)


with suppress(KeyboardInterrupt):
    asyncio.run(serve(*sys.argv[1:]))
