"""Fresh answers beside kept ones, in the background: misses that had candidates, and hits whose coin fell.

    answered   a miss has its fresh answer anyway: kept, and judged beside the kept ones; the cache learns, adds a key
    check      a served hit is asked again upstream, within a daily cap in the ledger, and judged likewise

Knows: queues that are bounded and never waited for, and what is told of the outcome. Does not know: how the gateway
asks for itself and what that may cost (`errands`), how answers are compared and what is learned (the cache).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

import structlog
from msgspec import Struct

from cache.semantic import SemanticCache
from cache.store import StoreDown
from cache.types import Kept, Query
from cache.verify import Alert, Compared, Watch
from gateway.cache_alerts import CacheAlerts
from gateway.call import AUDIT_SCOPE, Call
from gateway.db.session import UNREACHABLE
from gateway.errands import Errands
from gateway.errors import BudgetExhausted
from gateway.flights import Flight
from gateway.journey import Journey, begin
from gateway.keeping import kept_from
from gateway.tasks import Tasks
from gateway.telemetry import Telemetry

log = structlog.get_logger("nearhit.audits")

_MOST_QUEUED = 256
_AUDITS_AT_ONCE, _COMPARED_AT_ONCE = 2, 8
_LARGEST = 256 << 10  # a longer conversation is not asked twice
_PAUSE = 60.0  # after the day's money is used up, before it is tried again
_LITTLE = 20  # times what is left makes less than the day's money: then nobody's audits are tried for that long
_EVERYBODY = ("", "", "")
_MOST_BROKE = 1_000
_GRACE = 2.0
J = TypeVar("J")


class Line(Generic[J]):
    """Jobs that wait for their turn: at most `most`, `width` at once, a task only while there are any."""

    def __init__(
        self, tasks: Tasks, name: str, work: Callable[[J], Coroutine[Any, Any, None]], *, most: int, width: int
    ) -> None:
        self._tasks = tasks
        self._name = name
        self._work = work
        self._most = most
        self._width = width
        self._waiting: deque[J] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._closed = False

    def put(self, job: J) -> bool:
        """False where it is dropped: too many wait already."""
        if self._closed or len(self._waiting) >= self._most:
            return False
        self._waiting.append(job)
        if len(self._running) < self._width:
            task = self._tasks.spawn(self._run(), self._name)
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return True

    async def _run(self) -> None:
        while self._waiting:
            job = self._waiting.popleft()
            try:
                await self._work(job)
            except (StoreDown, *UNREACHABLE) as error:
                log.warning("an answer could not be compared", error=repr(error)[:300])

    async def idle(self) -> None:
        """Nothing waits and nothing runs."""
        while self._running:
            await asyncio.wait(set(self._running))

    async def close(self, grace: float) -> None:
        """What waits is dropped; what runs has `grace` seconds."""
        self._closed = True
        self._waiting.clear()
        running = set(self._running)
        if running:
            _, late = await asyncio.wait(running, timeout=grace)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


class _Miss(Struct, frozen=True):
    journey: Journey
    kept: Kept


class Audits:
    """One per worker."""

    def __init__(self, errands: Errands, cache: SemanticCache, tasks: Tasks) -> None:
        self._errands = errands
        self._cache = cache
        self._tasks = tasks
        self._broke_until: dict[tuple[str, str, str], float] = {}
        self._misses = Line[_Miss](tasks, "compare", self._compare, most=_MOST_QUEUED, width=_COMPARED_AT_ONCE)
        self._hits = Line[Journey](tasks, "audit", self._check, most=_MOST_QUEUED, width=_AUDITS_AT_ONCE)

    def answered(self, journey: Journey, flight: Flight) -> None:
        """A request was answered afresh: keep that, and learn from it later, if there is anything to learn."""
        kept = kept_from(journey.call, flight)
        if kept is None or not isinstance(journey.query, Query):
            return
        flight.spelled = kept.answer
        call, vector = journey.call, journey.miss.vector if journey.miss else None
        if not self._cache.keep_soon(journey.query, kept, vector=vector, ttl=call.directives.ttl):
            keep = self._cache.keep(journey.query, kept, vector=vector, ttl=call.directives.ttl)
            flight.keeping = self._tasks.spawn(keep, f"keep {call.id}")
        if journey.miss is not None and journey.miss.sight is not None and not self._misses.put(_Miss(journey, kept)):
            self._errands.telemetry.compared("dropped")

    def check(self, journey: Journey) -> None:
        """A hit was served whose coin fell. Never waits."""
        if self._errands.allowed <= 0 or journey.call.size > _LARGEST:
            return
        if self._is_broke(journey.call):
            self._errands.telemetry.audited("refused")
        elif not self._hits.put(journey):
            self._errands.telemetry.audited("dropped")

    async def idle(self) -> None:
        """Everything that was queued has been done."""
        await self._misses.idle()
        await self._hits.idle()

    async def close(self) -> None:
        """Audits under way are given up (their money is settled); what waits is dropped."""
        await self._hits.close(_GRACE)
        await self._misses.close(_GRACE)

    async def _compare(self, job: _Miss) -> None:
        journey = job.journey
        assert isinstance(journey.query, Query)
        assert journey.miss is not None
        ttl = journey.call.directives.ttl
        try:
            compared = await self._cache.compare(journey.query, job.kept, journey.miss, ttl=ttl)
        except StoreDown:
            self._errands.telemetry.compared("failed")
            raise
        self._errands.telemetry.compared(compared.result)
        if compared.result != "none":
            judged = _judged(compared, journey.miss.explore, "explore")
            self._errands.ledger.explain(journey.call.id, {"judged": judged})

    async def _check(self, served: Journey) -> None:
        errands = self._errands
        journey = begin(errands.again(served.call))
        journey.route, journey.query = served.route, served.query
        result = "failed"
        try:
            async with errands.recorded(journey):
                error = await errands.ask(journey)
                if isinstance(error, BudgetExhausted):
                    result = "refused"
                    self._broke(served.call, error)
                if error is None:
                    result = await self._judge(journey, served)
        finally:
            errands.telemetry.audited(result)

    def _is_broke(self, call: Call) -> bool:
        """Whether there was no money for such an audit a moment ago."""
        now = self._errands.monotonic()
        return any(now < self._broke_until.get(whose, now) for whose in (_EVERYBODY, _group(call)))

    def _broke(self, call: Call, refusal: BudgetExhausted) -> None:
        """What was too dear for what is left, or for a budget of its tenant, says nothing of other tenants' audits."""
        used_up = refusal.scope == AUDIT_SCOPE and refusal.headroom * _LITTLE < self._errands.allowed
        if len(self._broke_until) >= _MOST_BROKE:
            self._broke_until.clear()
        self._broke_until[_EVERYBODY if used_up else _group(call)] = self._errands.monotonic() + _PAUSE

    async def _judge(self, journey: Journey, served: Journey) -> str:
        assert isinstance(served.query, Query)
        assert journey.flight is not None
        assert served.hit is not None
        kept = kept_from(journey.call, journey.flight)
        if kept is None:
            return "failed"
        keep, ttl = served.call.directives.write, served.call.directives.ttl
        compared = await self._cache.compare(served.query, kept, served.hit, keep=keep, ttl=ttl)
        judged = _judged(compared, served.hit.entry.root, "audit")
        journey.told = {"of": served.call.id, "judged": judged}
        self._errands.ledger.explain(served.call.id, {"judged": judged, "audit": journey.call.id})
        return {"same": "same", "different": "wrong", "undecided": "undecided"}.get(compared.result, "failed")


def watch_of(telemetry: Telemetry, alerts: CacheAlerts) -> Watch:
    """What the cache measures becomes a metric, an alert a metric, a line in the log and a message to people."""

    def alert(found: Alert) -> None:
        telemetry.alerted("wrong-hits")
        alerts.broke(found)
        told = {"team": found.group.team, "project": found.group.project, "model": found.group.model}
        log.error(
            "more hits by meaning are wrong than allowed",
            **told,
            rate=round(found.rate, 4),
            low=round(found.low, 4),
            high=round(found.high, 4),
            allowed=found.budget,
        )

    return Watch(measured=telemetry.measured, alert=alert, kept=alerts.kept, unreadable=telemetry.unreadable)


def _group(call: Call) -> tuple[str, str, str]:
    return call.principal.team, call.principal.project, call.model


def _judged(compared: Compared, answer: int | None, kind: str) -> dict[str, object]:
    """For the explanation: whether they were the same (None: undecided), of which answer, by whom and how surely."""
    same = {"same": True, "different": False}.get(compared.result)
    by = [{"by": one.by, "verdict": one.verdict, "probability": one.probability} for one in compared.judgements]
    return {"same": same, "entry": answer, "kind": kind, "key": compared.key, "judgements": by}
