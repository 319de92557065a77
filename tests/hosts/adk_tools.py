"""Prints `tools: ` and the names of the tools that Google ADK finds, as JSON, and what a call of one says.

usage: python adk_tools.py URL [TOOL ARGUMENTS] | COMMAND ARGUMENT…
"""

import asyncio
import json
import sys

from google.adk.tools.mcp_tool.mcp_session_manager import StdioConnectionParams, StreamableHTTPConnectionParams
from google.adk.tools.mcp_tool.mcp_toolset import McpToolset
from mcp import StdioServerParameters


async def main(first, *rest):
    if first.startswith("http"):
        params = StreamableHTTPConnectionParams(url=first)
    else:
        params = StdioConnectionParams(server_params=StdioServerParameters(command=first, args=list(rest)), timeout=30)
    toolset = McpToolset(connection_params=params)
    tools = {tool.name: tool for tool in await toolset.get_tools()}
    print("tools:", json.dumps([*tools]), flush=True)
    if first.startswith("http") and rest:
        print(await tools[rest[0]].run_async(args=json.loads(rest[1]), tool_context=None), flush=True)
    await toolset.close()


asyncio.run(main(*sys.argv[1:]))
