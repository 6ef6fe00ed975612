"""The data plane on the wire: bytes in, an answer out, as raw ASGI so that nothing stands between.

Knows: reading a request into a `Call`, sending an answer as one body or as events, telling every failure, all in the
dialect of the path. Does not know: the dialects (`gateway.dialects`), what happens in between (`gateway.pipeline`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import closing, nullcontext, suppress
from typing import Any, NamedTuple, cast

import msgspec
import structlog
from litestar.types import HTTPScope, Receive, Send
from msgspec import Struct

from cache.types import Query
from gateway import cache_field
from gateway.auth import Keyring
from gateway.body import arrived_body, decode_object, read_body
from gateway.call import PASSED, Body, Call, Directives, Operation, Principal
from gateway.connection import Connection
from gateway.dialects import Asked, Dialect, Voice
from gateway.dialects.plain import Plain
from gateway.directives import NONE, directives
from gateway.errors import GatewayError, Internal, MethodNotAllowed, Stopping, in_doubt
from gateway.foreign_replies import mirrored
from gateway.gate import Gate
from gateway.headers import EVENTS, JSON, Pairs, always, of_answer, of_cost, pairs, printable
from gateway.idempotency import Idempotency, asked
from gateway.ids import uuid7
from gateway.journey import Answer
from gateway.ledger import Ledger
from gateway.pipeline import Pipeline
from gateway.rates import Rates
from gateway.recording import Recording
from gateway.repeats import Repeat, Repeats
from gateway.routes.asker import asker
from gateway.server_protocol import LET_IN, Door
from gateway.settings import Server
from gateway.stream import DONE, in_band_error
from gateway.tasks import Tasks
from gateway.ticking import Ticking

# In the ASGI scope: the model by the path, for a body that names none.
DEPLOYMENT = "nearhit.deployment"
log = structlog.get_logger("nearhit.http")
_encode = msgspec.json.Encoder().encode
_REFUSED = (
    "content-type: application/json\r\nopenai-version: 2020-10-01\r\n"
    "access-control-expose-headers: x-request-id\r\nx-request-id: "
)
_LONGEST_LIST = 2_000  # characters of names of ignored fields; proxies refuse long headers
_STILL = nullcontext()
_LONGEST = 600.0  # seconds a call may take in all where the client names no shorter time


class Edge(Struct, frozen=True, kw_only=True):
    """What the data plane needs.

    `ignored`: names the fields of a body that the chosen target does not know. `refused`: counts an operation and a
    status of requests that never became a call. `now`: the database's clock, by which requests are dated; `wall`: this
    host's, by which the cache counts.
    """

    gate: Gate
    pipeline: Pipeline
    keyring: Keyring
    ledger: Ledger
    rates: Rates
    tasks: Tasks
    server: Server
    repeats: Repeats
    idempotency: Idempotency
    ignored: Callable[[Answer], list[str]]
    refused: Callable[[str, int], None]
    now: Callable[[], float]
    wall: Callable[[], float]
    monotonic: Callable[[], float]


class Read(NamedTuple):
    """A request as it was read: its body, what its headers ask for, when it came, its length in bytes."""

    body: Body
    directives: Directives
    received: float
    size: int


class Endpoint:
    """One dialect on one path."""

    def __init__(self, edge: Edge, dialect: Dialect) -> None:
        self._edge = edge
        self._dialect = dialect
        self._operation: Operation = dialect.operation
        self._repeats = edge.repeats

    async def serve(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever becomes of it. Never raises but for a cancellation that is not the client's."""
        request_id, gate = uuid7(), self._edge.gate
        if (full := gate.enter() if LET_IN in scope else gate.refusal(scope["headers"])) is not None:
            self._edge.refused(self._operation, full.http_status)
            await self._respond(send, full, request_id)
            return
        connection = Connection(receive, self._edge.tasks)
        call: Call | None = None
        try:
            call = await self._read(request_id, scope, receive, connection)
            await self._fulfil(call, send, connection)
        except GatewayError as error:
            if call is None:
                self._edge.refused(self._operation, error.http_status)
            await self._respond(send, error, request_id, self._edge.rates.told(call) if call is not None else ())
        except asyncio.CancelledError:
            if not connection.gone:  # what a server does with those that outlast its drain
                if not connection.begun:  # else the stream has said so
                    with suppress(RuntimeError):  # told again, under a key: its own stream has begun
                        await self._respond(send, Stopping(), request_id)
                raise
        except Exception as error:
            log.exception("unexpected error", request_id=request_id)
            await self._respond(send, broken(error), request_id)
        finally:
            connection.close()
            self._edge.gate.left()

    def door(self, headers: Any) -> tuple[int, bytes] | None:
        """The answer to a newcomer that is not let in, ready to be written: many of them must cost next to nothing."""
        if (full := self._edge.gate.knock(headers)) is None:
            return None
        self._edge.refused(self._operation, full.http_status)
        request_id = uuid7()
        status, payload = self._dialect.refusal(full, request_id)
        lines = "".join([f"{name}: {value}\r\n" for name, value in full.headers]) + self._dialect.lines(request_id)
        rest = f"{_REFUSED}{request_id}\r\n{lines}content-length: {len(payload)}\r\n\r\n"
        return status, rest.encode("latin-1") + payload

    def _fulfil(self, call: Call, send: Send, connection: Connection) -> Coroutine[Any, Any, None]:
        if call.directives.dry_run:
            return self._rehearse(call, send)
        if (key := call.directives.idempotency_key) is not None:
            return self._answer_once(key, call, send, connection)
        return self._answer(call, send, connection)

    async def _rehearse(self, call: Call, send: Send) -> None:
        payload = _encode(await self._edge.pipeline.rehearse(call))
        await send_whole(send, payload, [*always(call.id), JSON])

    async def _answer_once(self, key: str, call: Call, send: Send, connection: Connection) -> None:
        connection.watch()
        patience = call.deadline - self._edge.monotonic()
        what = (self._dialect.name, decode_object(connection.raw) if connection.raw else call.body)
        wanted = asked(call.principal.key_id, key, what, call.id, patience)
        again = await self._edge.idempotency.answer(wanted, lambda recording: self._record(call, recording), send)
        if again is not None:
            self._edge.pipeline.repeated(call, again)

    async def _record(self, call: Call, recording: Recording) -> bool:
        """Answer for whoever asks under its key, gone or not; whether this may have cost something."""
        nobody = Connection(_silence, self._edge.tasks)
        try:
            await self._answer(call, recording.send, nobody)
        except GatewayError as error:
            doubtful = in_doubt(error)
            recording.passing = not doubtful
            await self._respond(recording.send, error, call.id, self._edge.rates.told(call))
            return doubtful
        except Exception as error:
            log.exception("unexpected error", request_id=call.id)
            if not recording.messages:
                await self._respond(recording.send, broken(error), call.id)
        finally:
            nobody.close()
        return True

    async def _answer(self, call: Call, send: Send, connection: Connection) -> None:
        answer = await self._edge.pipeline.complete(call, connection)
        if call.voice is not None:
            answer.journey.told["dialect"] = self._dialect.name
        try:
            await self._send(answer, send, connection)
        except asyncio.CancelledError:
            if not connection.gone:
                answer.reading.broke(Stopping())
            raise
        finally:
            answer.reading.close()
        if call.repeat is None and self._dialect.repeats:
            self._remember(answer, connection.raw)

    async def _respond(
        self, send: Send, error: GatewayError, request_id: str, more: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """Tell a failure that happened before the first byte; `more`: headers besides the error's own."""
        status, payload = self._dialect.refusal(error, request_id)
        told = [*always(request_id), *pairs(self._dialect.lines(request_id)), JSON]
        told.append((b"content-length", b"%d" % len(payload)))
        told += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in (*error.headers, *more)]
        await send({"type": "http.response.start", "status": status, "headers": told})
        await send({"type": "http.response.body", "body": payload, "more_body": False})

    async def _read(self, request_id: str, scope: HTTPScope, receive: Receive, connection: Connection) -> Call:
        """The request as a `Call`: identified, decoded once, checked."""
        edge, received = self._edge, self._edge.monotonic()
        principal = await self._principal(scope)
        headers: Any = scope["headers"]
        limit, whole = edge.server.max_body, connection.body()
        if whole is not None:
            raw = await arrived_body(whole, headers, limit=limit)
        else:
            with edge.gate.aside():
                wait = edge.server.body_timeout
                raw = await read_body(receive, headers, limit=limit, timeout=wait, monotonic=edge.monotonic)
        directed = directives(headers)
        deployed = cast("dict[str, str | None]", scope).get(DEPLOYMENT)
        known = directed is NONE and self._dialect.repeats
        repeat = self._repeats.get((self._operation, principal.key_id, raw)) if known else None
        if repeat is not None:
            return self._again(request_id, principal, repeat, received, len(raw))
        body = decode_object(raw)
        if "cache" in body and self._dialect.repeats:
            body, directed = cache_field.obeyed(body, directed)
        if deployed is None:
            connection.raw = raw
        elif body.get("model") is None:
            body = {**body, "model": deployed}
        return await self._made(request_id, principal, scope, Read(body, directed, received, len(raw)))

    def _principal(self, scope: HTTPScope) -> Coroutine[Any, Any, Principal]:
        """Who asks. Raises MethodNotAllowed, Unauthorized, NotAllowed."""
        if scope["method"] != "POST":
            raise MethodNotAllowed(f"{scope['method']} is not served here; use POST.", headers=(("allow", "POST"),))
        return asker(self._edge.keyring, scope)

    async def _made(self, request_id: str, principal: Principal, scope: HTTPScope, read: Read) -> Call:  # noqa: ARG002 - other dialects look at its headers
        """The call of what was read."""
        edge, (given, directed, received, size) = self._edge, read
        inner = await self._understood(given, principal)
        return Call(
            id=request_id,
            operation=self._operation,
            principal=principal,
            body=inner.body,
            model=str(inner.body["model"]),
            stream=inner.stream,
            include_usage=inner.include_usage,
            directives=directed,
            received=received,
            at=edge.now(),
            deadline=received + min(directed.timeout or _LONGEST, _LONGEST),
            # Budgets are bounded by it, so it is never less than what the upstream is sent.
            size=size if inner.voice is None or self._operation in PASSED else max(size, len(_encode(inner.body))),
            voice=inner.voice,
            ignored=inner.ignored,
            need=inner.need,
        )

    async def _understood(self, given: Body, principal: Principal) -> Asked:  # noqa: ARG002 - not every dialect has a memory
        """The request in the inner language."""
        return self._dialect.read(given)

    async def _kept(self, call: Call, payload: bytes) -> bytes:  # noqa: ARG002 - not every dialect keeps what it has said
        """What is told last, once all is known: `payload` where nothing stands against it."""
        return payload

    def _again(self, request_id: str, principal: Principal, repeat: Repeat, received: float, size: int) -> Call:
        """A request that was read before."""
        return Call(
            id=request_id,
            operation=self._operation,
            principal=principal,
            body=repeat.body,
            model=repeat.model,
            stream=repeat.stream,
            include_usage=repeat.include_usage,
            directives=NONE,
            received=received,
            at=self._edge.now(),
            deadline=received + _LONGEST,
            size=size,
            repeat=repeat,
        )

    def _remember(self, answer: Answer, raw: bytes) -> None:
        """An exact hit is likely to be asked for again in the same words."""
        journey, call = answer.journey, answer.journey.call
        if journey.hit is None or journey.hit.tier != "exact" or call.directives is not NONE:
            return
        if journey.degraded is not None:  # for now, not for good
            return
        if raw and isinstance(journey.query, Query):
            repeat = Repeat(
                body=call.body,
                model=call.model,
                stream=call.stream,
                include_usage=call.include_usage,
                query=journey.query,
            )
            self._repeats.keep((self._operation, call.principal.key_id, raw), repeat)

    async def _send(self, answer: Answer, send: Send, connection: Connection) -> None:
        if answer.journey.call.stream:
            await self._send_events(answer, send, connection)
            return
        payload = await self._kept(answer.journey.call, await answer.reading.whole())
        kind = getattr(answer.journey.call.voice, "media_type", "application/json")
        lines = f"{self._lines(answer, ended=True)}{of_cost(answer)}content-type: {printable(kind)}\r\n"
        if not connection.answer(lines, payload):
            await send_whole(send, payload, pairs(lines))

    async def _send_events(self, answer: Answer, send: Send, connection: Connection) -> None:
        lines = self._lines(answer, ended=answer.journey.hit is not None) + EVENTS
        if answer.journey.hit is not None:
            lines += of_cost(answer)
        connection.begun = True
        await send({"type": "http.response.start", "status": 200, "headers": pairs(lines)})
        voice, push = answer.journey.call.voice, connection.push
        try:
            with _STILL if push is None else closing(Ticking(push, answer.reading.position)):
                while events := await answer.reading.events():
                    await send({"type": "http.response.body", "body": events, "more_body": True})
                    if push is not None:
                        await answer.reading.follow(push)
            await self._kept(answer.journey.call, b"")
            last = DONE if voice is None else voice.end()
        except GatewayError as error:
            last = _failed(voice, error)
        except asyncio.CancelledError:
            if not connection.gone:
                last = _failed(voice, Stopping())
                await send({"type": "http.response.body", "body": last, "more_body": False})
            raise
        await send({"type": "http.response.body", "body": last, "more_body": False})

    def _lines(self, answer: Answer, *, ended: bool) -> str:
        edge, call, landing = self._edge, answer.journey.call, answer.flight.landing
        remaining = edge.ledger.remaining(call, landing.provider, landing.model)
        lines = of_answer(answer, now=edge.monotonic(), at=edge.wall(), remaining=remaining)
        if edge.rates:
            lines += "".join([f"{name}: {value}\r\n" for name, value in edge.rates.told(call)])
        if ignored := edge.ignored(answer):
            lines += f"x-nearhit-ignored: {printable(', '.join(ignored))[:_LONGEST_LIST]}\r\n"
        if edge.server.mirror_headers:
            lines += mirrored(answer, edge.server.mirror_headers, ended=ended)
        return lines + self._dialect.lines(call.id)


