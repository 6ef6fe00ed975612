"""One request on its way, what is noted about it, and the row it ends as.

Does not know: the order of the steps (that is `gateway.pipeline`), HTTP, the database.
"""

from collections.abc import Callable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from cache.leases import Turn
from cache.types import Hit, Looked, Miss, Query, Uncacheable
from cache.verify import ticket
from gateway.call import Call, Computed, Outcome
from gateway.catalog import Route
from gateway.errors import GatewayError
from gateway.flights import Flight, Landing, Step
from gateway.ledger import Ledger
from gateway.reading import Reading
from gateway.steps import Attempt, Timings, away, waited
from gateway.telemetry import Telemetry
from policies.money import cost_nano

_SCOPE_SHOWN = 12
# What an explanation leaves out where there is nothing to say; a rehearsal says so.
UNSAID: dict[str, object] = {
    **dict.fromkeys(("reason", "semantic_bar", "entry", "lookup_ms", "scope", "ticket")),
    "looked": [],
    "headroom": {},
    "attempts": [],
}


class Degraded(Struct, frozen=True, kw_only=True):
    """A cheaper `model` is asked than the one `asked` for: the fraction `used` of the budget `scope` is gone."""

    scope: str
    asked: str
    model: str
    used: float


class Journey(Struct, kw_only=True):
    """`query`: as the cache sees the request. `flight`: the answer it reads, once it has joined one.

    `degraded`: another model is asked than the client named. `told`: what else its explanation says.
    `spent`: an attempt for the model that was asked first may have cost something. `turn`: what it knows of an answer
    being made elsewhere.
    """

    call: Call
    outcome: Outcome
    timings: Timings
    route: Route = Route("", ())
    query: Query | Uncacheable = Uncacheable("not-asked")
    miss: Miss | None = None
    hit: Hit | None = None
    flight: Flight | None = None
    recorded: bool = False
    degraded: Degraded | None = None
    told: dict[str, object] = msgspec.field(default_factory=dict[str, object])
    spent: bool = False
    postponed: bool = False
    turn: Turn | None = None

    def fail(self, error: GatewayError) -> None:
        """Note that the client is told this instead of an answer."""
        self.outcome.status, self.outcome.error = error.http_status, error.code or error.type


class Answer(Struct, kw_only=True):
    """An answer that has begun. `reading` must be closed by whoever holds it."""

    journey: Journey
    flight: Flight
    reading: Reading


def begin(call: Call) -> Journey:
    return Journey(call=call, outcome=Outcome(call=call), timings=Timings(received=call.received))


def serve(journey: Journey, hit: Hit, flight: Flight) -> None:
    """Note that a kept answer is being served."""
    outcome = journey.outcome
    journey.hit, journey.miss, journey.flight = hit, None, flight
    outcome.source = hit.tier
    outcome.cache = "hit-exact" if hit.tier == "exact" else "hit-semantic"
    outcome.similarity, outcome.confidence = hit.similarity, hit.confidence
    outcome.saved_nano = hit.entry.cost_nano


class Recorder:
    """Writes exactly one row and one observation for every request, whatever became of it. A line of a batch that is
    `postponed`, and was sent nowhere, is no request yet: it would count again each time it finds no room.

    `answered` hears of every answer that was bought, once it has ended. `encoder_nano`: of a second of the encoder.
    """

    def __init__(
        self,
        ledger: Ledger,
        telemetry: Telemetry,
        *,
        monotonic: Callable[[], float],
        encoder_nano: float = 0.0,
        answered: Callable[[Call, Flight], None] | None = None,
    ) -> None:
        self._ledger = ledger
        self._telemetry = telemetry
        self._monotonic = monotonic
        self._encoder_nano = encoder_nano
        self._answered = answered

    def record(self, journey: Journey) -> None:
        """The request has ended. What its flight cost is waited for: the row is written when both are over."""
        journey.timings.ended = self._monotonic()
        if journey.flight is None:
            self._write(journey)
        else:
            journey.flight.at_end(lambda: self._write(journey))

    def _write(self, journey: Journey) -> None:
        if journey.recorded:
            return
        journey.recorded = True
        outcome, timings = journey.outcome, journey.timings
        found = journey.hit or journey.miss
        if found is not None and found.embedded is not None:
            timings.embedded = (found.embedded.start, found.embedded.end)
            timings.read = found.embedded.read
            outcome.embed_nano = round(found.embedded.computed * self._encoder_nano)
        outcome.waited_ms = waited(timings) * 1e3
        if journey.flight is not None:
            _note(journey, journey.flight.landing)
        if journey.postponed and not outcome.attempts:
            self._telemetry.left()
            return
        outcome.total_ms = (timings.ended - timings.received) * 1e3
        if timings.first_chunk:
            outcome.ttft_ms = (timings.first_chunk - timings.received) * 1e3
        outcome.explain = explanation(journey)
        self._ledger.record(outcome)
        if self._answered is not None and outcome.source == "upstream" and journey.flight is not None:
            self._answered(outcome.call, journey.flight)
        self._telemetry.observe(outcome, timings)
        if journey.miss is not None:
            self._telemetry.missed(journey.miss.reason)
        self._telemetry.left()


