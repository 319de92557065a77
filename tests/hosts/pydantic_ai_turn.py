"""One turn of a Pydantic AI agent with its test model, which calls find_prompt where there is one.

usage: python pydantic_ai_turn.py URL | COMMAND ARGUMENT…
"""

import asyncio
import sys

from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset, StdioTransport
from pydantic_ai.models.test import TestModel


async def main(first, *rest):
    target = first if first.startswith("http") else StdioTransport(first, list(rest))
    tools = ["find_prompt"] if first.endswith("/pair") else []
    agent = Agent(TestModel(call_tools=tools), toolsets=[MCPToolset(target)])
    async with agent:
        print((await agent.run("hello")).output)


asyncio.run(main(*sys.argv[1:]))
