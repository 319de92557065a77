"""The server that the official MCP conformance suite asks for, in both eras (MCP Python SDK 2.x): its prompts here, its
tools and resources in tools.py.

usage: python fixture.py     (Streamable HTTP on a free port, which it prints; the path is /mcp)

The names are the suite's. It never changes its lists, but answers subscriptions/listen all the same.
"""

import socket

import mcp_types as types
import uvicorn
from mcp import MCPError
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler

import tools
from questions import Questions, Unanswered, elicit
from tools import image, text

CONTEXT = "What context should the prompt use?"


def simple(arguments):
    return [text("This is a simple prompt for testing.")]


def with_arguments(arguments):
    return [text(f"Prompt with arguments: arg1='{arguments['arg1']}', arg2='{arguments['arg2']}'")]


def with_resource(arguments):
    resource = types.TextResourceContents(
        uri=arguments["resourceUri"], mime_type="text/plain", text="Embedded resource content for testing."
    )
    embedded = types.EmbeddedResource(type="resource", resource=resource)
    return [embedded, text("Please process the embedded resource above.")]


def with_image(arguments):
    return [image(), text("Please analyze the image above.")]


# name -> description, its required arguments, what makes the contents
PROMPTS = {
    "test_simple_prompt": ("A prompt without arguments", [], simple),
    "test_prompt_with_arguments": ("A prompt with two arguments", ["arg1", "arg2"], with_arguments),
    "test_prompt_with_embedded_resource": ("A prompt with a resource", ["resourceUri"], with_resource),
    "test_prompt_with_image": ("A prompt with an image", [], with_image),
    "test_input_required_result_prompt": ("A prompt that asks the user first", [], None),
}


async def list_prompts(ctx, params):
    prompts = [
        types.Prompt(
            name=name,
            description=description,
            arguments=[types.PromptArgument(name=a, description=f"The argument {a}", required=True) for a in required],
        )
        for name, (description, required, _) in PROMPTS.items()
    ]
    return types.ListPromptsResult(prompts=prompts)


async def ask(ctx, params):
    """The contents, once the client has answered."""
    question = elicit(CONTEXT, {"context": {"type": "string"}}, ["context"])
    answer = (await Questions(ctx, params).ask(user_context=question))["user_context"]
    return [text(f"Prompt with context: {(answer.content or {}).get('context', answer.action)}")]


async def get_prompt(ctx, params):
    if params.name not in PROMPTS:
        raise MCPError(types.INVALID_PARAMS, f"unknown prompt: {params.name}")
    description, required, make = PROMPTS[params.name]
    arguments = params.arguments or {}
    if missing := [a for a in required if a not in arguments]:
        raise MCPError(types.INVALID_PARAMS, f"missing arguments: {', '.join(missing)}")
    try:
        contents = make(arguments) if make else await ask(ctx, params)
    except Unanswered as unanswered:
        return unanswered.result
    return types.GetPromptResult(
        description=description, messages=[types.PromptMessage(role="user", content=c) for c in contents]
    )


async def completion(ctx, params):
    values = [v for v in ("paris", "park", "party", "test", "testing") if v.startswith(params.argument.value)]
    return types.CompleteResult(completion=types.Completion(values=values, total=len(values), has_more=False))


class Fixture(Server):
    def create_initialization_options(self, *args, **kwargs):
        return super().create_initialization_options(NotificationOptions(prompts_changed=True))


server = Fixture(
    "conformance-fixture",
    version="1.0.0",
    on_list_prompts=list_prompts,
    on_get_prompt=get_prompt,
    on_completion=completion,
    on_list_tools=tools.list_tools,
    on_call_tool=tools.call_tool,
    on_list_resources=tools.list_resources,
    on_list_resource_templates=tools.list_templates,
    on_read_resource=tools.read_resource,
    on_subscribe_resource=tools.done,
    on_unsubscribe_resource=tools.done,
    on_set_logging_level=tools.done,
    on_subscriptions_listen=ListenHandler(InMemorySubscriptionBus()),
)

if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    print("listening: {}:{}".format(*listener.getsockname()), flush=True)
    config = uvicorn.Config(server.streamable_http_app(), log_level="warning")
    uvicorn.Server(config).run(sockets=[listener])
