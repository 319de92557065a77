"""The checks over a client of the MCP Python SDK 2.x, whatever it is connected by."""

from mcp_types import PromptReference

from check import check, check_era


async def check_client(client, expect, mode):
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
