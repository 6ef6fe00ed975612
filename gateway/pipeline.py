"""The life of one request. Read this first.

    admit  ->  find (cache)  ->  fetch (a flight, whose pump dispatches)  ->  read  ->  record, keep, learn

Knows the order of the steps and nothing else: what may be reused, where to send, what it costs and how it is told to a
client stand in the files named by the calls. Until the first chunk errors are exceptions; then they end the reading.
"""

import asyncio
from collections.abc import Callable

from cache.types import Hit, Query
from gateway.call import Call
from gateway.connection import Client
from gateway.errors import BudgetExhausted, CacheMissed, GatewayError, Stopping, comes_again
from gateway.fetching import Fetching, Parts
from gateway.journey import UNSAID, Answer, Degraded, Journey, begin, explanation, serve
from gateway.keeping import replayed, with_before
from gateway.rehearsal import refusal

_TRIES = 3  # flights whose leader may be refused before this request leads one itself


class Pipeline:
    """Answers calls. One per worker."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._fetching = Fetching(parts)

    async def complete(self, call: Call, client: Client) -> Answer:
        """Answer `call`; raises GatewayError until the first chunk. A client that leaves during a wait cancels this."""
        self._parts.telemetry.entered()
        journey = begin(call)
        try:
            self._admit(journey)
            if self._parts.rates and call.given is None:
                await self._parts.rates.enter(call)
            kept = await self._find(journey)
            if kept is None and journey.miss is not None and journey.miss.vector is not None:
                kept = await self._find(journey) if await self._parts.herds.wait(journey, client.watch) else None
            if kept is None and call.given is None and (less := self._parts.cheaper.due(journey)) is not None:
                kept = await self._turn(journey, less)
            if kept is None:
                kept = await self._fetch_or_degrade(journey, client.watch)
            if journey.hit is not None and journey.hit.audit:
                self._parts.audits.check(journey)
            return kept
        except GatewayError as error:
            error.spent = error.spent or journey.spent
            journey.fail(error)
            journey.postponed = call.background and call.given is None and comes_again(error)
            self._parts.recorder.record(journey)
            raise
        except asyncio.CancelledError:
            journey.outcome.client_gone = client.gone
            if not client.gone:  # it outlasts the server's drain
                journey.fail(Stopping())
            self._parts.recorder.record(journey)
            raise
        finally:
            self._parts.elsewhere.leave(journey)

    def repeated(self, call: Call, status: int) -> None:
        """Note that `call` was told an answer made before under its idempotency key: it costs and saves nothing."""
        self._parts.telemetry.entered()
        journey = begin(call)
        outcome = journey.outcome
        outcome.source = outcome.cache = "replayed"
        outcome.status, outcome.complete = status, True
        self._parts.recorder.record(journey)

    async def rehearse(self, call: Call) -> dict[str, object]:
        """What would become of `call`: where from, at what cost at worst. Nothing is sent, held, kept or recorded."""
        journey = begin(call)
        self._admit(journey)
        kept = await self._find(journey)
        quote = self._parts.pumps.quote(call, journey.route)
        limits = self._parts.rates.rehearse(call) if self._parts.rates else []
        return {
            "object": "nearhit.dry_run",
            "source": "kept answer" if kept is not None else "upstream",
            "cache": journey.outcome.cache,
            "would_refuse": refusal(quote["route"], limits, kept=kept is not None),
            "limits": limits,
            **quote,
            "why": UNSAID | explanation(journey),
        }

    def _admit(self, journey: Journey) -> None:
        """Whether this key may ask for this model, and where that leads."""
        call, repeat = journey.call, journey.call.repeat
        journey.route = self._parts.catalog.resolve(call.model)
        self._parts.charging.admit(call, journey.route)
        read = repeat is not None and repeat.query.model == journey.route.told  # a reload may have changed the way
        journey.query = repeat.query if repeat and read else self._parts.asking.query(call, journey.route)
        journey.timings.admitted = self._parts.monotonic()

    async def _find(self, journey: Journey) -> Answer | None:
        """A kept answer that may be served instead of a fresh one."""
        call, query = journey.call, journey.query
        if isinstance(query, Query) and self._parts.asking.may_read(call):
            found = await self._parts.cache.find(
                query,
                tier=self._parts.asking.tier(call),
                max_age=call.directives.max_age,
                allowed=call.directives.allowed,
                again=journey.miss,
                hold=journey.miss is None and self._parts.herds.is_near(query),
                dry=call.directives.dry_run,
                turn=self._parts.elsewhere.turn(journey),
            )
            journey.timings.looked_up = self._parts.monotonic()
            found = with_before(found, journey.miss)
            if isinstance(found, Hit):
                flight = replayed(found)
                serve(journey, found, flight)
                return self._fetching.answer(journey, flight)
            journey.miss = found
        journey.outcome.cache = self._parts.asking.mark(call, query, journey.miss)
        if call.directives.only_if_cached:
            why = "No kept answer may be served for this request, and only-if-cached was asked for."
            raise CacheMissed(why, headers=(("x-should-retry", "false"),))
        return None

    async def _turn(self, journey: Journey, less: Degraded) -> Answer | None:
        """Go on as a request for a cheaper model; a kept answer of that one, if there is any."""
        self._parts.elsewhere.leave(journey)
        self._parts.cheaper.turn(journey, less)
        journey.query = self._parts.asking.query(journey.call, journey.route)
        return await self._find(journey)

    async def _fetch_or_degrade(self, journey: Journey, watch: Callable[[], None]) -> Answer:
        """A fresh answer, by a cheaper model where the budget wants that instead of a refusal."""
        for _ in range(_TRIES):
            waited = journey.turn is not None and await self._parts.elsewhere.wait(journey, watch)
            if waited and (kept := await self._find(journey)) is not None:
                return kept
            try:
                return await self._fetching.fetch(journey, watch)
            except BudgetExhausted as refusal:
                journey.spent = journey.spent or refusal.spent
                if journey.outcome.source == "shared":
                    continue  # refused was the one who led; this one has budgets of its own
                less = self._parts.cheaper.instead(journey, refusal)
                if less is None:
                    raise
                if (kept := await self._turn(journey, less)) is not None:
                    return kept
        return await self._fetching.fetch(journey, watch)
