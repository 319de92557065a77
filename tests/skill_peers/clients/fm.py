"""FastMCP as a host of skills.

usage: python fm.py URL EXPECT.json legacy|modern     all that the file expects
       python fm.py URL SKILL changed                 see `change`
"""

import asyncio
import base64
import json
import pathlib
import sys

from fastmcp import Client
from fastmcp.skills import SkillsClientExtension
from mcp import MCPError

INVALID_PARAMS = -32602


async def refused(call):
    """The code of the error, which has to be one."""
    try:
        await call
    except MCPError as error:
        return error.error.code
    raise AssertionError("no error")


def digests(skill):
    return {file.uri: file.digest for file in skill.resources}


async def check(client, expect, mode):
    found = await (check_skills(client, expect) if mode == "modern" else has_none(client))
    prompts = expect["prompts"][mode]
    for prompt in prompts:
        await check_prompt(client, **prompt)
    for call in expect["tools"]:
        result = await client.call_tool_mcp(call["name"], call["arguments"])
        assert bool(result.is_error) == call.get("isError", False), call
        includes(result, call.get("contains", []))
    return f"{found}, {len(prompts)} prompts, {len(expect['tools'])} tool calls"


async def has_none(client):
    assert not client.server_capabilities.extensions
    try:
        await client.list_skills()
    except RuntimeError as error:
        return f"no skills ({error})"
    raise AssertionError("skills in this era")


async def check_skills(client, expect):
    skills, pages, cursor = [], 0, None
    while pages == 0 or cursor is not None:
        page = await client.list_skills_mcp(cursor=cursor)
        skills, pages, cursor = [*skills, *page.skills], pages + 1, page.next_cursor
    assert skills == await client.list_skills()
    assert sorted(skill.uri for skill in skills) == sorted(expect["skills"])
    assert pages >= expect["pages"], f"{pages} pages"
    read = 0
    for skill in skills:
        assert await client.get_skill(skill.uri) == skill
        assert digests(skill) == expect["skills"][skill.uri]
        # Reads every file, and compares it with the entry.
        read += len((await client.read_skill(skill.uri)).files)
    for uri in expect["refused"]:
        assert await refused(client.get_skill(uri)) == INVALID_PARAMS, uri
        assert await refused(client.read_resource(uri)) == INVALID_PARAMS, uri
        # It looks for a manifest of its own beside a skill that it does not get.
        assert await refused(client.read_skill(uri)) == INVALID_PARAMS, uri
    return f"{len(skills)} skills on {pages} pages, {read} files"


async def check_prompt(client, name, arguments=None, code=None, contains=()):
    """Gets a prompt, and reads what it links to."""
    if code is not None:
        assert await refused(client.get_prompt(name, arguments)) == code, name
        return
    result = await client.get_prompt(name, arguments)
    includes(result, contains)
    for message in result.messages:
        if message.content.type == "resource_link":
            [content] = await client.read_resource(message.content.uri)
            is_text = hasattr(content, "text")
            size = len(content.text.encode() if is_text else base64.b64decode(content.blob))
            assert size == message.content.size, message.content


def includes(result, parts):
    text = result.model_dump_json(by_alias=True, exclude_none=True)
    for part in parts:
        # As it stands within JSON, without the quotation marks.
        assert json.dumps(part, ensure_ascii=False)[1:-1] in text, f"{part} is not in {text}"


async def change(client, uri):
    """A file changes at the server while the client holds its entry: "ready" on one side, a line on the
    other. The file is refused, and then there is another entry, whose file is right."""
    held = await client.get_skill(uri)
    notes = next(uri for uri in digests(held) if uri.endswith("/notes.md"))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    code = await refused(client.read_resource(notes))
    while digests(await client.get_skill(uri, cache_mode="refresh"))[notes] == digests(held)[notes]:
        await asyncio.sleep(0.1)
    await client.read_skill(uri, cache_mode="refresh")
    return f"{notes} refused with {code}, then served by a new entry"


async def main(url, given, mode):
    connect = "legacy" if mode == "legacy" else "auto"
    async with Client(url, mode=connect, extensions=[SkillsClientExtension()]) as client:
        assert (client.protocol_version == "2026-07-28") == (mode != "legacy"), client.protocol_version
        if mode == "changed":
            done = await change(client, given)
        else:
            done = await check(client, json.loads(pathlib.Path(given).read_text()), mode)
        print(f"ok fm {mode}: {done}")


asyncio.run(main(*sys.argv[1:]))