def _failed(voice: Voice | None, error: GatewayError) -> bytes:
    return in_band_error(error) if voice is None else voice.failed(error)


def broken(error: Exception) -> Internal:
    """Somebody's bug, without its details."""
    return Internal(f"Something broke here, not in your request ({type(error).__name__}).")


async def _silence() -> Any:
    """A client that never says anything and never goes."""
    await asyncio.get_running_loop().create_future()


async def send_whole(send: Send, payload: bytes, told: Pairs) -> None:
    """One JSON body with status 200."""
    told = [*told, (b"content-length", b"%d" % len(payload))]
    await send({"type": "http.response.start", "status": 200, "headers": told})
    await send({"type": "http.response.body", "body": payload, "more_body": False})


Endpoints = dict[str, Endpoint]


def endpoints(edge: Edge) -> Endpoints:
    """By path, without `/v1`."""
    return {
        "/chat/completions": Endpoint(edge, Plain("chat")),
        "/completions": Endpoint(edge, Plain("completion")),
        "/embeddings": Endpoint(edge, Plain("embedding")),
    }


def data_plane(found: Endpoints) -> dict[str, Callable[[Any, Any, Any], Awaitable[None]]]:
    """The endpoints by path, to be asked before any router; with and without `/v1`."""
    return {prefix + path: endpoint.serve for path, endpoint in found.items() for prefix in ("", "/v1")}


def doors(found: Endpoints) -> dict[str, Door]:
    """Who turns newcomers away, by path, before anything is made for them."""
    return {prefix + path: endpoint.door for path, endpoint in found.items() for prefix in ("", "/v1")}
