"""`/v1/responses` as a WebSocket: every message is one request, told as the same events, on a connection that stays.

A turn is the HTTP request it would be otherwise, put to the same endpoint from within: keys, limits, budgets, ledger
and failover are there already. Knows: ASGI's WebSockets, what clients send over them, and the latest response of each
connection. Does not know: what is asked or answered.
Source: Open Responses (2026-04-24), "WebSocket Transport"; what Codex sends.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
from msgspec import Struct

from gateway.body import decode_object
from gateway.call import Body, Call, Principal
from gateway.dialects.responses_answer import ResponsesVoice
from gateway.errors import GatewayError, InvalidRequest, Overloaded
from gateway.headers import JSON, always
from gateway.ids import uuid7
from gateway.responses import Responses, not_found
from gateway.routes.asker import asker
from gateway.routes.openai import Edge
from gateway.routes.responses import Continuing
from gateway.server_socket import DRAIN

LIFETIME = 3_600.0  # seconds; clients know this limit and open another connection
REMEMBERED = 256 << 20  # bytes of conversations, by all connections of one worker
_MOST = 1_024  # connections of one worker
_AHEAD = 1  # messages that wait while one is answered; each may be as long as a body
_RESTARTING, _DONE = 1012, 1000
# Of the handshake, or of one request only; all others hold for every turn of the connection.
_NOT_HANDED_ON = (b"sec-websocket-", b"connection", b"upgrade", b"content-", b"transfer-encoding", b"idempotency-key")
_TOLD_WITH_ERRORS = (b"retry-after", b"x-request-id", b"x-ratelimit-", b"x-should-retry")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[dict[str, object]]).decode
Headers = list[tuple[bytes, bytes]]
Say = Callable[[str], Awaitable[None]]
_NOTHING_YET: Body = {"type": "message", "role": "user", "content": ""}


class Room(Struct):
    """Bytes that a worker's connections may still remember. Who finds none sends the whole conversation again."""

    left: int


class Lately:
    """The latest response of one connection, whatever its client said about keeping; others as they were kept.

    Obeys gateway.routes.responses.Past.
    """

    keeps = True

    def __init__(self, kept: Responses, room: Room) -> None:
        self._kept = kept
        self._room = room
        self._id: object = None
        self._items = b""
        self._before: list[Body] = []

    def begin(self) -> None:
        """Another turn, which continues nothing until it says so."""
        self._before = []

    async def earlier(self, owner: Principal, response_id: str) -> list[Body]:
        """Raises InvalidRequest where it is neither at hand nor kept."""
        if response_id == self._id:
            self._before = _decode(self._items)
        elif self._kept.keeps:
            self._before = await self._kept.earlier(owner, response_id)
        else:
            raise not_found(response_id)
        return self._before

    async def put(self, owner: Principal, response: Body, items: list[Body], *, background: bool = False) -> bool:
        return self._kept.keeps and await self._kept.put(owner, response, items, background=background)

    def note(self, response: Body, items: list[Body]) -> None:
        """From now on this one is the latest."""
        self.forget(self._id)
        found = _encode([*self._before, *items, *cast("list[Body]", response["output"])])
        if len(found) <= self._room.left:
            self._id, self._items = response["id"], found
            self._room.left -= len(found)

    def forget(self, response_id: object) -> None:
        """This one is not at hand any more: a turn that failed has continued it, or the connection is over."""
        if response_id == self._id:
            self._room.left += len(self._items)
            self._id, self._items = None, b""

    def close(self) -> None:
        self.forget(self._id)


class Remembering(Continuing):
    """The endpoint of one connection, which answers one request after the other."""

    def __init__(self, edge: Edge, responses: Responses, room: Room) -> None:
        self.lately = Lately(responses, room)
        super().__init__(edge, responses, past=self.lately)

    async def warm(self, given: Body, principal: Principal) -> bytes:
        """The events of a response without an answer: only what was asked is to be at hand. Raises InvalidRequest.

        An empty `input`, with which there is nothing to answer elsewhere, is a client whose user has said nothing yet.
        """
        silent = given.get("input") == []
        read = {**given, "input": [_NOTHING_YET]} if silent else given
        voice = cast("ResponsesVoice", (await self._understood(read, principal)).voice)
        voice.keeps = False
        if silent:
            voice.items = []
        name = uuid7().replace("-", "")
        told = voice.events({"id": name, "created": int(self._edge.now()), "model": given["model"]}) + voice.end()
        if voice.conversation is None:
            self.lately.note(voice.final(), voice.items)
        return told

    async def _kept(self, call: Call, payload: bytes) -> bytes:
        payload = await super()._kept(call, payload)
        voice = cast("ResponsesVoice", call.voice)
        if voice.conversation is None:  # what came before such a turn stands in its conversation
            self.lately.note(voice.final(), voice.items)
        return payload


