"""How old an answer may be: as it was kept, as the cache is set now, and as a client wants it.

Knows an entry's two instants. Does not know: why an answer ages, who asks.
"""

from msgspec.structs import replace

from cache.types import Entry

# Clocks of hosts differ. What comes from further ahead was kept by one that was wrong, and would live as much too long.
_AHEAD = 300.0


def is_young(entry: Entry, now: float, ttl: float, max_age: float | None = None) -> bool:
    """Whether `entry` may be served at `now`. `ttl`: as it is set today, which may be less than when it was kept."""
    age = now - entry.created
    return now < entry.expires and -_AHEAD <= age <= (ttl if max_age is None else min(ttl, max_age))


def bounded(entry: Entry, ttl: float) -> Entry:
    """The same, expiring no later than today's `ttl` lets it."""
    return entry if entry.expires <= entry.created + ttl else replace(entry, expires=entry.created + ttl)
