"""`/v1/responses`: asking, with a memory of the responses before, and coming back to a response.

Knows: OpenAI's paths and shapes. Does not know: what is said there (`gateway.dialects`), how responses are kept.
"""

from typing import Any, Protocol, cast

import msgspec
import structlog
from litestar import delete, get, post
from litestar.params import FromPath
from litestar.response import Stream
from litestar.types import HTTPScope, Send

from gateway.auth import Keyring
from gateway.call import Body, Call, Principal
from gateway.connection import Connection
from gateway.db.session import UNREACHABLE
from gateway.dialects import Asked
from gateway.dialects.conversations import name_of, shown
from gateway.dialects.responses import Compacting
from gateway.dialects.responses import Responses as Dialect
from gateway.dialects.responses_answer import ResponsesVoice
from gateway.errors import InvalidRequest, Overloaded, UpgradeRefused
from gateway.prompt_tokens import Counter
from gateway.responses import Responses, refers
from gateway.routes.asker import AnyRequest, after_of, asker, changer, limit_of, order_of
from gateway.routes.desks import desk
from gateway.routes.messages import Counting
from gateway.routes.openai import Edge, Endpoint, Endpoints, Read
from gateway.routes.responses_background import Background, added

log = structlog.get_logger("nearhit.responses")

_LISTED = 20
_CONTINUED = ("previous_response_id", "conversation")
_EVENT_STREAM = "text/event-stream"
_EVENTS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
_encode = msgspec.json.Encoder().encode
Json = dict[str, object]


class Past(Protocol):
    """Where the responses before are found: `gateway.responses.Responses`, or that and one connection's memory."""

    @property
    def keeps(self) -> bool:
        """Whether there is any past at all."""
        ...

    async def earlier(self, owner: Principal, response_id: str) -> list[Body]:
        """The whole conversation up to a response, in order. Raises InvalidRequest where it is not there."""
        ...

    async def put(self, owner: Principal, response: Body, items: list[Body], *, background: bool = False) -> bool:
        """Keep a response; whether that was possible."""
        ...


class Continuing(Endpoint):
    """Knows the responses before, and keeps its own. `past`: where they are looked for, if not among the kept.

    `background`: who makes those that nobody waits for; None where there are none.
    """

    def __init__(
        self,
        edge: Edge,
        responses: Responses,
        dialect: Dialect | None = None,
        past: Past | None = None,
        background: Background | None = None,
    ) -> None:
        self._speaking = dialect or Dialect()
        super().__init__(edge, self._speaking)
        self.responses = responses
        self._past: Past = past or responses
        self._background = background

    async def _principal(self, scope: HTTPScope) -> Principal:
        if scope["method"] == "GET" and any(name == b"upgrade" for name, _ in cast("Any", scope["headers"])):
            raise UpgradeRefused("WebSockets are not served here; send requests with POST.")
        return await super()._principal(scope)

    async def _understood(self, given: Body, principal: Principal) -> Asked:
        if not self._past.keeps:
            return self._speaking.read(given)
        previous, asked = given.get("previous_response_id"), given.get("input")
        earlier: list[Body] = []
        conversation = self._conversation(given)
        try:
            if conversation is not None:
                earlier = await self.responses.conversations.earlier(principal, conversation)
            elif isinstance(previous, str):
                earlier = await self._past.earlier(principal, previous)
            if isinstance(asked, list) and self.responses.keeps:
                given = {**given, "input": await self.responses.referred(principal, cast("list[object]", asked))}
        except UNREACHABLE as error:
            why = "The database does not answer, so a response cannot be continued. Try again in a moment."
            raise Overloaded(why, code="database_unavailable", headers=(("retry-after", "2"),)) from error
        return self._speaking.read(given, earlier)

    def _conversation(self, given: Body) -> str | None:
        """Raises InvalidRequest."""
        name = name_of(given.get("conversation"))
        if name is None:
            return None
        if not self.responses.conversations.keeps:
            why = "'conversation' needs a state that is not kept here: send the whole conversation as 'input'."
            raise InvalidRequest(why, param="conversation", code="unsupported_parameter")
        if given.get("previous_response_id") is not None:
            why = "'conversation' and 'previous_response_id' exclude each other."
            raise InvalidRequest(why, param="conversation", code="mutually_exclusive_parameters")
        return name

    async def _made(self, request_id: str, principal: Principal, scope: HTTPScope, read: Read) -> Call:
        """An upstream that has Responses is sent the request as it came, what it continues written out."""
        call = await super()._made(request_id, principal, scope, read)
        native = cast("ResponsesVoice", call.voice).native
        if native is None:
            return call
        # Sealed thoughts of what it continues are read, and paid for, as well.
        continues = any(read.body.get(name) for name in _CONTINUED) or refers(read.body.get("input"))
        size = len(_encode(native.body)) if continues else 0
        return msgspec.structs.replace(call, native=native, size=max(call.size, size))

    async def _fulfil(self, call: Call, send: Send, connection: Connection) -> None:
        voice = cast("ResponsesVoice", call.voice)
        if not call.directives.write:  # a client that wants nothing kept wants no response kept either
            if voice.background or voice.conversation:
                name = "background" if voice.background else "conversation"
                message = f"'{name}' needs a response that is kept; 'Cache-Control: no-store' forbids it."
                raise InvalidRequest(message, param=name, code="invalid_value")
            voice.keeps = False
        await super()._fulfil(call, send, connection)

    async def _answer(self, call: Call, send: Send, connection: Connection) -> None:
        voice = cast("ResponsesVoice", call.voice)
        if voice.background and self._background is not None:
            await self._background.answer(call, send, connection)
        else:
            await super()._answer(call, send, connection)

    async def _kept(self, call: Call, payload: bytes) -> bytes:
        voice = cast("ResponsesVoice", call.voice)
        told = await added(self.responses, call.principal, voice)
        if voice.keeps and not await self._past.put(call.principal, voice.final(), voice.items):
            voice.keeps = told = False
        return payload if told else _encode(voice.final())


