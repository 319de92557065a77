"""MCP Python SDK 2.x over Streamable HTTP.

usage: python py.py URL expect.json [legacy|modern|auto]
"""

from mcp import Client

from check import CONNECT_MODES, main
from py_adapter import check_client


async def body(url, expect, mode):
    async with Client(url, mode=CONNECT_MODES[mode]) as client:
        return await check_client(client, expect, mode)


main("py", body)
