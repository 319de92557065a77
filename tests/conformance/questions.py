"""Questions of the fixture to the user of a client, in both eras: sent at once, or as an `InputRequiredResult`."""

import hashlib
import hmac
import secrets

import mcp_types as types
from mcp import MCPError
from mcp.shared.message import ServerMessageMetadata

KEY = secrets.token_bytes(32)
# The question, the type of its answer, and the capability that it needs.
NEEDED = {
    types.ElicitRequest: (types.ElicitResult, types.ClientCapabilities(elicitation=types.ElicitationCapability())),
    types.CreateMessageRequest: (
        types.CreateMessageResult,
        types.ClientCapabilities(sampling=types.SamplingCapability()),
    ),
    types.ListRootsRequest: (types.ListRootsResult, types.ClientCapabilities(roots=types.RootsCapability())),
}


def elicit(message, properties, required=()):
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def sample(prompt, most):
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=prompt))
    return types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[message], max_tokens=most))


def is_legacy(ctx):
    return ctx.protocol_version < "2026-07-28"


def missing(ctx, needed):
    """The error for a client that has not declared a capability."""
    data = types.MissingRequiredClientCapabilityErrorData(required_capabilities=needed)
    code = types.INVALID_PARAMS if is_legacy(ctx) else types.MISSING_REQUIRED_CLIENT_CAPABILITY
    return MCPError(code, "the client cannot be asked", data.model_dump(by_alias=True, exclude_none=True))


class Unanswered(Exception):
    """Ends a modern request until the client calls again."""

    def __init__(self, **result):
        self.result = types.InputRequiredResult(**result)


class Questions:
    """The questions of one request, in rounds. A state says how many rounds are answered."""

    def __init__(self, ctx, params):
        self.ctx, self.responses, self.round = ctx, params.input_responses or {}, 0
        self.answered = self.read(params.request_state) if params.request_state else 0

    def seal(self, rounds):
        return f"{rounds}.{hmac.new(KEY, str(rounds).encode(), hashlib.sha256).hexdigest()}"

    def read(self, state):
        rounds = state.partition(".")[0]
        if not hmac.compare_digest(state, self.seal(rounds)):
            raise MCPError(types.INVALID_PARAMS, "the request state is not the server's")
        return int(rounds)

    def may_ask(self, request):
        return self.ctx.session.check_client_capability(NEEDED[type(request)][1])

    async def ask(self, keeps_state=False, **requests):
        """The answers by key; in the modern era only those of the last round that was asked."""
        for request in requests.values():
            if not self.may_ask(request):
                raise missing(self.ctx, NEEDED[type(request)][1])
        if is_legacy(self.ctx):
            related = ServerMessageMetadata(related_request_id=self.ctx.request_id)
            return {
                key: await self.ctx.session.send_request(request, NEEDED[type(request)][0], metadata=related)
                for key, request in requests.items()
            }
        self.round += 1
        if self.round <= self.answered:
            return {}
        answers = {key: answer for key, answer in self.responses.items() if key in requests}
        if any(not isinstance(answers.get(key), NEEDED[type(request)][0]) for key, request in requests.items()):
            state = self.seal(self.answered) if keeps_state else None
            raise Unanswered(input_requests=requests, request_state=state)
        self.answered, self.responses = self.round, {}
        return answers
