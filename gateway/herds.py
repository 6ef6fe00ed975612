"""Near-identical requests at the same time: who comes second waits for the first one's answer, if that may be served.

Knows: which answers are being made, by scope and meaning, and how long is waited. Whether one would do for the other is
the cache's to say, before the wait as after it. Does not know: policies, how answers are made, money.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from cache.semantic import SemanticCache
from cache.types import Query, Uncacheable
from cache.vectors import Vector, from_bytes
from gateway.flights import Flight
from gateway.journey import Journey

_MOST_IN_SCOPE = 64
_MOST_SCOPES = 2_048
_LANDED = 0.02  # where an answer is kept elsewhere, it is there a moment after its end


class _Lead(NamedTuple):
    text: str
    vector: Vector
    flight: Flight


class Herds:
    """One per worker. `wait`: seconds at most; 0 switches it off."""

    def __init__(self, cache: SemanticCache, *, wait: float) -> None:
        self._cache = cache
        self._wait = wait
        self._leads: dict[bytes, list[_Lead]] = {}

    def __len__(self) -> int:
        return sum(len(leads) for leads in self._leads.values())

    def is_near(self, query: Query | Uncacheable) -> bool:
        """Whether answers are being made in this scope, so that `wait` may lead to a second look-up."""
        return isinstance(query, Query) and query.scope in self._leads

    def lead(self, journey: Journey, flight: Flight) -> None:
        """An answer is being made that others may want to wait for."""
        query, miss = journey.query, journey.miss
        if not isinstance(query, Query) or miss is None or miss.vector is None or not self._wait or flight.key is None:
            return
        leads = self._leads.setdefault(query.scope, [])
        if len(leads) >= _MOST_IN_SCOPE or len(self._leads) > _MOST_SCOPES:
            self._tidy(query.scope)
            return
        mine = _Lead(query.text, from_bytes(miss.vector), flight)
        leads.append(mine)
        flight.at_end(lambda: self._ended(query.scope, mine))

    async def wait(self, journey: Journey, watch: Callable[[], None]) -> bool:
        """True when a near answer has been made meanwhile, so that looking again is worth it.

        Whoever does not look again has had its look-up, and that counts in what the scope learns.
        """
        looks_again = False
        try:
            looks_again = await self._made_meanwhile(journey, watch)
        finally:
            if not looks_again and journey.miss is not None:
                self._cache.count(journey.miss)
        return looks_again

    async def _made_meanwhile(self, journey: Journey, watch: Callable[[], None]) -> bool:
        query, miss = journey.query, journey.miss
        directives = journey.call.directives
        if not isinstance(query, Query) or miss is None or miss.vector is None or not directives.write:
            return False
        if directives.max_age == 0:
            return False  # what is kept by then is older than that
        leads = self._leads.get(query.scope)
        if not leads:
            return False
        vector = from_bytes(miss.vector)
        near = max(leads, key=lambda lead: float(lead.vector @ vector))
        likeness = float(near.vector @ vector)
        allowed = directives.allowed
        if near.text == query.text or not await self._cache.would_serve(query, vector, near.text, likeness, allowed):
            return False  # the same text with other words around it shares a flight, or must not
        watch()
        ended = asyncio.get_running_loop().create_future()
        near.flight.at_end(lambda: ended.done() or ended.set_result(None))
        await asyncio.wait({ended}, timeout=self._wait)
        if not near.flight.done or near.flight.landing.ended != "complete":
            return False
        await asyncio.sleep(_LANDED)
        return True

    def _ended(self, scope: bytes, lead: _Lead) -> None:
        leads = self._leads.get(scope, [])
        self._leads[scope] = [other for other in leads if other is not lead]
        self._tidy(scope)

    def _tidy(self, scope: bytes) -> None:
        if not self._leads.get(scope):
            self._leads.pop(scope, None)
