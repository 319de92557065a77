"""A proxy on loopback that validates what an MCP gateway says against the official JSON Schemas.

usage: python validate.py TARGET SCHEMAS [PORT]   (URL of the gateway, folder of <revision>/schema.json)

Prints a line per violation, and sums on SIGTERM or SIGINT; then exits with 1 if any was wrong, or none came.
"""

import asyncio
import base64
import functools
import json
import re
import signal
import sys
from collections import Counter
from pathlib import Path

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web
from jsonschema import FormatChecker
from jsonschema.validators import validator_for
from yarl import URL

META_VERSION = "io.modelcontextprotocol/protocolVersion"
NO_NULL_IDS = "2025-11-25"  # from this revision on; before, null says that no id could be read
HOP_BY_HOP = "accept-encoding connection expect host keep-alive te trailer transfer-encoding upgrade".split()
FORMATS = FormatChecker(formats=())
FORMATS.checks("uri")(lambda v: not isinstance(v, str) or re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]+", v))
FORMATS.checks("byte", ValueError)(lambda v: not isinstance(v, str) or base64.b64decode(v, validate=True) is not None)


def read_json(text):
    """The value and None, or None and what is wrong. Strict: no duplicate members, no NaN."""

    def members(pairs):
        if len(dict(pairs)) < len(pairs):
            raise ValueError(f"duplicate member among {[key for key, _ in pairs]}")
        return dict(pairs)

    try:
        return json.loads(text.decode(), object_pairs_hook=members, parse_constant=int), None  # int("NaN") raises
    except (ValueError, RecursionError) as error:
        return None, f"{error}, in {text[:40]}"


