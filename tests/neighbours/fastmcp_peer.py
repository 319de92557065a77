"""FastMCP as a gateway.

usage: python fastmcp_peer.py proxy|mount PORT CONFIG     (CONFIG: a file with `mcpServers`; the path is /mcp)
"""

import json
import pathlib
import sys

from fastmcp import FastMCP
from fastmcp.server import create_proxy

kind, port, config = sys.argv[1:]
gateway = create_proxy(json.loads(pathlib.Path(config).read_text()))
if kind == "mount":
    outer = FastMCP("outer")
    outer.mount(gateway, namespace="prompts")
    gateway = outer
gateway.run(transport="http", host="127.0.0.1", port=int(port), show_banner=False, log_level="warning")
