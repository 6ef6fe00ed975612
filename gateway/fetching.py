"""A fresh answer: led by this request, or shared with an identical one that is already in flight.

Knows: who joins whom, what is taken in advance and noted. Does not know: providers, money, what is found in the cache.
"""

from collections.abc import Callable

from msgspec import Struct

from cache.semantic import SemanticCache
from cache.types import Query
from gateway.asking import Asking
from gateway.audits import Audits
from gateway.catalog import Catalog
from gateway.charging import Charging
from gateway.cheaper import Cheaper
from gateway.elsewhere import Elsewhere
from gateway.flights import Flight, Flights
from gateway.herds import Herds
from gateway.journey import Answer, Journey, Recorder
from gateway.pump import Pumps
from gateway.rates import Rates
from gateway.reading import Reading
from gateway.shadows import Shadows
from gateway.telemetry import Telemetry


class Parts(Struct, frozen=True, kw_only=True):
    """What the pipeline is made of; put together in `gateway.app`."""

    catalog: Catalog
    charging: Charging
    asking: Asking
    cache: SemanticCache
    flights: Flights
    pumps: Pumps
    recorder: Recorder
    rates: Rates
    cheaper: Cheaper
    herds: Herds
    elsewhere: Elsewhere
    audits: Audits
    shadows: Shadows
    telemetry: Telemetry
    monotonic: Callable[[], float]


class Fetching:
    """One per worker."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def fetch(self, journey: Journey, watch: Callable[[], None]) -> Answer:
        """A fresh answer: led, or shared with an identical call that is already in flight."""
        call = journey.call
        rates = self._parts.rates if call.given is None else None
        key = self._parts.asking.shared_key(call, journey.query)
        expected = await rates.expect(call) if rates else None
        flight, leads = self._parts.flights.join(key, streamed=call.stream)
        if rates and expected is not None:
            rates.follow(expected, flight, leads=leads)
        journey.flight = flight
        journey.outcome.source = "upstream" if leads else "shared"
        if leads:
            if journey.outcome.cache == "shared":  # before, with one that was refused
                journey.outcome.cache = self._parts.asking.mark(call, journey.query, journey.miss)
            self._parts.pumps.start(flight, call, journey.route)
            self._parts.herds.lead(journey, flight)
            flight.at_end(lambda: self._consider(journey, flight))
        else:
            journey.outcome.cache = "shared"
        self._parts.elsewhere.fly(journey, flight)
        watch()
        try:
            await flight.begun()
        except BaseException:
            flight.leave()
            raise
        self._parts.elsewhere.begun(journey, flight)
        return self.answer(journey, flight)

    def answer(self, journey: Journey, flight: Flight) -> Answer:
        journey.timings.first_chunk = self._parts.monotonic()
        reading = Reading(journey.call, flight, journey.outcome, lambda: self._parts.recorder.record(journey))
        return Answer(journey=journey, flight=flight, reading=reading)

    def _consider(self, journey: Journey, flight: Flight) -> None:
        """Keep a whole answer that may be reused, and learn from it. Called once per flight, when it has ended."""
        if isinstance(journey.query, Query) and self._parts.asking.may_keep(journey.call):
            self._parts.audits.answered(journey, flight)
        self._parts.shadows.answered(journey, flight)
