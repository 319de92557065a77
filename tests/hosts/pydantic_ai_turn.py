"""One turn of a Pydantic AI agent with its test model, which calls a tool if one is named.

usage: python pydantic_ai_turn.py URL [TOOL] | COMMAND ARGUMENT…
"""

import asyncio
import sys

from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset, StdioTransport
from pydantic_ai.models.test import TestModel


async def main(first, *rest):
    is_url = first.startswith("http")
    target, tools = (first, list(rest)) if is_url else (StdioTransport(first, list(rest)), [])
    agent = Agent(TestModel(call_tools=tools), toolsets=[MCPToolset(target)])
    async with agent:
        print((await agent.run("hello")).output)


asyncio.run(main(*sys.argv[1:]))
