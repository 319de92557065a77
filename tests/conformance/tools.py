"""The tools and resources that the official MCP conformance suite asks for. The names and the texts are the suite's."""

import asyncio
import json

import mcp_types as types
from mcp import MCPError

from questions import Questions, Unanswered, elicit, missing, sample

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SOUND = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA="


def text(value):
    return types.TextContent(type="text", text=value)


def image():
    return types.ImageContent(type="image", data=PIXEL, mime_type="image/png")


def embedded(uri, mime_type, value):
    resource = types.TextResourceContents(uri=uri, mime_type=mime_type, text=value)
    return types.EmbeddedResource(type="resource", resource=resource)


def answer_of(result):
    return f"action={result.action}, content={json.dumps(result.content)}"


# --- Tools that only answer: name -> contents

FIXED = {
    "test_simple_text": [text("This is a simple text response for testing.")],
    "test_image_content": [image()],
    "test_audio_content": [types.AudioContent(type="audio", data=SOUND, mime_type="audio/wav")],
    "test_embedded_resource": [
        embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")
    ],
    "test_multiple_content_types": [
        text("Multiple content types test:"),
        image(),
        embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
    ],
    "json_schema_2020_12_tool": [text("valid")],
    "test_x_mcp_header": [text("region")],
}

# --- Tools that do something: (ctx, arguments, questions) -> contents


async def failing(ctx, arguments, questions):
    raise ValueError("This tool intentionally returns an error for testing")


async def with_logging(ctx, arguments, questions):
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.session.send_log_message("info", message, related_request_id=ctx.request_id)
    return [text("logged")]


async def with_progress(ctx, arguments, questions):
    for progress in (0, 50, 100):
        await ctx.session.report_progress(progress, 100)
        await asyncio.sleep(0.05)
    return [text("done")]


async def sampling(ctx, arguments, questions):
    answers = await questions.ask(said=sample(arguments["prompt"], 100))
    return [text(f"LLM response: {answers['said'].content.text}")]


async def elicitation(ctx, arguments, questions):
    fields = {
        "username": {"type": "string", "description": "User's response"},
        "email": {"type": "string", "description": "User's email address"},
    }
    answers = await questions.ask(user=elicit(arguments["message"], fields, fields))
    return [text(f"User response: {answer_of(answers['user'])}")]


async def elicitation_defaults(ctx, arguments, questions):
    fields = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    answers = await questions.ask(user=elicit("Review the defaults", fields))
    return [text(f"Elicitation completed: {answer_of(answers['user'])}")]


async def elicitation_enums(ctx, arguments, questions):
    options = ["option1", "option2", "option3"]
    titles = list(enumerate(("First", "Second", "Third"), 1))
    titled = lambda word: [{"const": f"value{number}", "title": f"{title} {word}"} for number, title in titles]
    fields = {
        "untitledSingle": {"type": "string", "enum": options},
        "titledSingle": {"type": "string", "oneOf": titled("Option")},
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled("Choice")}},
    }
    answers = await questions.ask(user=elicit("Choose", fields))
    return [text(f"Elicitation completed: {answer_of(answers['user'])}")]


def name_question():
    return elicit("What is your name?", {"name": {"type": "string"}}, ["name"])


def confirmation():
    return elicit("Please confirm", {"ok": {"type": "boolean"}}, ["ok"])


async def asks_name(ctx, arguments, questions):
    answers = await questions.ask(user_name=name_question())
    return [text(f"Hello, {(answers['user_name'].content or {}).get('name')}!")]


async def asks_model(ctx, arguments, questions):
    answers = await questions.ask(capital_question=sample("What is the capital of France?", 100))
    return [text(answers["capital_question"].content.text)]


async def asks_roots(ctx, arguments, questions):
    answers = await questions.ask(client_roots=types.ListRootsRequest())
    return [text(", ".join(str(root.uri) for root in answers["client_roots"].roots))]


async def asks_with_state(ctx, arguments, questions):
    await questions.ask(keeps_state=True, confirm=confirmation())
    return [text("state-ok")]


async def asks_all(ctx, arguments, questions):
    requests = {
        "user_name": name_question(),
        "greeting": sample("Generate a greeting", 50),
        "client_roots": types.ListRootsRequest(),
    }
    await questions.ask(keeps_state=True, **requests)
    return [text("all answered")]