def _note(journey: Journey, landing: Landing) -> None:
    """Where the answer came from and what it cost: the leader's to pay, a follower's to have saved."""
    outcome = journey.outcome
    outcome.usage = landing.usage or outcome.usage
    outcome.finish = landing.finish
    outcome.provider, outcome.model = landing.provider, landing.model
    if outcome.source == "shared":  # what broke off has answered nobody, and saved nothing
        outcome.saved_nano = landing.cost_nano if landing.ended == "complete" else 0
    elif outcome.source == "upstream":
        outcome.attempts = len(landing.steps)
        outcome.cost_nano, outcome.cost_status = landing.cost_nano, landing.cost_status
        outcome.discount_nano = _discount(landing)
        outcome.routed_nano = landing.routed_nano
        journey.timings.attempts = [_attempt(step, landing.computed) for step in landing.steps]
        outcome.waited_ms += landing.paused * 1e3
        if landing.steps:
            journey.timings.dispatched = landing.steps[0].held_at
            last = landing.answered or landing.steps[-1]
            outcome.answer_ms = (last.ended_at - last.sent_at) * 1e3 if last.sent_at else 0.0
            outcome.upstream_ms = away([(step.sent_at, step.ended_at) for step in landing.steps if step.sent_at]) * 1e3


def _discount(landing: Landing) -> int:
    """What the provider's own prompt cache took off the cost, nano-USD; negative where writing to it cost more."""
    usage, price = landing.usage, landing.price
    if usage is None or price is None or not (usage.cached or usage.cache_write):
        return 0
    return cost_nano(replace(usage, cached=0, cache_write=0, cache_write_1h=0), price) - cost_nano(usage, price)


def _attempt(step: Step, computed: Computed | None) -> Attempt:
    """`computed` is of the attempt that answered, the only one with a first chunk."""
    told = computed if step.first_chunk_at else None
    return Attempt(
        id=step.id,
        queue_ms=None if told is None else told.queue_ms,
        prefill_ms=None if told is None else told.prefill_ms,
        provider=step.provider,
        model=step.model,
        started=step.held_at,
        sent=step.sent_at,
        first_chunk=step.first_chunk_at,
        ended=step.ended_at,
        result=step.result,
    )


def explanation(journey: Journey) -> dict[str, object]:
    """Why this was a hit or a miss and which way it went: numbers and names, never content, and bounded in size.

    Only what there is to say: it is made, written and kept for every request.
    """
    told: dict[str, object] = {"route": journey.route.names}
    _looked(journey, told)
    told["marks"] = _marks(journey)
    if journey.flight is not None:
        landing, started = journey.flight.landing, journey.timings.received
        told["attempts"] = [_tried(step, started) for step in landing.steps]
        if landing.short:  # a budget left room for a shorter answer only
            told["max_tokens"] = {"limited_by": "budget", "budget": landing.short, "max_tokens": landing.capped}
        for say in landing.told:
            told |= say()
    if journey.told:
        told |= journey.told
    return told


def _looked(journey: Journey, told: dict[str, object]) -> None:
    """What the cache made of it."""
    query, hit = journey.query, journey.hit
    if isinstance(query, Uncacheable):
        told["reason"] = query.reason
        return
    told["scope"] = query.scope.hex()[:_SCOPE_SHOWN]
    if query.semantic_bar is not None:
        told["semantic_bar"] = query.semantic_bar
    if hit is not None:
        told["entry"], told["ticket"] = hit.entry.id, ticket(query, hit)
    elif journey.miss is not None:
        told["reason"] = journey.miss.reason
    if (found := hit or journey.miss) is not None:
        told["lookup_ms"] = found.lookup_ms
        if found.looked:
            told["looked"] = [_candidate(one) for one in found.looked]
        if found.sight is not None:
            told["headroom"] = found.sight.headroom


def _tried(step: Step, started: float) -> dict[str, object]:
    """One attempt; instants in ms since the request came."""
    told: dict[str, object] = {
        "id": step.id,
        "provider": step.provider,
        "model": step.model,
        "result": step.result,
        "start_ms": (step.held_at - started) * 1e3,
        "cost_nano": step.cost_nano,
    }
    if step.sent_at:
        told["sent_ms"] = (step.sent_at - started) * 1e3
    if step.first_chunk_at:
        told["first_chunk_ms"] = (step.first_chunk_at - started) * 1e3
    if step.ended_at:
        told["end_ms"] = (step.ended_at - started) * 1e3
    if step.replica:
        told["replica"] = step.replica
    if step.keys:
        told["key"] = step.keys[-1]
    if step.why:
        told["why"] = step.why
    return told


def _marks(journey: Journey) -> dict[str, float]:
    """When the steps were done, in ms; with the attempts this is all that the waterfall of a request is drawn from."""
    timings, started = journey.timings, journey.timings.received
    marks: dict[str, float] = {}
    if timings.admitted:
        marks["admitted"] = (timings.admitted - started) * 1e3
    if timings.looked_up:
        marks["looked_up"] = (timings.looked_up - started) * 1e3
    if timings.embedded is not None:
        marks["embed_start"], marks["embed_end"] = ((mark - started) * 1e3 for mark in timings.embedded)
    if timings.waited is not None:
        marks["wait_start"], marks["wait_end"] = ((mark - started) * 1e3 for mark in timings.waited)
    if timings.read is not None:
        marks["read_start"], marks["read_end"] = ((mark - started) * 1e3 for mark in timings.read)
    if timings.first_chunk:
        marks["first_chunk"] = (timings.first_chunk - started) * 1e3
    if timings.ended:
        marks["ended"] = (timings.ended - started) * 1e3
    computed = journey.flight.landing.computed if journey.flight is not None else None
    if computed is not None:
        marks["queue"], marks["prefill"] = computed
    return marks


def _candidate(one: Looked) -> dict[str, object]:
    """What was thought of a kept answer; features only where a policy weighed it."""
    said: dict[str, object] = {
        "entry": one.entry_id,
        "similarity": one.similarity,
        "confidence": one.confidence,
        "guard": one.guard,
    }
    if one.answer_id not in {0, one.entry_id}:
        said["answer"] = one.answer_id
    if one.risk is not None:
        said |= {"risk": one.risk, "guards": one.guards, "features": one.features}
    return said
