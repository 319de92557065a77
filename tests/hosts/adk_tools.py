"""Prints `tools: ` and the names of the tools that Google ADK finds, as JSON.

usage: python adk_tools.py URL | COMMAND ARGUMENT…
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
    print("tools:", json.dumps([tool.name for tool in await toolset.get_tools()]), flush=True)
    await toolset.close()


asyncio.run(main(*sys.argv[1:]))
