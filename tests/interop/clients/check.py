"""The checks every Python client runs, over a small adapter (see `check`)."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from mcp import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

# `auto` (both libraries' default) probes server/discover, then falls back to
# initialize, so `modern` also has to check the outcome: see `check_era`.
CONNECT_MODES = {"legacy": "legacy", "modern": "auto", "auto": "auto"}


class Mismatch(Exception):
    pass


def must(condition: bool, message: str) -> None:
    if not condition:
        raise Mismatch(message)


def check_era(mode: str, version: str) -> None:
    era = "modern" if version in MODERN_PROTOCOL_VERSIONS else "legacy"
    must(mode in ("auto", era), f"negotiated {version} ({era}), want {mode}")


async def check(
    version: str,
    expect: dict[str, Any],
    list_page: Callable[[str | None], Awaitable[Any]],  # ONE page of prompts/list
    get: Callable[[str, dict[str, str] | None], Awaitable[Any]],
    complete: Callable[[str, dict[str, str], dict[str, str] | None], Awaitable[list[str]]],
) -> str:
    names: list[str] = []
    seen: set[str] = set()
    cursor: str | None = None
    pages = 0
    while True:
        page = await list_page(cursor)
        pages += 1
        names += [prompt.name for prompt in page.prompts]
        cursor = page.next_cursor
        if cursor is None:
            break
        must(cursor not in seen, f"prompts/list repeats the cursor {cursor}")
        seen.add(cursor)
    print(f"pages: {pages}")

    if "names" in expect:
        got, want = sorted(names), sorted(expect["names"])
        must(got == want, f"names: got {got}, want {want}")
    want_pages = expect.get("minPages", 1)
    must(pages >= want_pages, f"pages: got {pages}, want at least {want_pages}")

    gets = expect.get("gets", [])
    for entry in gets:
        name = entry["name"]
        result = await get(name, entry.get("arguments"))
        text = result.model_dump_json(by_alias=True, exclude_none=True)
        for part in entry.get("contains", []):
            must(part in text, f"get {name}: {part!r} not in {text}")
        count = len(result.messages)
        want_count = entry.get("messages", count)
        must(count == want_count, f"get {name}: {count} messages, want {want_count}")

    completions = expect.get("completions", [])
    for entry in completions:
        argument = {"name": entry["argument"], "value": entry["value"]}
        values = await complete(entry["name"], argument, entry.get("context"))
        must(values == entry["values"], f"complete {entry['name']} {argument}: got {values}, want {entry['values']}")

    errors = expect.get("errors", [])
    for entry in errors:
        got_code: Any = "no error"
        try:
            await get(entry["name"], entry.get("arguments"))
        except MCPError as error:
            got_code = error.code
        must(got_code == entry["code"], f"error {entry['name']}: got {got_code}, want {entry['code']}")

    return (
        f"{version} prompts={len(names)} pages={pages} gets={len(gets)} "
        f"completions={len(completions)} errors={len(errors)}"
    )


def describe(error: BaseException) -> str:
    """Flatten exception groups (anyio task groups wrap what is raised inside them)."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(describe(inner) for inner in error.exceptions)
    return str(error) if isinstance(error, Mismatch) else f"{type(error).__name__}: {error}"


Body = Callable[[Any, dict[str, Any], str], Awaitable[str]]


def main(label: str, body: Body) -> None:
    """argv: URL expect.json [legacy|modern|auto] (default modern). `body(url, expect, mode)`."""
    if len(sys.argv) not in (3, 4) or sys.argv[3:] and sys.argv[3] not in CONNECT_MODES:
        sys.exit(f"usage: {label} URL expect.json [legacy|modern|auto]")
    run(label, body, *sys.argv[1:])


def main_stdio(label: str, body: Body) -> None:
    """argv: expect.json [legacy|modern|auto] -- COMMAND ARGS... The same with `body([COMMAND, ARGS...], expect, mode)`."""
    dashes = sys.argv.index("--") if "--" in sys.argv else 0
    options, command = sys.argv[1:dashes], sys.argv[dashes + 1 :]
    if len(options) not in (1, 2) or options[1:] and options[1] not in CONNECT_MODES or not command:
        sys.exit(f"usage: {label} expect.json [legacy|modern|auto] -- COMMAND ARGS...")
    run(label, body, command, *options)


def run(label: str, body: Body, target: Any, path: str, mode: str = "modern") -> None:
    with open(path, encoding="utf-8") as file:
        expect = json.load(file)
    try:
        line = asyncio.run(body(target, expect, mode))
    except Exception as error:
        sys.exit(f"FAIL {label}-{mode}: {describe(error)}")
    print(f"ok {label}-{mode} {line}")