class Sockets:
    """Lets connections in, as many as one worker should hold."""

    def __init__(self, edge: Edge, responses: Responses) -> None:
        self._edge = edge
        self._responses = responses
        self._room = Room(REMEMBERED)
        self._open = 0

    async def serve(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI."""
        await receive()  # websocket.connect
        try:
            principal = await asker(self._edge.keyring, scope)
            if self._open >= _MOST:
                raise Overloaded("Too many open connections.", headers=(("retry-after", "1"),))
        except GatewayError as error:
            await _deny(send, error)
            return
        await send({"type": "websocket.accept", "headers": [(b"x-request-id", uuid7().encode("ascii"))]})
        self._open += 1
        endpoint = Remembering(self._edge, self._responses, self._room)
        try:
            await _Talk(endpoint, principal, scope, receive, send).run()
        finally:
            endpoint.lately.close()
            self._open -= 1


class _Talk:
    """One connection from its first message to its end."""

    def __init__(self, endpoint: Remembering, principal: Principal, scope: Any, receive: Any, send: Any) -> None:
        self._endpoint = endpoint
        self._principal = principal
        given: Headers = scope["headers"]
        self._headers = [pair for pair in given if not pair[0].startswith(_NOT_HANDED_ON)]
        self._path: str = scope["path"]
        self._receive = receive
        self._send = send
        self._inbox: asyncio.Queue[Any] = asyncio.Queue(_AHEAD)
        self._gone = asyncio.Event()

    async def run(self) -> None:
        """Answer what comes, in its order, until the client has gone, the hour is over or the worker stops."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LIFETIME
        listening = loop.create_task(self._listen())
        try:
            while not self._gone.is_set():
                try:
                    async with asyncio.timeout_at(until):
                        message = await self._inbox.get()
                except TimeoutError:
                    over = InvalidRequest("This connection is an hour old. Open another.", code=_LIMIT)
                    await self._say(_told(over.http_status, over.detail(), []))
                    await self._close(_DONE)
                    return
                if message is DRAIN:
                    await self._close(_RESTARTING)
                    return
                if message["type"] == "websocket.receive":
                    await self._hear(message.get("text") or message.get("bytes") or b"")
        except asyncio.CancelledError:  # the drain is over; the turn that outlasted it has been told
            if not self._gone.is_set():
                await self._close(_RESTARTING)
        finally:
            listening.cancel()

    async def _listen(self) -> None:
        """Hear at once when the client goes, also while it is answered."""
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                self._gone.set()
            await self._inbox.put(message)
            if self._gone.is_set():
                return

    async def _hear(self, said: str | bytes) -> None:
        previous: object = None
        try:
            asked = decode_object(said.encode() if isinstance(said, str) else said)
            if (kind := asked.pop("type", None)) == "response.processed":
                return  # a client's receipt
            if kind != "response.create":
                raise InvalidRequest("Send messages of the type 'response.create'.", param="type", code="invalid_value")
            if asked.pop("background", None):
                why = "'background' is not served over a WebSocket: it waits for its answer."
                raise InvalidRequest(why, param="background", code="unsupported_parameter")
            previous = asked.get("previous_response_id")
            self._endpoint.lately.begin()
            failed = await self._turn(asked)
        except GatewayError as error:
            failed = True
            await self._say(_told(error.http_status, error.detail(), []))
        if failed:
            self._endpoint.lately.forget(previous)

    async def _turn(self, asked: Body) -> bool:
        """Whether it failed. Raises GatewayError for a fault in a request that asks for no answer."""
        if asked.pop("generate", None) is False:
            turn = _Turn(b"", self._gone, self._say)
            await turn.tell(await self._endpoint.warm(asked, self._principal))
            return False
        turn = _Turn(_encode({**asked, "stream": True}), self._gone, self._say)
        scope: Any = {"type": "http", "method": "POST", "path": self._path, "headers": self._headers}
        await self._endpoint.serve(scope, turn.receive, turn.send)
        return turn.failed

    async def _say(self, text: str) -> None:
        if not self._gone.is_set():
            try:
                await self._send({"type": "websocket.send", "text": text})
            except OSError:  # it has gone while we were writing
                self._gone.set()

    async def _close(self, code: int) -> None:
        await self._send({"type": "websocket.close", "code": code})


class _Turn:
    """One request as HTTP would have brought it, and its answer as messages. `failed` is known at its end."""

    def __init__(self, raw: bytes, gone: asyncio.Event, say: Say) -> None:
        self.failed = False
        self._raw: bytes | None = raw
        self._gone = gone
        self._say = say
        self._status = 0
        self._headers: Headers = []
        self._rest = b""

    async def receive(self) -> Any:
        """ASGI's."""
        if self._raw is not None:
            raw, self._raw = self._raw, None
            return {"type": "http.request", "body": raw, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        """ASGI's."""
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], message["headers"]
            return
        if any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in self._headers):
            await self.tell(message["body"])
            return
        self._rest += message["body"]
        if message.get("more_body"):
            return
        if self._status == 200:
            await self._say(self._rest.decode())  # a rehearsal
            return
        self.failed = True
        await self._say(_told(self._status, msgspec.json.decode(self._rest)["error"], self._headers))

    async def tell(self, events: bytes) -> None:
        """Each event as one message; its name stands in it anyway."""
        *whole, self._rest = (self._rest + events).split(b"\n\n")
        for event in whole:
            data = event[event.find(b"data: ") + 6 :]
            if not event.startswith(b"event: ") or data.startswith(_ERROR):
                continue  # a sign of life; or what the last event says too, which ends the turn
            self.failed = self.failed or event.startswith(b"event: response.failed")
            await self._say(data.decode())


_LIMIT = "websocket_connection_limit_reached"
_ERROR = b'{"type":"error"'


def _told(status: int, error: Body | dict[str, str | None], headers: Headers) -> str:
    """A failure as clients of this transport read it."""
    more = {name.decode(): value.decode("latin-1") for name, value in headers if name.startswith(_TOLD_WITH_ERRORS)}
    return _encode({"type": "error", "status": status, "error": error, "headers": more}).decode()


async def _deny(send: Any, error: GatewayError) -> None:
    """The handshake is answered as the request it is."""
    told = [*always(uuid7()), JSON, *((name.encode(), value.encode("latin-1")) for name, value in error.headers)]
    await send({"type": "websocket.http.response.start", "status": error.http_status, "headers": told})
    await send({"type": "websocket.http.response.body", "body": error.body(), "more_body": False})
