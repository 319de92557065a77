"""MCP Python SDK 2.x over Streamable HTTP.

usage: python py.py URL expect.json [legacy|modern|auto]
"""

from mcp import Client
from mcp_types import PromptReference

from check import CONNECT_MODES, check, check_era, main


async def body(url, expect, mode):
    async with Client(url, mode=CONNECT_MODES[mode]) as client:
        check_era(mode, client.protocol_version)

        async def complete(name, argument, context):
            result = await client.complete(PromptReference(type="ref/prompt", name=name), argument, context)
            return result.completion.values

        return await check(
            client.protocol_version,
            expect,
            lambda cursor: client.list_prompts(cursor=cursor),
            client.get_prompt,
            complete,
        )


main("py", body)
