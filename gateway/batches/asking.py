"""One request of a batch, on the way of every request: checked, admitted, found or fetched, charged, recorded.

Knows: the dialect of each endpoint, which failures are worth another try. Does not know: lines, files, SQL.
"""

from collections.abc import Callable
from contextlib import closing

import msgspec
import structlog
from msgspec import Struct

from gateway import cache_field
from gateway.batches.shapes import Batch, Line
from gateway.call import Body, Call, Directives, Operation, Principal
from gateway.connection import Detached
from gateway.dialects import Dialect
from gateway.dialects.plain import Plain
from gateway.dialects.responses import Responses
from gateway.errors import (
    BudgetExhausted,
    CredentialRefused,
    GatewayError,
    Internal,
    InvalidRequest,
    Overloaded,
    UpstreamFailed,
    comes_again,
    in_doubt,
)
from gateway.pipeline import Pipeline

log = structlog.get_logger("nearhit.batches")

BATCH_TAG = ("nearhit/batch", "1")
_LONGEST = 600.0  # seconds one request may take
_LATER = (429, 500, 502, 503, 504)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, object]).decode
_DIALECTS: dict[str, Dialect] = {
    "/v1/chat/completions": Plain("chat"),
    "/v1/completions": Plain("completion"),
    "/v1/embeddings": Plain("embedding"),
    "/v1/responses": Responses(),
}


def operation_of(batch: Batch) -> Operation:
    """What its lines ask for."""
    return _DIALECTS[batch.endpoint].operation


class Told(Struct, frozen=True, kw_only=True):
    """A whole answer or a refusal. `again`: seconds after which another try may do better; None: it will not.

    `turned_away`: it never got as far as an upstream, so it costs no try. `held_up`: its budget has the money once
    what is held for others has been settled.
    """

    status: int
    body: bytes
    again: float | None = None
    turned_away: bool = False
    held_up: bool = False


class Asking:
    """`now`: wall-clock seconds, `monotonic` never goes back. `yields`: people's requests need this worker whole."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        now: Callable[[], float],
        monotonic: Callable[[], float],
        yields: Callable[[], bool],
    ) -> None:
        self._pipeline = pipeline
        self._yields = yields
        self._now = now
        self._monotonic = monotonic

    async def ask(self, batch: Batch, principal: Principal, line: Line, request_id: str) -> Told:
        """Never raises but for a cancellation."""
        dialect = _DIALECTS[batch.endpoint]
        try:
            if self._yields():
                raise Overloaded("People's requests go before batches.", headers=(("retry-after", "1"),))
            call = self.call(batch, principal, line, request_id)
            answer = await self._pipeline.complete(call, Detached())
            with closing(answer.reading):
                return Told(status=200, body=await answer.reading.whole())
        except GatewayError as error:
            status, body = dialect.refusal(error, request_id)
            budget = isinstance(error, BudgetExhausted)
            # Its own part may hold what an answer is charged to: that must not wait for itself.
            away = comes_again(error) and not (budget and line.given is not None)
            final = line.given is not None and not away  # it is not asked again for what has been answered
            again = None if final else _pause(error)
            return Told(status=status, body=body, again=again, turned_away=away, held_up=away and budget)
        except Exception as error:
            log.exception("a request of a batch broke", request_id=request_id)
            broken = Internal(f"Something broke here, not in your request ({type(error).__name__}).")
            return Told(status=500, body=broken.body())

    def refused(self, batch: Batch, error: GatewayError, request_id: str) -> Told:
        """How a refusal is told to who asked at this endpoint."""
        status, body = _DIALECTS[batch.endpoint].refusal(error, request_id)
        return Told(status=status, body=body)

    def call(self, batch: Batch, principal: Principal, line: Line, request_id: str) -> Call:
        """Raises GatewayError for what is no request."""
        dialect, body = _DIALECTS[batch.endpoint], _decode(line.request)
        if body.get("stream"):
            raise InvalidRequest("A request of a batch cannot be streamed.", param="stream", code="invalid_value")
        directives = msgspec.convert(batch.directives, Directives)
        if dialect.repeats:
            body, directives = cache_field.obeyed(body, directives)
        inner = dialect.read(_plain(body))
        if line.given is not None and line.given.status:  # what was made is charged, whatever else could have answered
            directives = msgspec.structs.replace(directives, read=False, only_if_cached=False, max_cost_nano=None)
        received = self._monotonic()
        return Call(
            id=request_id,
            operation=dialect.operation,
            principal=principal,
            body=inner.body,
            model=str(inner.body["model"]),
            stream=False,
            include_usage=inner.include_usage,
            directives=msgspec.structs.replace(directives, tags=(*directives.tags, BATCH_TAG)),
            received=received,
            at=self._now(),
            deadline=received + min(directives.timeout or _LONGEST, _LONGEST),
            size=max(len(line.request), len(_encode(inner.body))),
            voice=inner.voice,
            ignored=inner.ignored,
            need=inner.need,
            background=True,
            given=line.given,
        )


def _plain(body: Body) -> Body:
    return {name: value for name, value in body.items() if name not in ("stream", "stream_options")}


def _pause(error: GatewayError) -> float | None:
    """Only what surely cost nothing is tried again; how long to wait at least."""
    if in_doubt(error) or isinstance(error, CredentialRefused):
        return None
    told = dict(error.headers).get("retry-after-ms")
    if comes_again(error):
        return int(told) / 1_000 if told else 1.0
    if isinstance(error, UpstreamFailed) and error.http_status in _LATER:
        wait: object = getattr(error, "retry_after", None)
        return wait if isinstance(wait, float) else 1.0
    return None
