"""A server of 1,000 prompts: those of the conformance fixture, and 995 of its own.

usage: python upstream.py     (Streamable HTTP on a free port, which it prints; the path is /mcp)

To get `grow` adds the prompt that its argument names, and says so to all clients.
"""

import contextlib
import pathlib
import socket
import sys

import mcp_types as types
import uvicorn
from mcp import MCPError
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, PromptsListChanged

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "conformance"))
import fixture

COUNT = 1000
ICON = types.Icon(src="https://example.com/icon.png", mime_type="image/png")
META = {"com.example/owner": "team"}

bus = InMemorySubscriptionBus()
own = {}
legacy = {}  # the last request of each session, through which it hears of changes


def add(name):
    own[name] = types.Prompt(
        name=name, title=f"Title of {name}", description=f"Prompt {name}", icons=[ICON], _meta=META,
        arguments=[types.PromptArgument(name="topic", title="Topic", description="Its topic", required=True)],
    )


async def list_prompts(ctx, params):
    if session := ctx.request.headers.get("mcp-session-id"):
        legacy[session] = ctx.session
    listed = await fixture.list_prompts(ctx, params)
    listed.prompts.extend(own.values())
    return listed


async def get_prompt(ctx, params):
    if params.name not in own:
        return await fixture.get_prompt(ctx, params)
    topic = (params.arguments or {}).get("topic")
    if topic is None:
        raise MCPError(types.INVALID_PARAMS, "missing arguments: topic")
    if params.name == "grow":
        add(topic)
        await bus.publish(PromptsListChanged())
        for session in legacy.values():
            with contextlib.suppress(Exception):  # it may have gone
                await session.send_prompt_list_changed()
    said = types.PromptMessage(role="user", content=fixture.text(f"{params.name}: {topic}"))
    return types.GetPromptResult(description=own[params.name].description, messages=[said], _meta=META)


async def no_tools(ctx, params):
    return types.ListToolsResult(tools=[])


async def no_resources(ctx, params):
    return types.ListResourcesResult(resources=[])


async def no_templates(ctx, params):
    return types.ListResourceTemplatesResult(resource_templates=[])


server = fixture.Fixture(
    "thousand", version="1.0.0", on_list_prompts=list_prompts, on_get_prompt=get_prompt,
    on_completion=fixture.completion, on_list_tools=no_tools, on_list_resources=no_resources,
    on_list_resource_templates=no_templates, on_read_resource=fixture.tools.read_resource,
    on_subscriptions_listen=ListenHandler(bus),
)

if __name__ == "__main__":
    add("grow")
    for number in range(COUNT - len(fixture.PROMPTS) - 1):
        add(f"p{number:03}")
    listener = socket.create_server(("127.0.0.1", 0))
    print("listening: {}:{}".format(*listener.getsockname()), flush=True)
    config = uvicorn.Config(server.streamable_http_app(), log_level="warning")
    uvicorn.Server(config).run(sockets=[listener])
