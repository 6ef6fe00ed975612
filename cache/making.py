"""What an answer is kept as: an entry with an id, a life and a vector, or none where it must not be kept.

Knows the limits on size and life. Does not know stores, tiers, or what an answer says.
"""

import secrets
from collections.abc import Callable
from random import Random

from msgspec.structs import replace

from cache.types import CacheConfig, Entry, Kept, Query
from cache.vectors import Vector, pack

# Ids fit a JavaScript number, for pages and clients that read JSON with one.
_ID_BITS = 53
# So many ids follow one another from a place that is drawn: a store puts their rows on the same pages of its file.
_RUN_BITS = 10
# What is kept of a prompt, for pages and purges; by meaning only far shorter ones are matched.
_LONGEST_TEXT = 16_384


class Maker:
    """`encoder`: the name of what makes the vectors, once it is known. `now`: wall-clock seconds."""

    def __init__(self, config: CacheConfig, encoder: Callable[[], str], now: Callable[[], float]) -> None:
        self._config = config
        self._encoder = encoder
        self._now = now
        # Seeded by the system once; ids must not collide, nobody needs to be unable to guess them.
        self._draw = Random(secrets.randbits(128)).getrandbits  # noqa: S311 - see above
        self._ids = iter(range(0))

    def entry(self, query: Query, kept: Kept, embedding: Vector | None, ttl: float | None) -> Entry | None:
        """What would be kept; None when it must not be. `ttl` in seconds can only shorten the configured life."""
        life = self._config.ttl
        if ttl is not None:
            life = min(life, ttl)
        if query.max_ttl is not None:
            life = min(life, query.max_ttl)
        if self._config.mode == "off" or life <= 0 or len(kept.answer) > self._config.max_answer:
            return None
        now = self._now()
        return Entry(
            id=self._next_id(),
            scope=query.scope,
            exact=query.exact,
            text=query.text[:_LONGEST_TEXT],
            answer=kept.answer,
            prompt_tokens=kept.prompt_tokens,
            completion_tokens=kept.completion_tokens,
            cost_nano=kept.cost_nano,
            latency_ms=kept.latency_ms,
            created=now,
            expires=now + life,
            origin=kept.origin,
            team=query.team,
            project=query.project,
            model=query.model,
            vector=b"" if embedding is None else pack(embedding),
            encoder="" if embedding is None else self._encoder(),
        )

    def found_by(self, entry: Entry, embedding: Vector | None) -> Entry:
        """The same entry, to be found by meaning too where there is an embedding."""
        return entry if embedding is None else replace(entry, vector=pack(embedding), encoder=self._encoder())

    def _next_id(self) -> int:
        found = next(self._ids, None)
        if found is None:
            begins = self._draw(_ID_BITS - _RUN_BITS) << _RUN_BITS
            self._ids = iter(range(begins + 1, begins + (1 << _RUN_BITS)))  # none is 0, which stands for no id
            found = next(self._ids)
        return found
