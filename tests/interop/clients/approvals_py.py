"""MCP Python SDK 2.x sees what is approved.

usage: python approvals_py.py URL STEPS legacy|modern
"""

from contextlib import asynccontextmanager

from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import PromptReference

from changed import Legacy
from check import CONNECT_MODES, check_era, must
from approvals import Peer, main


@asynccontextmanager
async def subscribe(url, mode):
    legacy = Legacy()
    async with legacy.http_client() as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode=CONNECT_MODES[mode], message_handler=legacy.message_handler) as client:
            check_era(mode, client.protocol_version)

            async def complete(name, argument, context):
                result = await client.complete(PromptReference(type="ref/prompt", name=name), argument, context)
                return result.completion.values

            peer = Peer(
                version=client.protocol_version,
                list_page=lambda cursor: client.list_prompts(cursor=cursor, cache_mode="bypass"),
                get=client.get_prompt,
                complete=complete,
                next_change=legacy.next_change,
            )
            if mode == "legacy":
                await legacy.up()
                yield peer
                return
            async with client.listen(prompts_list_changed=True) as stream:  # enters at its acknowledgement
                must(stream.honored.prompts_list_changed, f"honoured: {stream.honored}")
                peer.next_change = stream.__anext__
                yield peer


main("py", subscribe)