def member(value, *names):
    """What `value[a][b]…` holds, or None."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


class Schemas:
    def __init__(self, folder):
        paths = folder.glob("*/schema.json")
        self.documents = {path.parent.name: json.loads(path.read_text("utf-8")) for path in paths}
        self.definitions = {r: d.get("$defs") or d["definitions"] for r, d in self.documents.items()}

    def revision(self, claims, definition):
        """The first claim that is a revision with this definition, or else the newest such."""
        fit = [revision for revision, definitions in self.definitions.items() if definition in definitions]
        return next((claim for claim in claims if claim in fit), max(fit))

    def of_method(self, revision, union, method):
        """The member of a union (ClientRequest, ServerNotification, …) that has this method."""
        definitions = self.definitions[revision]
        names = [one["$ref"].rpartition("/")[2] for one in member(definitions, union, "anyOf") or []]
        return next((n for n in names if member(definitions[n], "properties", "method", "const") == method), None)

    def of_result(self, revision, method, result):
        """XRequest is answered with XResult, or, where there is none, with EmptyResult."""
        request = self.of_method(revision, "ClientRequest", method) or ""
        name, definitions = request.replace("Request", "Result"), self.definitions[revision]
        # Not by anyOf: whatever has a resultType would pass as an InputRequiredResult.
        may_ask = "/InputRequiredResult" in json.dumps(definitions.get(f"{name}Response"))
        if may_ask and member(result, "resultType") == "input_required":
            return "InputRequiredResult"
        return name if name in definitions else "EmptyResult"

    def of_error(self, revision, code):
        """The definition of this error code, or that of any error."""
        errors = {n: member(d, "properties", "error", "allOf") or [] for n, d in self.definitions[revision].items()}
        own = [n for n, parts in errors.items() for p in parts if member(p, "properties", "code", "const") == code]
        return own[0] if own else self.envelope(revision, "JSONRPCErrorResponse", "JSONRPCError")

    def envelope(self, revision, new, old):
        return new if new in self.definitions[revision] else old

    @functools.cache
    def validator(self, revision, definition):
        place = "$defs" if "$defs" in self.documents[revision] else "definitions"
        schema = {**self.documents[revision], "$ref": f"#/{place}/{definition}"}
        return validator_for(schema)(schema, format_checker=FORMATS)

    def problems(self, revision, definition, value, path):
        found = []
        for error in self.validator(revision, definition).iter_errors(value):
            causes = [error]
            while len({cause.schema_path[0] for cause in causes}) == 1:
                error = causes[0]  # into the one branch of an anyOf that is meant: that of the right `type`
                others = {cause.schema_path[0] for cause in error.context if cause.validator == "const"}
                causes = [cause for cause in error.context if cause.schema_path[0] not in others]
            found.append((path + error.json_path[1:], error.message))
        return found


class Exchange:
    """One HTTP request: what it asks, which revision is in force, and what the head of the answer says."""

    def __init__(self, request, body, answer, schemas, sessions):
        self.label = f"{request.method} {request.path}"
        self.failed, self.opens = answer.status >= 400, answer.headers.get("Mcp-Session-Id")
        asked, wrong = read_json(body)
        messages = [m for m in (asked if isinstance(asked, list) else [asked]) if isinstance(m, dict)]
        self.unanswered = {json.dumps(m["id"]): m.get("method") for m in messages if type(m.get("id")) in (str, int)}
        self.is_readable = request.method == "POST" and not wrong
        modern = [v for m in messages if (v := member(m, "params", "_meta", META_VERSION)) is not None]
        opening = [member(m, "params", "protocolVersion") for m in messages if m.get("method") == "initialize"]
        headers = [sessions.get(request.headers.get("Mcp-Session-Id", "")), request.headers.get("MCP-Protocol-Version")]
        needed = "DiscoverResult" if modern else "InitializeResult" if opening else "JSONRPCMessage"
        self.revision = schemas.revision(modern or opening or headers, needed)
        self.null_id_is_fine = self.revision < NO_NULL_IDS and not (self.unanswered and member(asked, "method"))


class Judge:
    def __init__(self, schemas):
        self.schemas, self.sessions = schemas, {}  # the revision of each session id
        self.counts, self.violations = Counter(), 0

    def text(self, exchange, text):
        """Judges a message or a batch. What a failed request is answered with has to be an error."""
        value, wrong = read_json(text)
        if wrong:
            return self.record(exchange, None, "(not JSON)", [("$", wrong)])
        is_batch = isinstance(value, list)
        if value == [] or is_batch and "JSONRPCBatchResponse" not in self.schemas.definitions[exchange.revision]:
            self.record(exchange, None, "(batch)", [("$", "the batch is empty, or unknown to the revision")])
        for index, element in enumerate(value if is_batch else [value]):
            self.message(exchange, element, f"$[{index}]" if is_batch else "$")

    def message(self, exchange, message, path):
        method, problems = member(message, "method"), []
        if not isinstance(message, dict):
            names = ["JSONRPCMessage"]
        elif exchange.failed or "method" not in message:
            is_error = exchange.failed or "error" in message
            method, names, problems = self.response(exchange, message, path, is_error)
            if is_error and message.get("id", "") is None and exchange.null_id_is_fine:
                message = {**message, "id": "unknown"}
        else:
            kind = "Request" if "id" in message else "Notification"
            names = [f"JSONRPC{kind}", self.schemas.of_method(exchange.revision, f"Server{kind}", method)]
            if names[1] is None:
                names, problems = names[:1], [(f"{path}.method", f"{method!r} is in no Server{kind}")]
        for name in names:
            part, place = (message.get("result"), f"{path}.result") if name.endswith("Result") else (message, path)
            problems += self.schemas.problems(exchange.revision, name, part, place)
        self.record(exchange, method, names[-1], problems)

    def response(self, exchange, message, path, is_error):
        """The method that it answers, the definitions that it has to fit, and what else is wrong."""
        problems, result, id = [], message.get("result"), json.dumps(message.get("id"))
        if exchange.is_readable and id not in exchange.unanswered and not (is_error and id == "null"):
            problems.append((f"{path}.id", f"{id} answers no open request of this exchange"))
        method = exchange.unanswered.pop(id, None)
        if is_error:
            if "result" in message or "method" in message:
                problems.append((path, "an error must have neither result nor method"))
            return method, [self.schemas.of_error(exchange.revision, member(message, "error", "code"))], problems
        if method == "initialize":
            version = member(result, "protocolVersion")
            exchange.revision = self.schemas.revision([version, exchange.revision], "InitializeResult")
            self.sessions[exchange.opens] = exchange.revision
            if exchange.revision != version:
                problems.append((f"{path}.result.protocolVersion", f"{version!r} is no revision that has initialize"))
        envelope = self.schemas.envelope(exchange.revision, "JSONRPCResultResponse", "JSONRPCResponse")
        return method, [envelope, self.schemas.of_result(exchange.revision, method, result)], problems

    def record(self, exchange, method, definition, problems):
        self.counts[exchange.revision, definition] += 1
        for path, what in dict.fromkeys(problems):
            self.violations += 1
            what = what if len(what) <= 300 else f"{what[:200]} … {what[-80:]}"
            print("violation:", method or exchange.label, exchange.revision, definition, f"{path}: {what}", flush=True)


async def events(stream):
    """Each chunk of server-sent events at once, with the data of the events that it completes."""
    rest, fields = b"", {}
    async for chunk in stream.iter_any():
        texts = []
        *lines, rest = re.split(rb"\r\n|\n|\r(?!\Z)", rest + chunk)
        for line in lines:
            field, _, value = line.partition(b":")
            fields.setdefault(field, []).append(value.removeprefix(b" "))
            if not line:
                if any(fields.get(b"data", [])) and fields.get(b"event") != [b"endpoint"]:  # a URI, 2024-11-05
                    texts.append(b"\n".join(fields[b"data"]))
                fields = {}
        yield chunk, texts
    yield b"", [b"the stream ends inside an event"] if rest or fields else []


def end_to_end(headers):
    dropped = [*HOP_BY_HOP, *re.split(r"[\s,]+", headers.get("Connection", "").lower())]
    return [(name, value) for name, value in headers.items() if name.lower() not in dropped]


async def forward(judge, client, target, request):
    asked, url = await request.read(), URL(target + request.raw_path, encoded=True)
    options = {"headers": end_to_end(request.headers), "data": asked or None, "allow_redirects": False}
    async with client.request(request.method, url, **options) as answer:
        exchange = Exchange(request, asked, answer, judge.schemas, judge.sessions)
        response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=end_to_end(answer.headers))
        await response.prepare(request)
        if answer.content_type == "text/event-stream":
            async for chunk, texts in events(answer.content):
                for text in texts:
                    judge.text(exchange, text)
                await response.write(chunk)
        else:
            body = await answer.read()
            if body and (answer.content_type == "application/json" if exchange.failed else request.method == "POST"):
                judge.text(exchange, body)
            await response.write(body)
        return response


async def main(target, folder, port="0"):
    judge, stop = Judge(Schemas(Path(folder))), asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    lines, added = {"max_line_size": 65536, "max_field_size": 65536}, "Accept Accept-Encoding Content-Type User-Agent"
    options = {"cookie_jar": DummyCookieJar(), "timeout": ClientTimeout(), "skip_auto_headers": added.split(), **lines}
    async with ClientSession(connector=TCPConnector(force_close=True), auto_decompress=False, **options) as client:
        app = web.Application(client_max_size=0)
        app.router.add_route("*", "/{path:.*}", functools.partial(forward, judge, client, str(URL(target).origin())))
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1, **lines)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", int(port)).start()
        print(f"listening: http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await stop.wait()
        await runner.cleanup()
    print(f"validated {judge.counts.total()} messages, {judge.violations} violations")
    for (revision, definition), count in sorted(judge.counts.items()):
        print(f"  {revision} {definition}: {count}")
    return 1 if judge.violations or not judge.counts else 0


sys.exit(asyncio.run(main(*sys.argv[1:])) if len(sys.argv) in (3, 4) else __doc__)