class ContinuingCount(Counting, Continuing):
    """Counts what a request would send, all that it continues included."""

    def __init__(self, edge: Edge, responses: Responses, counter: Counter) -> None:
        Continuing.__init__(self, edge, responses)
        self._counter = counter
        self._shape: Json = {"object": "response.input_tokens"}


def endpoints(edge: Edge, counter: Counter, making: Continuing) -> Endpoints:
    """By path, without `/v1`."""
    return {
        "/responses": making,
        "/responses/compact": Continuing(edge, making.responses, Compacting()),
        "/responses/input_tokens": ContinuingCount(edge, making.responses, counter),
    }


class Desk:
    """What becomes of a response afterwards."""

    def __init__(self, responses: Responses, keyring: Keyring, background: Background) -> None:
        self._responses = responses
        self._keyring = keyring
        self._background = background

    async def get(self, request: AnyRequest, response_id: str) -> Json | Stream:
        owner = await asker(self._keyring, request.scope)
        kept = await self._responses.get(owner, response_id)
        if not _streamed(request):
            return kept.response
        after = _starting_after(request)
        streams = self._background.streams
        await streams.check(kept)
        return Stream(streams.follow(owner, response_id, after), headers=_EVENTS, media_type=_EVENT_STREAM)

    async def items(self, request: AnyRequest, response_id: str) -> Json:
        owner = await asker(self._keyring, request.scope)
        found = (await self._responses.get(owner, response_id)).asked
        if order_of(request):
            found.reverse()
        limit, after = limit_of(request, _LISTED), after_of(request)
        names = [str(item["id"]) for item in found]
        start = names.index(after) + 1 if after in names else 0
        data = [shown(item) for item in found[start : start + limit]]
        first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
        more = len(found) > start + limit
        return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": more}

    async def delete(self, request: AnyRequest, response_id: str) -> Json:
        await self._responses.delete(await changer(self._keyring, request.scope), response_id)
        self._background.stop(response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    async def cancel(self, request: AnyRequest, response_id: str) -> Json:
        owner = await changer(self._keyring, request.scope)
        kept = await self._responses.cancel(owner, response_id)
        if kept.status == "cancelled":
            self._background.stop(response_id)
        return kept.response


def _streamed(request: AnyRequest) -> bool:
    """Raises InvalidRequest: who waits for events must not be told something else without a word."""
    told = request.query_params.get("stream", "false")
    if told not in ("true", "false"):
        raise InvalidRequest("'stream' must be true or false.", param="stream", code="invalid_value")
    return told == "true"


def _starting_after(request: AnyRequest) -> int:
    """The query's `starting_after`; -1 where all events are wanted. Raises InvalidRequest."""
    told = request.query_params.get("starting_after")
    if told is None:
        return -1
    if not (told.isascii() and told.isdigit()):
        message = "'starting_after' must be a whole number, 0 or greater."
        raise InvalidRequest(message, param="starting_after", code="invalid_value")
    return int(told[:12])


def route_handlers() -> list[Any]:
    """With and without `/v1`."""
    both: Any = {"tags": ["Data plane"], "status_code": 200}

    @get(["/v1/responses/{response_id:str}", "/responses/{response_id:str}"], summary="A kept response", **both)
    async def get_response(request: AnyRequest, response_id: FromPath[str]) -> Json | Stream:
        return await desk(Desk, request).get(request, response_id)

    @get(
        ["/v1/responses/{response_id:str}/input_items", "/responses/{response_id:str}/input_items"],
        summary="What a response was asked",
        **both,
    )
    async def get_items(request: AnyRequest, response_id: FromPath[str]) -> Json:
        return await desk(Desk, request).items(request, response_id)

    @delete(["/v1/responses/{response_id:str}", "/responses/{response_id:str}"], summary="Delete a response", **both)
    async def delete_response(request: AnyRequest, response_id: FromPath[str]) -> Json:
        return await desk(Desk, request).delete(request, response_id)

    @post(
        ["/v1/responses/{response_id:str}/cancel", "/responses/{response_id:str}/cancel"],
        summary="Stop a response",
        **both,
    )
    async def cancel_response(request: AnyRequest, response_id: FromPath[str]) -> Json:
        return await desk(Desk, request).cancel(request, response_id)

    return [get_response, get_items, delete_response, cancel_response]
