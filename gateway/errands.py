"""What the gateway asks by itself: audits of hits and questions to a judging model, through the way of every request.

Knows: how such a call is marked, whose budgets it draws on, the daily cap on all of them (a hard budget of the ledger,
so it holds over restarts and workers), and that each leaves a row and a ledger line. Does not know: why it is asked.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import cast

import msgspec
import structlog
from sqlalchemy.exc import IntegrityError

from gateway.call import AUDIT_SCOPE, AUDIT_TAG, CacheMark, Call, Directives, Principal
from gateway.catalog import Catalog
from gateway.db.session import UNREACHABLE
from gateway.errors import GatewayError, Overloaded, UpstreamFailed, UpstreamTimeout
from gateway.flights import Flight
from gateway.ids import uuid7
from gateway.journey import Journey, Recorder, begin
from gateway.ledger import Ledger
from gateway.pump import Pumps
from gateway.settings import CacheSettings
from gateway.stream import fold
from gateway.telemetry import Telemetry
from policies.money import nano

log = structlog.get_logger("nearhit.audits")

_PATIENCE = 300.0
# Whose rows the questions to a judging model are: they may hold answers of several tenants, and are nobody's budget.
_OWN = Principal(key_id="nearhit", team="nearhit", project="judge")
_OWN_SHADOW = Principal(key_id="nearhit", team="nearhit", project="shadow")
_encode = msgspec.json.Encoder().encode


class Cap(msgspec.Struct, frozen=True, kw_only=True):
    """A tag's budget: what such errands may cost a day in all, nano-USD."""

    scope: str
    nano: int


class Means(msgspec.Struct, frozen=True, kw_only=True):
    """What it takes to ask."""

    catalog: Catalog
    pumps: Pumps
    ledger: Ledger
    recorder: Recorder
    telemetry: Telemetry
    now: Callable[[], float]
    monotonic: Callable[[], float]


class Errands:
    """One per worker."""

    def __init__(self, means: Means, settings: CacheSettings) -> None:
        self._means = means
        self._charge = settings.audit_charge
        self.allowed = nano(settings.audit_budget_usd)
        self.ledger = means.ledger
        self.telemetry = means.telemetry
        self.monotonic = means.monotonic

    def again(self, call: Call) -> Call:
        """A client's request once more, as the gateway's: marked, capped, whole."""
        now, asked = self.monotonic(), call.directives
        directives = Directives(tags=(AUDIT_TAG,))
        if self._charge:
            directives = Directives(user=asked.user, tags=(*asked.tags, AUDIT_TAG))
        return msgspec.structs.replace(
            call,
            id=uuid7(),
            stream=False,
            include_usage=False,
            directives=directives,
            received=now,
            at=self._means.now(),
            deadline=now + _PATIENCE,
            repeat=None,
            charged=self._charge,
        )

    def own(self, call: Call, model: str, tag: tuple[str, str]) -> Call:
        """A client's request to another model, as the gateway's own: nobody's rows but its, nobody's budget."""
        now = self.monotonic()
        body = {name: value for name, value in call.body.items() if name not in ("stream", "stream_options")}
        return msgspec.structs.replace(
            call,
            id=uuid7(),
            principal=_OWN_SHADOW,
            body={**body, "model": model},
            model=model,
            stream=False,
            include_usage=False,
            directives=Directives(tags=(tag,)),
            received=now,
            at=self._means.now(),
            deadline=now + _PATIENCE,
            repeat=None,
            charged=False,
            voice=None,
        )

    async def say(self, model: str, messages: list[dict[str, object]]) -> str:
        """What a model answers to the gateway itself. Raises GatewayError."""
        body: dict[str, object] = {"model": model, "messages": messages, "temperature": 0}
        now = self.monotonic()
        call = Call(
            id=uuid7(),
            operation="chat",
            principal=_OWN,
            body=body,
            model=model,
            stream=False,
            include_usage=False,
            directives=Directives(tags=(AUDIT_TAG,)),
            received=now,
            at=self._means.now(),
            deadline=now + _PATIENCE,
            size=len(_encode(body)),
            charged=False,
        )
        journey = begin(call)
        journey.route = self._means.catalog.resolve(model)
        async with self.recorded(journey):
            if (error := await self.ask(journey)) is not None:
                raise error
            assert journey.flight is not None
            return _text(fold([chunk.data for chunk in journey.flight.chunks]))

    async def ask(self, journey: Journey, cap: Cap | None = None, mark: CacheMark = "audit") -> GatewayError | None:
        """Have `journey.flight` flown to its end; why there is no whole answer, if there is none.

        `cap`: of the day's money, that of audits where none is given; `mark`: how the row says what it was.
        """
        flight = journey.flight = Flight(None, streamed=False)
        cap = cap or Cap(scope=AUDIT_SCOPE, nano=self.allowed)
        try:
            await self.ledger.cap(cap.scope, cap.nano)
        except (IntegrityError, *UNREACHABLE) as trouble:  # another worker sets it too, or the database is away
            log.info("a cap on errands is not in force", scope=cap.scope, error=repr(trouble)[:200])
            return Overloaded("The cap on what the gateway asks by itself is not in force yet.")
        journey.outcome.source, journey.outcome.cache = "upstream", mark
        ended = asyncio.get_running_loop().create_future()
        flight.join()
        flight.at_end(lambda: ended.done() or ended.set_result(None))
        self._means.pumps.start(flight, journey.call, journey.route)
        error: GatewayError | None = None
        try:
            async with asyncio.timeout(_PATIENCE):
                await ended
            error = flight.error
        except TimeoutError:
            error = UpstreamTimeout("The answer took too long.")
        except asyncio.CancelledError:
            # Nobody will ever read it: given up at once, not drained. Its money is settled as its provider bills.
            flight.landing.unwanted = True
            raise
        finally:
            flight.leave()
        if error is None and flight.landing.ended != "complete":
            error = UpstreamFailed("The answer broke off.")
        if error is not None:
            journey.outcome.status, journey.outcome.error = error.http_status, error.code or error.type
        return error

    @asynccontextmanager
    async def recorded(self, journey: Journey) -> AsyncGenerator[None, None]:
        """Whatever happens inside, what was sent upstream leaves its row."""
        self.telemetry.entered()
        try:
            yield
            journey.outcome.complete = True
        finally:
            if journey.flight is not None and journey.flight.landing.steps:
                self._means.recorder.record(journey)
            else:
                self.telemetry.left()


def _text(body: dict[str, object]) -> str:
    choices = cast("list[dict[str, dict[str, object]]]", body.get("choices") or [{}])
    content = choices[0].get("message", {}).get("content")
    return content if isinstance(content, str) else ""
