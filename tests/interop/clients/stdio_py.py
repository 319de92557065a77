"""MCP Python SDK 2.x with the server as its child.

usage: python stdio_py.py expect.json [legacy|modern|auto] -- COMMAND ARGS...
"""

from time import monotonic

from mcp import Client, StdioServerParameters

from check import CONNECT_MODES, main_stdio, must
from py_adapter import check_client

GRACE = 2  # seconds; then the SDK kills a server that has not ended by itself


async def body(command, expect, mode):
    server = StdioServerParameters(command=command[0], args=command[1:])
    errors = []

    async def note(message):  # the SDK passes over what it cannot read
        if isinstance(message, Exception):
            errors.append(str(message).splitlines()[0])

    async with Client(server, mode=CONNECT_MODES[mode], message_handler=note) as client:
        line = await check_client(client, expect, mode)
        must(not errors, f"what is no message came on the server's output: {errors}")
        start = monotonic()
    must(monotonic() - start < GRACE, "the server did not end when its input did")
    return line


main_stdio("stdio py", body)
