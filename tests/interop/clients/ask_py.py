"""MCP Python SDK 2.x answers what a prompt asks.

usage: python ask_py.py URL PROMPT LEAD legacy|modern

PROMPT must ask for QUESTION, with LEAD (which may be empty) before it, and use the answer; and whoever
cannot be asked must get an error.
"""

import asyncio
import sys

from mcp import Client, MCPError
from mcp_types import INVALID_PARAMS, MISSING_REQUIRED_CLIENT_CAPABILITY, ElicitResult

from check import CONNECT_MODES, Mismatch, check_era, describe, must

PATIENCE = 30  # seconds
QUESTION = "What context should the prompt use?"
TEXT = "Prompt with context: blue"


async def answered(url, prompt, lead, mode):
    asked = []

    async def answer(context, params):
        asked.append(params)
        return ElicitResult(action="accept", content={"context": "blue"})

    # With a callback, the SDK declares that its user can be asked.
    async with Client(url, mode=CONNECT_MODES[mode], elicitation_callback=answer) as client:
        check_era(mode, client.protocol_version)
        result = await client.get_prompt(prompt)
    must(len(asked) == 1, f"asked {len(asked)} times, want once")
    message, schema = asked[0].message, asked[0].requested_schema
    must(message.startswith(lead) and message.endswith(QUESTION), f"asked {message!r}, want {f'{lead}…{QUESTION}'!r}")
    must(schema["properties"]["context"]["type"] == "string", f"schema: {schema}")
    got = [getattr(one.content, "text", one.content) for one in result.messages]
    must(got == [TEXT], f"answered with {got}, want {[TEXT]}")


async def refused(url, prompt, mode):
    async with Client(url, mode=CONNECT_MODES[mode]) as client:
        check_era(mode, client.protocol_version)
        stray = []
        dispatch = client.session.dispatch_input_request

        async def count(context, request):  # both eras come by here
            stray.append(request)
            return await dispatch(context, request)

        client.session.dispatch_input_request = count
        code = "no error"
        try:
            await client.get_prompt(prompt)
        except MCPError as error:
            code = error.code
    must(not stray, "asked who cannot be asked")
    # A legacy upstream has no code of its own for it.
    codes = [MISSING_REQUIRED_CLIENT_CAPABILITY, INVALID_PARAMS]
    right = code in codes if mode == "modern" else code != "no error"
    must(right, f"who cannot be asked got {code}")
    return code


async def body(url, prompt, lead, mode):
    try:
        async with asyncio.timeout(PATIENCE):
            await answered(url, prompt, lead, mode)
            return await refused(url, prompt, mode)
    except TimeoutError:
        raise Mismatch(f"not done within {PATIENCE} s") from None


if len(sys.argv) != 5 or sys.argv[4] not in ("legacy", "modern"):
    sys.exit("usage: ask_py.py URL PROMPT LEAD legacy|modern")
try:
    code = asyncio.run(body(*sys.argv[1:]))
except Exception as error:
    sys.exit(f"FAIL ask py-{sys.argv[4]}: {describe(error)}")
print(f"ok ask py-{sys.argv[4]} refused={code}")
