"""FastMCP 4.x client over HTTP+SSE answers what a prompt asks.

usage: python ask_fm.py URL PROMPT LEAD     (URL is the stream's)
"""

import asyncio
import sys

from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import SSETransport

from check import describe, must

PATIENCE = 30  # seconds
QUESTION = "What context should the prompt use?"
TEXT = "Prompt with context: blue"


async def body(url, prompt, lead):
    asked = []

    async def answer(message, response_type, params, context):
        asked.append(message)
        return ElicitResult(action="accept", content={"context": "blue"})

    async with asyncio.timeout(PATIENCE), Client(SSETransport(url), elicitation_handler=answer) as client:
        result = await client.get_prompt(prompt)
    must(len(asked) == 1, f"asked {len(asked)} times, want once")
    must(asked[0].startswith(lead) and asked[0].endswith(QUESTION), f"asked {asked[0]!r}")
    got = [getattr(one.content, "text", one.content) for one in result.messages]
    must(got == [TEXT], f"answered with {got}, want {[TEXT]}")


try:
    asyncio.run(body(*sys.argv[1:]))
except Exception as error:
    sys.exit(f"FAIL ask fm-sse: {describe(error)}")
print("ok ask fm-sse")
