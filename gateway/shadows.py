"""The same question to another model, after the answer: what it says beside it, and at what cost and speed.

Knows: which share of answers, the daily cap (a hard budget of the ledger under its own tag), that such calls are the
gateway's own rows and lines and nobody's budget. Does not know: how the gateway asks for itself (`errands`), how
answers are compared (`cache.judging`). Never waited for; what is too much is dropped and counted.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
import structlog

from cache.judging import Judge, Pair, text_of
from gateway.audits import Line
from gateway.call import Body, Call
from gateway.catalog import Catalog
from gateway.db.session import UNREACHABLE
from gateway.errands import Cap, Errands
from gateway.errors import GatewayError
from gateway.flights import Flight
from gateway.journey import Journey, begin
from gateway.model_settings import ShadowSettings
from gateway.stream import fold
from gateway.tasks import Tasks
from policies.money import nano, usd

log = structlog.get_logger("nearhit.shadows")

_MOST_QUEUED, _AT_ONCE = 256, 4
_LARGEST = 256 << 10  # a longer conversation is not asked twice
_GRACE = 2.0
_TAG = "nearhit/shadow"
_encode = msgspec.json.Encoder().encode


class Shadows:
    """One per worker. `random` gives numbers in [0, 1)."""

    def __init__(
        self, errands: Errands, catalog: Catalog, judge: Judge, tasks: Tasks, *, random: Callable[[], float]
    ) -> None:
        self._errands = errands
        self._catalog = catalog
        self._judge = judge
        self._random = random
        self._line = Line[tuple[Journey, Flight]](tasks, "shadow", self._shadow, most=_MOST_QUEUED, width=_AT_ONCE)

    def answered(self, journey: Journey, flight: Flight) -> None:
        """A request was answered afresh; sometimes the same is asked elsewhere. Never waits."""
        wanted = journey.route.chosen.shadow
        if wanted is None or journey.call.operation not in ("chat", "completion") or journey.call.size > _LARGEST:
            return
        if flight.landing.ended != "complete" or self._random() >= wanted.share:
            return
        if not self._line.put((journey, flight)):
            self._errands.telemetry.shadowed("dropped")

    async def idle(self) -> None:
        """Everything that was queued has been done."""
        await self._line.idle()

    async def close(self) -> None:
        await self._line.close(_GRACE)

    async def _shadow(self, job: tuple[Journey, Flight]) -> None:
        served, flight = job
        wanted = served.route.chosen.shadow
        assert wanted is not None
        tag = (_TAG, served.route.name)
        journey = begin(self._errands.own(served.call, wanted.to, tag))
        try:
            journey.route = self._catalog.resolve(wanted.to)
        except GatewayError:
            log.warning("a shadow leads nowhere", model=served.route.name, to=wanted.to)
            return
        async with self._errands.recorded(journey):
            error = await self._errands.ask(journey, _cap(tag, wanted), mark="bypass")
            verdict = "failed" if error is not None else await self._compared(served.call, flight, journey)
            shadow = journey.flight
            assert shadow is not None
            told = {"to": wanted.to, "verdict": verdict, "error": None if error is None else error.code or error.type}
            told |= {"request": journey.call.id, "kept": _figures(flight), "fresh": _figures(shadow)}
            journey.told = {"of": served.call.id, "shadow": told}
        self._errands.telemetry.shadowed(verdict)
        try:
            self._errands.ledger.explain(served.call.id, {"shadow": told})
        except UNREACHABLE as trouble:
            log.warning("a comparison could not be written", error=repr(trouble)[:200])

    async def _compared(self, call: Call, flight: Flight, journey: Journey) -> str:
        """Whether both say the same: same, different or unsure."""
        assert journey.flight is not None
        kept, fresh = _text(flight), _text(journey.flight)
        if kept is None or fresh is None:
            return "unsure"
        owner = f"{call.principal.team}/{call.principal.project}".encode()
        pair = Pair(question=_question(call.body), kept=kept, fresh=fresh, owner=owner)
        (judgement,) = await self._judge.compare([pair])
        return judgement.verdict


def _cap(tag: tuple[str, str], wanted: ShadowSettings) -> Cap:
    return Cap(scope=f"tag:{tag[0]}={tag[1]}", nano=nano(wanted.budget_usd))


def _text(flight: Flight) -> str | None:
    if not flight.chunks:
        return None
    body = flight.chunks[0].data if flight.chunks[0].final else fold(chunk.data for chunk in flight.chunks)
    return text_of(_encode(body))


def _figures(flight: Flight) -> dict[str, object]:
    """What an answer took and cost."""
    landing = flight.landing
    step = landing.answered
    took = None if step is None or not step.ended_at else round((step.ended_at - step.sent_at) * 1e3, 1)
    tokens = landing.usage.completion if landing.usage else None
    return {
        "target": f"{landing.provider}/{landing.model}",
        "ms": took,
        "completion_tokens": tokens,
        "cost_usd": usd(landing.cost_nano),
    }


def _question(body: Body) -> str:
    """The last thing said by the client."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return str(body.get("prompt") or "")
    content = cast("dict[str, Any]", messages[-1]).get("content")
    if isinstance(content, str):
        return content
    parts = cast("Sequence[dict[str, Any]]", content or ())
    return "\n".join(str(part.get("text") or "") for part in parts)
