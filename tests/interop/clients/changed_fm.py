"""FastMCP 4.x client hears of a change.

usage: python changed_fm.py URL NAME legacy|modern
"""

from contextlib import asynccontextmanager

from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from mcp.client.subscriptions import listen

from changed import Legacy, main
from check import CONNECT_MODES, check_era, must


@asynccontextmanager
async def subscribe(url, mode):
    heard = Legacy()
    transport = StreamableHttpTransport(url, httpx_client_factory=heard.http_client)
    async with Client(transport, mode=CONNECT_MODES[mode], message_handler=heard.message_handler) as client:
        check_era(mode, client.protocol_version)
        list_page = lambda cursor: client.list_prompts_mcp(cursor=cursor)
        if mode == "legacy":
            await heard.up()
            yield list_page, heard.next_change
            return
        # FastMCP has no listen() of its own. What arrives on the SDK's stream also reaches the
        # message handler, and only there has FastMCP's cache been emptied before.
        async with listen(client.session, prompts_list_changed=True) as stream:
            must(stream.honored.prompts_list_changed, f"honoured: {stream.honored}")
            yield list_page, heard.next_change


main("fm", subscribe)
