"""FastMCP 4.x client over Streamable HTTP.

usage: python fm.py URL expect.json [legacy|modern|auto]
"""

from fastmcp import Client
from mcp_types import PromptReference

from check import CONNECT_MODES, check, check_era, main


async def body(url, expect, mode):
    async with Client(url, mode=CONNECT_MODES[mode]) as client:
        check_era(mode, client.protocol_version)

        async def complete(name, argument, context):
            result = await client.complete(PromptReference(type="ref/prompt", name=name), argument, context)
            return result.values

        return await check(
            client.protocol_version,
            expect,
            # list_prompts() walks every page itself; list_prompts_mcp() gets one.
            lambda cursor: client.list_prompts_mcp(cursor=cursor),
            client.get_prompt,
            complete,
        )


main("fm", body)
