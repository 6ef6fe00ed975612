"""The life of one request. Read this first.

    admit  ->  find (cache)  ->  fetch (a flight, whose pump dispatches)  ->  read  ->  record, keep, learn

Knows the order of the steps and nothing else: what may be reused, where to send, what it costs and how it is told to a
client stand in the files named by the calls. Until the first chunk errors are exceptions; then they end the reading.
"""

import asyncio
from collections.abc import Callable

from msgspec import Struct

from cache.semantic import SemanticCache
from cache.types import Hit, Query
from gateway.asking import Asking
from gateway.audits import Audits
from gateway.call import Call
from gateway.catalog import Catalog
from gateway.errors import CacheMissed, GatewayError, NotAllowed
from gateway.flights import Flight, Flights
from gateway.herds import Herds
from gateway.journey import Answer, Journey, Recorder, begin, explanation, serve
from gateway.keeping import replayed
from gateway.pump import Pumps
from gateway.reading import Reading
from gateway.telemetry import Telemetry


class Parts(Struct, frozen=True, kw_only=True):
    """What the pipeline is made of; put together in `gateway.app`."""

    catalog: Catalog
    asking: Asking
    cache: SemanticCache
    flights: Flights
    pumps: Pumps
    recorder: Recorder
    herds: Herds
    audits: Audits
    telemetry: Telemetry
    monotonic: Callable[[], float]


class Pipeline:
    """Answers calls. One per worker."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def complete(self, call: Call, watch: Callable[[], None]) -> Answer:
        """Answer `call`; raises GatewayError until the first chunk.

        `watch` is called before a wait that may be long: from then on a client that goes away cancels this task.
        """
        self._parts.telemetry.entered()
        journey = begin(call)
        try:
            self._admit(journey)
            kept = await self._find(journey)
            if kept is None and journey.miss is not None and journey.miss.vector is not None:
                kept = await self._find(journey) if await self._parts.herds.wait(journey, watch) else None
            if kept is None:
                return await self._fetch(journey, watch)
            if journey.hit is not None and journey.hit.audit:
                self._parts.audits.check(journey)
            return kept
        except GatewayError as error:
            journey.outcome.status, journey.outcome.error = error.http_status, error.code or error.type
            self._parts.recorder.record(journey)
            raise
        except asyncio.CancelledError:
            journey.outcome.client_gone = True
            self._parts.recorder.record(journey)
            raise

    async def rehearse(self, call: Call) -> dict[str, object]:
        """What would become of `call`: where from, at what cost at worst. Nothing is sent, held, kept or recorded."""
        journey = begin(call)
        self._admit(journey)
        kept = await self._find(journey)
        source = "kept answer" if kept is not None else "upstream"
        return {
            "object": "nearhit.dry_run",
            "source": source,
            "cache": journey.outcome.cache,
            "route": self._parts.pumps.quote(call, journey.route),
            "why": explanation(journey),
        }

    def _admit(self, journey: Journey) -> None:
        """Whether this key may ask for this model, and where that leads."""
        call, allowed, repeat = journey.call, journey.call.principal.models, journey.call.repeat
        journey.route = repeat.route if repeat is not None else self._parts.catalog.resolve(call.model)
        if allowed is not None and call.model not in allowed:
            raise NotAllowed(f"This key may not use the model `{call.model}`.", param="model")
        journey.query = repeat.query if repeat is not None else self._parts.asking.query(call, journey.route)
        journey.timings.admitted = self._parts.monotonic()

    async def _find(self, journey: Journey) -> Answer | None:
        """A kept answer that may be served instead of a fresh one."""
        call, query = journey.call, journey.query
        journey.outcome.cache = self._parts.asking.mark(call, query)
        if isinstance(query, Query) and self._parts.asking.may_read(call):
            found = await self._parts.cache.find(
                query,
                tier=self._parts.asking.tier(call),
                max_age=call.directives.max_age,
                max_error_rate=call.directives.max_error_rate,
            )
            journey.timings.looked_up = self._parts.monotonic()
            if isinstance(found, Hit):
                flight = replayed(found)
                serve(journey, found, flight)
                return self._answer(journey, flight)
            journey.miss = found
        if call.directives.only_if_cached:
            raise CacheMissed("No kept answer may be served for this request, and only-if-cached was asked for.")
        return None

    async def _fetch(self, journey: Journey, watch: Callable[[], None]) -> Answer:
        """A fresh answer: led, or shared with an identical call that is already in flight."""
        call = journey.call
        key = self._parts.asking.shared_key(call, journey.query)
        flight, leads = self._parts.flights.join(key, streamed=call.stream)
        journey.flight = flight
        journey.outcome.source = "upstream" if leads else "shared"
        if leads:
            self._parts.pumps.start(flight, call, journey.route)
            self._parts.herds.lead(journey, flight)
            flight.at_end(lambda: self._consider(journey, flight))
        else:
            journey.outcome.cache = "shared"
        watch()
        try:
            await flight.begun()
        except BaseException:
            flight.leave()
            raise
        return self._answer(journey, flight)

    def _answer(self, journey: Journey, flight: Flight) -> Answer:
        journey.timings.first_chunk = self._parts.monotonic()
        reading = Reading(journey.call, flight, journey.outcome, lambda: self._parts.recorder.record(journey))
        return Answer(journey=journey, flight=flight, reading=reading)

    def _consider(self, journey: Journey, flight: Flight) -> None:
        """Keep a whole answer that may be reused, and learn from it. Called once per flight, when it has ended."""
        if isinstance(journey.query, Query) and self._parts.asking.may_keep(journey.call):
            self._parts.audits.answered(journey, flight)
