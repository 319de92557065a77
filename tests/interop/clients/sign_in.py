"""The steps of Python clients whose caller has to sign in, over a small adapter (see `main`)."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from mcp import MCPError, UrlElicitationRequiredError
from mcp_types import URL_ELICITATION_REQUIRED, ElicitRequestURLParams, ElicitResult

from check import CONNECT_MODES, check_era, describe, must

PATIENCE = 60  # seconds


async def tell(**asked: Any) -> None:
    """Prints where the caller is asked to sign in, and waits for a line that says that it has."""
    print(json.dumps(asked), flush=True)
    must(await asyncio.to_thread(sys.stdin.readline) == "signed in\n", "nobody has signed in")


async def visit(params: Any) -> ElicitResult:
    """The answer to an elicitation."""
    must(isinstance(params, ElicitRequestURLParams), f"asked for {params}")
    await tell(url=params.url, message=params.message)
    return ElicitResult(action="accept")


async def get(client: Any, prompt: str) -> Any:
    """Gets the prompt, a second time after an error that names the page."""
    try:
        return await client.get_prompt(prompt)
    except MCPError as error:
        if error.code == URL_ELICITATION_REQUIRED:
            (asked,) = UrlElicitationRequiredError.from_error(error.error).elicitations
            await tell(code=error.code, url=asked.url, message=asked.message)
        else:
            await tell(code=error.code, url=error.data["url"], message=error.message)
    return await client.get_prompt(prompt)


Connect = Callable[..., Any]


async def body(connect: Connect, url: str, key: str, prompt: str, mode: str, elicits: bool) -> None:
    async with asyncio.timeout(PATIENCE), connect(url, key, CONNECT_MODES[mode], elicits) as client:
        check_era(mode, client.protocol_version)
        result = await get(client, prompt)
    print(json.dumps({"got": [one.content.text for one in result.messages]}), flush=True)


def main(connect: Connect) -> None:
    """argv: URL KEY PROMPT legacy|modern elicits|plain

    `connect(url, key, mode, elicits)` is a client in a context manager. One that elicits answers by
    `visit`; another one declares nothing.

    Prints the answer to the get as JSON: `url` and `message`, and the `code` of an error. Reads a
    line, `signed in`, and prints the texts of the prompt as `got`.
    """
    url, key, prompt, mode, elicits = sys.argv[1:]
    try:
        asyncio.run(body(connect, url, key, prompt, mode, {"elicits": True, "plain": False}[elicits]))
    except Exception as error:
        sys.exit(f"FAIL sign-in: {describe(error)}")
