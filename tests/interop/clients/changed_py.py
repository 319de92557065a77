"""MCP Python SDK 2.x hears of a change.

usage: python changed_py.py URL NAME legacy|modern
"""

from contextlib import asynccontextmanager

from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from changed import Legacy, main
from check import CONNECT_MODES, check_era, must


@asynccontextmanager
async def subscribe(url, mode):
    legacy = Legacy()
    async with legacy.http_client() as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode=CONNECT_MODES[mode], message_handler=legacy.message_handler) as client:
            check_era(mode, client.protocol_version)
            list_page = lambda cursor: client.list_prompts(cursor=cursor)
            if mode == "legacy":
                await legacy.up()
                yield list_page, legacy.next_change
                return
            async with client.listen(prompts_list_changed=True) as stream:  # enters at its acknowledgement
                must(stream.honored.prompts_list_changed, f"honoured: {stream.honored}")
                yield list_page, stream.__anext__


main("py", subscribe)