async def asks_twice(ctx, arguments, questions):
    await questions.ask(
        keeps_state=True, step1=elicit("Step 1: What is your name?", {"name": {"type": "string"}}, ["name"])
    )
    color = elicit("Step 2: What is your favorite color?", {"color": {"type": "string"}}, ["color"])
    await questions.ask(keeps_state=True, step2=color)
    return [text("both answered")]


async def asks_what_it_may(ctx, arguments, questions):
    requests = {"user_name": name_question(), "greeting": sample("Generate a greeting", 50)}
    await questions.ask(**{key: request for key, request in requests.items() if questions.may_ask(request)})
    return [text("answered")]


async def needs_sampling(ctx, arguments, questions):
    if not questions.may_ask(sample("", 1)):
        raise missing(ctx, types.ClientCapabilities(sampling=types.SamplingCapability()))
    return [text("declared")]


DOING = {
    "test_error_handling": failing,
    "test_tool_with_logging": with_logging,
    "test_logging_tool": with_logging,
    "test_tool_with_progress": with_progress,
    "test_sampling": sampling,
    "test_elicitation": elicitation,
    "test_elicitation_sep1034_defaults": elicitation_defaults,
    "test_elicitation_sep1330_enums": elicitation_enums,
    "test_input_required_result_elicitation": asks_name,
    "test_streaming_elicitation": asks_name,
    "test_input_required_result_sampling": asks_model,
    "test_input_required_result_list_roots": asks_roots,
    "test_input_required_result_request_state": asks_with_state,
    "test_input_required_result_tampered_state": asks_with_state,
    "test_input_required_result_multiple_inputs": asks_all,
    "test_input_required_result_multi_round": asks_twice,
    "test_input_required_result_capabilities": asks_what_it_may,
    "test_missing_capability": needs_sampling,
}

REQUIRED = {"test_sampling": ["prompt"], "test_elicitation": ["message"]}
SCHEMAS = {
    "test_x_mcp_header": {
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
        "required": ["region"],
    },
    "json_schema_2020_12_tool": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
}


def tool(name):
    required = REQUIRED.get(name, [])
    schema = {"type": "object", "properties": {key: {"type": "string"} for key in required}, "required": required}
    return types.Tool(name=name, description=f"The tool {name}", input_schema=SCHEMAS.get(name, schema))


async def list_tools(ctx, params):
    return types.ListToolsResult(tools=[tool(name) for name in [*FIXED, *DOING]])


async def call_tool(ctx, params):
    if params.name in FIXED:
        return types.CallToolResult(content=FIXED[params.name])
    if params.name not in DOING:
        raise MCPError(types.INVALID_PARAMS, f"unknown tool: {params.name}")
    try:
        contents = await DOING[params.name](ctx, params.arguments or {}, Questions(ctx, params))
    except Unanswered as unanswered:
        return unanswered.result
    except ValueError as error:
        return types.CallToolResult(content=[text(str(error))], is_error=True)
    return types.CallToolResult(content=contents)


# --- Resources: URI -> media type and contents

STATIC = {
    "test://static-text": ("text/plain", {"text": "This is the content of the static text resource."}),
    "test://static-binary": ("image/png", {"blob": PIXEL}),
    "test://watched-resource": ("text/plain", {"text": "It never changes."}),
}
TEMPLATE = "test://template/{id}/data"


async def list_resources(ctx, params):
    listed = [types.Resource(uri=uri, name=uri, mime_type=mime_type) for uri, (mime_type, _) in STATIC.items()]
    return types.ListResourcesResult(resources=listed)


async def list_templates(ctx, params):
    template = types.ResourceTemplate(uri_template=TEMPLATE, name="template", mime_type="application/json")
    return types.ListResourceTemplatesResult(resource_templates=[template])


async def read_resource(ctx, params):
    uri = str(params.uri)
    before, after = TEMPLATE.split("{id}")
    if uri in STATIC:
        mime_type, contents = STATIC[uri]
    elif uri.startswith(before) and uri.endswith(after):
        id = uri[len(before) : -len(after)]
        mime_type = "application/json"
        contents = {"text": json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})}
    else:
        code = -32002 if ctx.protocol_version < "2026-07-28" else types.INVALID_PARAMS
        raise MCPError(code, "unknown resource", {"uri": uri})
    kind = types.TextResourceContents if "text" in contents else types.BlobResourceContents
    return types.ReadResourceResult(contents=[kind(uri=uri, mime_type=mime_type, **contents)])


async def done(ctx, params):
    """The answer to `resources/subscribe`, `resources/unsubscribe` and `logging/setLevel`."""
    return types.EmptyResult()
