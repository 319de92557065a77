"""FastMCP 4.x client sees what is approved.

usage: python approvals_fm.py URL STEPS legacy|modern
"""

from contextlib import asynccontextmanager

from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from mcp.client.subscriptions import listen
from mcp_types import PromptReference

from changed import Legacy
from check import CONNECT_MODES, check_era, must
from approvals import Peer, main


@asynccontextmanager
async def subscribe(url, mode):
    heard = Legacy()
    transport = StreamableHttpTransport(url, httpx_client_factory=heard.http_client)
    async with Client(transport, mode=CONNECT_MODES[mode], message_handler=heard.message_handler) as client:
        check_era(mode, client.protocol_version)

        async def complete(name, argument, context):
            result = await client.complete(PromptReference(type="ref/prompt", name=name), argument, context)
            return result.values

        peer = Peer(
            version=client.protocol_version,
            list_page=lambda cursor: client.list_prompts_mcp(cursor=cursor),  # it caches only when told to
            get=client.get_prompt,
            complete=complete,
            next_change=heard.next_change,
        )
        if mode == "legacy":
            await heard.up()
            yield peer
            return
        # As in changed_fm.py: what arrives on the SDK's stream also reaches the message handler.
        async with listen(client.session, prompts_list_changed=True) as stream:
            must(stream.honored.prompts_list_changed, f"honoured: {stream.honored}")
            yield peer


main("fm", subscribe)
