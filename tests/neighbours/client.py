"""What a client sees behind an address, in few words."""

import asyncio
import contextlib
import dataclasses

import httpx2
import mcp_types as types
from mcp import Client, MCPError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

PATIENCE = 30  # seconds for one request
HEARD = 10  # seconds in which a change arrives, or does not


@dataclasses.dataclass
class Door:
    url: str
    headers: dict = dataclasses.field(default_factory=dict)
    sse: bool = False


@contextlib.asynccontextmanager
async def client(door, mode="auto", **options):
    async with contextlib.AsyncExitStack() as stack:
        if door.sse:
            transport, mode = sse_client(door.url, headers=door.headers), "legacy"
        else:
            timeout = httpx2.Timeout(PATIENCE, read=300)
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=door.headers, timeout=timeout))
            transport = streamable_http_client(door.url, http_client=http)
        connected = Client(transport, mode=mode, read_timeout_seconds=PATIENCE, **options)
        yield await stack.enter_async_context(connected)


def plain(name):
    """A name without separators: gateways write them in their own ways."""
    return name.replace("_", "-")


async def prompts(client):
    """All prompts, by their public name."""
    found, cursor = {}, None
    while True:
        page = await client.list_prompts(cursor=cursor, cache_mode="bypass")
        found |= {prompt.name: prompt for prompt in page.prompts}
        cursor = page.next_cursor
        if not cursor:
            return found


def public(listed, raw):
    return next((name for name in listed if plain(name).endswith(plain(raw))), raw)


async def error_of(request):
    """The code of an error with its reason, or the first word of its text that says something."""
    try:
        await request
    except MCPError as error:
        data = error.data if isinstance(error.data, dict) else {}
        reason = data.get("reason")
        return f"{error.code}" + (f" {reason}" if reason else f" {error.message[:60]!r}")
    return "no error"


class Look:
    """Looks at one address: each method is a row of the table."""

    def __init__(self, door):
        self.door = door

    async def listed(self):
        async with client(self.door) as one:
            self.names = await prompts(one)
            self.version = one.protocol_version
        return f"{len(self.names)}"

    async def revision(self):
        return self.version

    async def name(self):
        return public(self.names, "test_simple_prompt")

    async def definition(self):
        """What a definition has lost."""
        prompt = self.names.get(public(self.names, "p007"))
        if prompt is None:
            return "not listed"
        argument = prompt.arguments[0] if prompt.arguments else None
        has = {
            "title": prompt.title == "Title of p007", "description": prompt.description == "Prompt p007",
            "icons": bool(prompt.icons), "_meta": bool((prompt.meta or {}).get("com.example/owner")),
            "required": bool(argument and argument.required),
            "argument title": bool(argument and argument.title),
            "argument description": bool(argument and argument.description),
        }
        return ", ".join(field for field, there in has.items() if not there) or "nothing"

    async def got(self):
        """How many gets return the right text; and each kind of content that does not arrive."""
        right, wrong = 0, []
        async with client(self.door) as one:
            for number in range(0, 994, 50):
                name = f"p{number:03}"
                try:
                    result = await one.get_prompt(public(self.names, name), {"topic": "x"})
                    right += getattr(result.messages[0].content, "text", "") == f"{name}: x"
                except (MCPError, IndexError) as error:
                    wrong.append(f"{name}: {error}")
            for name, arguments, kind in (
                ("test_simple_prompt", None, "text"),
                ("test_prompt_with_arguments", {"arg1": "1", "arg2": "2"}, "text"),
                ("test_prompt_with_image", None, "image"),
                ("test_prompt_with_embedded_resource", {"resourceUri": "test://r"}, "resource"),
            ):
                try:
                    result = await one.get_prompt(public(self.names, name), arguments)
                    kinds = [message.content.type for message in result.messages]
                    if kind in kinds:
                        right += 1
                    else:
                        wrong.append(f"{kind}: {kinds}")
                except MCPError as error:
                    wrong.append(f"{kind}: {error.code}")
        return f"{right} of 24" + "".join(f"; {each}" for each in wrong[:3])

    async def completed(self):
        reference = types.PromptReference(type="ref/prompt", name=public(self.names, "test_prompt_with_arguments"))
        async with client(self.door) as one:
            try:
                result = await one.complete(reference, {"name": "arg1", "value": "par"})
            except MCPError as error:
                return f"{error.code}"
        return f"{len(result.completion.values)} of 3"

    async def unknown(self):
        known = public(self.names, "p000")
        async with client(self.door) as one:
            return await error_of(one.get_prompt(known.removesuffix("p000") + "nosuch", {}))

    async def missing(self):
        async with client(self.door) as one:
            return await error_of(one.get_prompt(public(self.names, "p000"), {}))

    async def question(self, mode):
        async def answer(context, params):
            return types.ElicitResult(action="accept", content={"context": "blue"})

        async with client(self.door, mode, elicitation_callback=answer) as one:
            try:
                result = await one.get_prompt(public(self.names, "test_input_required_result_prompt"))
            except MCPError as error:
                return f"{one.protocol_version}: {error.code}"
            text = getattr(result.messages[0].content, "text", "")
            return f"{one.protocol_version}: {'answered' if 'blue' in text else text[:40]!r}"

    async def questions(self):
        answers = [await self.question(mode) for mode in ("legacy", "auto")]
        return "; ".join(dict.fromkeys(answers))

    async def changed(self, change):
        """How the change arrives that `change` makes, a coroutine that takes the name of a new prompt."""
        return "; ".join(dict.fromkeys([await self.heard(mode, change) for mode in ("legacy", "auto")]))

    async def heard(self, mode, change):
        heard = asyncio.Event()

        async def handle(message):
            if isinstance(message, types.PromptListChangedNotification):
                heard.set()

        async def listen(one):
            with contextlib.suppress(Exception):  # A gateway without subscriptions says so.
                async with one.listen(prompts_list_changed=True) as events:
                    async for _ in events:
                        heard.set()

        async with client(self.door, mode, message_handler=handle) as one:
            modern = one.protocol_version >= "2026"
            listener = asyncio.create_task(listen(one)) if modern else None
            await prompts(one)
            name = ""
            for attempt in range(2):  # The first one may come before the stream is open.
                name = f"new-{mode}-{attempt}"
                await change(name)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(heard.wait(), HEARD)
                    break
            fresh = any(plain(each).endswith(name) for each in await prompts(one))
            if listener:
                listener.cancel()
            notified = "notified" if heard.is_set() else "not notified"
            return f"{one.protocol_version}: {notified}, {'listed' if fresh else 'not listed'}"
