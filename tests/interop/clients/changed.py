""" "Hears of a change": what every Python client does with its subscription (see `main`)."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
from mcp_types import PromptListChangedNotification

from check import Mismatch, describe, must

PATIENCE = 30  # seconds


class Legacy:
    """Where a legacy session hears of changes: on the stream the SDK opens by GET after initialize,
    without telling anybody when it is open."""

    def __init__(self) -> None:
        self._opened: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._changes: asyncio.Queue[None] = asyncio.Queue()

    async def message_handler(self, message: Any) -> None:
        if isinstance(message, PromptListChangedNotification):
            self._changes.put_nowait(None)

    def http_client(self, **options: Any) -> httpx2.AsyncClient:
        timeout = httpx2.Timeout(PATIENCE)
        return httpx2.AsyncClient(**{"timeout": timeout, **options}, event_hooks={"response": [self._answered]})

    async def _answered(self, response: httpx2.Response) -> None:
        if response.request.method == "GET" and not self._opened.done():
            self._opened.set_result(response.status_code)

    async def up(self) -> None:
        status = await self._opened
        must(status == 200, f"GET stream: HTTP {status}")

    async def next_change(self) -> None:
        await self._changes.get()


ListPage = Callable[[str | None], Awaitable[Any]]
NextChange = Callable[[], Awaitable[Any]]
Subscribe = Callable[[str, str], AbstractAsyncContextManager[tuple[ListPage, NextChange]]]


async def names(list_page: ListPage) -> list[str]:
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await list_page(cursor)
        found += [prompt.name for prompt in page.prompts]
        cursor = page.next_cursor
        if cursor is None:
            return found


async def hear(subscribe: Subscribe, url: str, name: str, mode: str) -> int:
    """Returns how many notifications it took."""
    count = 0
    try:
        async with asyncio.timeout(PATIENCE), subscribe(url, mode) as (list_page, next_change):
            must(name not in await names(list_page), f"{name} is listed before the change")
            print("ready", flush=True)
            while True:
                await next_change()
                count += 1
                if name in await names(list_page):
                    return count
    except TimeoutError:
        raise Mismatch(f"no {name} within {PATIENCE} s; {count} notifications") from None


def main(label: str, subscribe: Subscribe) -> None:
    """argv: URL NAME legacy|modern. `subscribe(url, mode)` enters once the subscription is up.

    Prints `ready` once a change would be heard, and succeeds when NAME, not listed before, is listed
    after a notification.
    """
    if len(sys.argv) != 4 or sys.argv[3] not in ("legacy", "modern"):
        sys.exit(f"usage: {label} URL NAME legacy|modern")
    url, name, mode = sys.argv[1:]
    try:
        count = asyncio.run(hear(subscribe, url, name, mode))
    except Exception as error:
        sys.exit(f"FAIL changed {label}-{mode}: {describe(error)}")
    print(f"ok changed {label}-{mode} notifications={count}")
