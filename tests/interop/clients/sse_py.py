"""MCP Python SDK 2.x over HTTP+SSE, the transport of 2024-11-05.

usage: python sse_py.py URL expect.json legacy|modern|auto     (URL is the stream's)

(2026-07-28 knows no such transport, but the SDK speaks it over this one to a server that does.)
"""

from mcp import Client
from mcp.client.sse import sse_client

from check import CONNECT_MODES, main
from py_adapter import check_client


async def body(url, expect, mode):
    async with Client(sse_client(url), mode=CONNECT_MODES[mode]) as client:
        return await check_client(client, expect, mode)


main("sse py", body)
