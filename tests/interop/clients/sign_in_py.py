"""MCP Python SDK 2.x, whose caller has to sign in.

usage: python sign_in_py.py URL KEY PROMPT legacy|modern elicits|plain
"""

from contextlib import asynccontextmanager

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from sign_in import main, visit


async def answer(context, params):
    return await visit(params)


@asynccontextmanager
async def connect(url, key, mode, elicits):
    options = {"elicitation_callback": answer} if elicits else {}
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}) as http:
        async with Client(streamable_http_client(url, http_client=http), mode=mode, **options) as client:
            yield client


main(connect)
