"""Which kept answer is worth least: one number for each, so that the least worthy is found without sorting them all.

The value is that of GreedyDual-Size-Frequency (Cherkasova 1998): what a use saves, times how often, per byte. Ageing is
forward decay (Cormode 2009): a use counts 2^(its time / half life), so a number never has to be rewritten because time
has passed, and the numbers of all workers and hosts can be compared. Everything is in log2, which keeps it small.
Knows money, time and bytes as plain numbers. Does not know entries or stores.
"""

import math

# After so many seconds a use counts half.
HALF_LIFE = 6 * 3_600.0
# Waiting costs too: an answer of a model that is free saves its seconds. Nano-USD per millisecond, a dollar an hour.
NANO_PER_MS = 278.0
_LEAST_NANO = 1_000.0
# Above any price there is: a million USD, or longer than a year.
_MOST = 1e15


def worth(cost_nano: float, latency_ms: float, size: int) -> float:
    """What one use saves per byte kept, as log2. Nonsense (negative, not finite) counts as nothing saved."""
    saved = _LEAST_NANO + _sane(cost_nano) + NANO_PER_MS * _sane(latency_ms)
    return math.log2(saved / max(1, size))


def first(worth_of: float, now: float) -> float:
    """The rank of an entry that is kept now: as if it had been used once."""
    return worth_of + now / HALF_LIFE


def again(rank: float, worth_of: float, now: float, times: int = 1) -> float:
    """The rank after `times` more uses now: the sum of all uses, each weighed by its time."""
    if times < 1:
        return rank
    more = first(worth_of, now) + math.log2(times)
    low, high = sorted((rank, more))
    if not math.isfinite(high - low):
        return high
    return high + math.log2(1.0 + 2.0 ** max(low - high, -1_000.0))


def surplus(held: int, most: int, held_bytes: int, most_bytes: int) -> int:
    """How many entries to let go now; a few too few rather than one too many, since their sizes differ."""
    over = max(0, held - most)
    if held_bytes > most_bytes and held:
        over = max(over, 1, (held_bytes - most_bytes) * held // held_bytes // 2)
    return min(over, max(0, held - 1))


def _sane(value: float) -> float:
    return min(value, _MOST) if value > 0 else 0.0
