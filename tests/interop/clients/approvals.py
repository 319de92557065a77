""" "Sees what is approved": what every Python client does while that changes (see `main`)."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from mcp import MCPError

from check import Mismatch, check, describe, must

PATIENCE = 30  # seconds for one step
POLL = 0.2  # seconds between two looks at what no notification tells of


@dataclass
class Peer:
    """A client that hears."""

    version: str
    list_page: Callable[[str | None], Awaitable[Any]]  # from the gateway, not from a cache
    get: Callable[[str, dict[str, str] | None], Awaitable[Any]]
    complete: Callable[[str, dict[str, str], dict[str, str] | None], Awaitable[list[str]]]
    next_change: Callable[[], Awaitable[Any]]


class Heard:
    """Counts notifications."""

    def __init__(self, next_change: Callable[[], Awaitable[Any]]) -> None:
        self.count = 0
        self._more = asyncio.Event()
        self._task = asyncio.create_task(self._hear(next_change))

    async def _hear(self, next_change: Callable[[], Awaitable[Any]]) -> None:
        try:
            while True:
                await next_change()
                self.count += 1
                self._more.set()
        finally:
            self._more.set()

    async def beyond(self, count: int) -> int:
        """Returns the count once it is larger."""
        while self.count <= count:
            must(not self._task.done(), f"the stream ended after {self.count} notifications")
            self._more.clear()
            await self._more.wait()
        return self.count

    def stop(self) -> None:
        self._task.cancel()


def shown(prompt: Any) -> dict[str, Any]:
    """What the expectations say of a prompt."""
    return {
        "name": prompt.name,
        "title": prompt.title,
        "description": prompt.description,
        "arguments": [[argument.name, bool(argument.required)] for argument in prompt.arguments or []],
        "choices": (prompt.meta or {}).get("choices"),
    }


async def look(peer: Peer, expect: dict[str, Any]) -> None:
    """The checks of check.py, of what is shown and of the reasons of errors."""
    prompts: list[Any] = []
    reasons: list[Any] = []

    async def list_page(cursor: str | None) -> Any:
        page = await peer.list_page(cursor)
        prompts.extend(page.prompts)
        return page

    async def get(name: str, arguments: dict[str, str] | None) -> Any:
        try:
            return await peer.get(name, arguments)
        except MCPError as error:
            reasons.append((error.data or {}).get("reason"))
            raise

    await check(peer.version, expect, list_page, get, peer.complete)
    got, want = [shown(prompt) for prompt in prompts], expect["prompts"]
    must(got == want, f"prompts: got {got}, want {want}")
    wanted = [error["reason"] for error in expect["errors"]]
    must(reasons == wanted, f"reasons: got {reasons}, want {wanted}")


async def see(peer: Peer, heard: Heard, before: int, expect: dict[str, Any]) -> None:
    """Looks until the step is seen, after each notification since `before`."""
    problem = None
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                if expect["heard"]:
                    before = await heard.beyond(before)
                try:
                    return await look(peer, expect)
                except (Mismatch, MCPError) as error:
                    problem = error
                if not expect["heard"]:
                    await asyncio.sleep(POLL)
    except TimeoutError:
        seen = f"{heard.count} notifications; at last: {describe(problem) if problem else 'nothing'}"
        raise Mismatch(f"not seen within {PATIENCE} s; {seen}") from None


Subscribe = Callable[[str, str], AbstractAsyncContextManager[Peer]]


async def follow(subscribe: Subscribe, url: str, steps: list[dict[str, Any]], mode: str) -> str:
    async with subscribe(url, mode) as peer:
        heard = Heard(peer.next_change)
        before = 0
        for number, expect in enumerate(steps):
            try:
                await see(peer, heard, before, expect)
            except Mismatch as error:
                raise Mismatch(f"step {number}: {error}") from None
            before = heard.count
            print(f"seen {number}", flush=True)  # which brings the next change
        heard.stop()
        due = sum(expect["heard"] for expect in steps)
        must(heard.count == due, f"{heard.count} notifications, where {due} changes can be seen")
        return f"{peer.version} steps={len(steps)} notifications={heard.count}"


def main(label: str, subscribe: Subscribe) -> None:
    """argv: URL STEPS legacy|modern. `subscribe(url, mode)` enters once the subscription is up.

    STEPS are those of approvals.py. Prints `seen N` once step N is seen.
    """
    if len(sys.argv) != 4 or sys.argv[3] not in ("legacy", "modern"):
        sys.exit(f"usage: {label} URL STEPS legacy|modern")
    url, file, mode = sys.argv[1:]
    with open(file, encoding="utf-8") as text:
        steps = json.load(text)
    try:
        line = asyncio.run(follow(subscribe, url, steps, mode))
    except Exception as error:
        sys.exit(f"FAIL approvals {label}-{mode}: {describe(error)}")
    print(f"ok approvals {label}-{mode} {line}")
