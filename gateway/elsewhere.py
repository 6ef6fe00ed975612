"""Answers that another worker is making: waited for, so that identical requests cost one call among all workers.

Knows: which requests wait and make others wait, for how long, what is told of it. A request that may not be answered by
another's answer, or makes none that is kept for others, does neither. Does not know: how workers agree whose turn it is
(`cache.leases`), how answers are made, money: whoever waits holds none.
"""

import asyncio
from collections.abc import Callable

from cache.leases import Leases, Turn
from cache.waiting import Lease
from gateway.asking import Asking
from gateway.flights import Flight, Flights
from gateway.journey import Journey
from gateway.steps import waited
from gateway.telemetry import Telemetry

# Of the time that a request has left: the rest is for an answer of its own.
_MOST_OF_DEADLINE = 0.5


class Elsewhere:
    """One per worker. `wait`: seconds at most, 0 switches it off; `beyond`: after the first token, for a stream."""

    def __init__(  # noqa: PLR0913 - where things stand, and two bounds
        self,
        leases: Leases,
        asking: Asking,
        flights: Flights,
        telemetry: Telemetry,
        *,
        monotonic: Callable[[], float],
        wait: float,
        beyond: float,
    ) -> None:
        self._leases = leases
        self._asking = asking
        self._flights = flights
        self._telemetry = telemetry
        self._monotonic = monotonic
        self._wait = wait if leases.shared else 0.0
        self._beyond = beyond

    def turn(self, journey: Journey) -> Turn | None:
        """What its look-up finds out with; None for a request that neither waits nor is waited for."""
        if journey.turn is None and self._wait:
            call, asked = journey.call, journey.call.directives
            key = self._asking.shared_key(call, journey.query)
            if key is not None and call.given is None and not (asked.only_if_cached or asked.dry_run):
                journey.turn = self._leases.turn(key[1])
        return journey.turn

    async def wait(self, journey: Journey, watch: Callable[[], None]) -> bool:
        """True when an answer has been kept meanwhile, so that looking again is worth it."""
        turn, call = journey.turn, journey.call
        if turn is None or not turn.elsewhere or call.directives.max_age == 0:
            return False  # what is kept by then is older than that
        if self._flights.flies(self._asking.shared_key(call, journey.query)):
            return False  # an answer that is on its way here already is nearer
        left = self._wait - waited(journey.timings)  # it may have waited before, for a model that it cannot pay
        if left <= 0:
            return False
        watch()
        started = self._monotonic()
        within = min(left, (call.deadline - started) * _MOST_OF_DEADLINE)
        result = "left"
        try:
            result = await turn.wait(max(within, 0.0), self._beyond if call.stream else None)
        finally:
            ended = self._monotonic()
            journey.timings.waited = (started, ended)
            journey.told["waited"] = {"ms": (ended - started) * 1e3, "result": result}
            self._telemetry.waited(result)
        return result == "kept"

    def fly(self, journey: Journey, flight: Flight) -> None:
        """A flight that this request is on: while it flies, workers elsewhere wait for it."""
        lease = journey.turn.fly() if journey.turn is not None else None
        if lease is not None:
            flight.at_end(lambda: _landed(flight, lease))

    def begun(self, journey: Journey, flight: Flight) -> None:
        """Its first chunk is in hand."""
        if flight.streamed and not flight.done and journey.turn is not None and journey.turn.lease is not None:
            journey.turn.lease.begun()

    def leave(self, journey: Journey) -> None:
        """The request has its answer, or will have none."""
        if journey.turn is not None:
            journey.turn.leave()
            journey.turn = None


def _landed(flight: Flight, lease: Lease) -> None:
    """The lease goes when the answer is kept, not before: in between another worker would make it once more."""
    keeping: asyncio.Task[int | None] | None = flight.keeping
    if keeping is None:
        lease.landed(in_vain=flight.landing.ended == "complete")
    else:
        keeping.add_done_callback(lambda kept: lease.landed(in_vain=_was_in_vain(kept)))


def _was_in_vain(keeping: "asyncio.Task[int | None]") -> bool:
    """Whole, and not kept all the same: it has no time to live, or the store has no room."""
    return not keeping.cancelled() and keeping.exception() is None and keeping.result() is None
