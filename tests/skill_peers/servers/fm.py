"""FastMCP as a server of skills: the folders below one that is given, which it reads for each request.

usage: python fm.py FOLDER     (Streamable HTTP on a free port, which it prints; the path is /mcp)
"""

import asyncio
import signal
import socket
import sys

from fastmcp import FastMCP
from fastmcp.skills.provider import SkillsDirectoryProvider

server = FastMCP("fastmcp-skills", providers=[SkillsDirectoryProvider(sys.argv[1], reload=True)])


async def main():
    listener = socket.create_server(("127.0.0.1", 0))
    print("listening: {}:{}".format(*listener.getsockname()), flush=True)
    await server.run_http_async(show_banner=False, log_level="warning", sockets=[listener])


# The other servers are told of a change, and say that they know.
signal.signal(signal.SIGHUP, lambda *_: print("reloaded", flush=True))
asyncio.run(main())
