"""A prompt server built with FastMCP that lets in whom an authorization server has signed in.

usage: python fastmcp_server.py ISSUER SCOPE     (prints "listening: URL")
"""

import asyncio
import socket
import sys
from contextlib import suppress

from fastmcp import FastMCP
from fastmcp.server.auth import RemoteAuthProvider
from fastmcp.server.auth.providers.jwt import JWTVerifier
from pydantic import AnyHttpUrl


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
        return "Write the minutes."

    return mcp


async def serve(issuer, scope):
    listener = socket.create_server(("127.0.0.1", 0))
    base = "http://{}:{}".format(*listener.getsockname())
    mcp = server(issuer, scope, base)
    print(f"listening: {base}/mcp", flush=True)
    await mcp.run_http_async(show_banner=False, log_level="warning", sockets=[listener])


with suppress(KeyboardInterrupt):
    asyncio.run(serve(*sys.argv[1:]))
