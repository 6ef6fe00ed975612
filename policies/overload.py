"""Which newcomers are turned away when a worker cannot keep up: how many, whose first, and when to come back.

The signal is the delay that every request in this worker meets, the event loop's lag. While it stands above its target
the worker was busy all the time, so what it got done in that time is its capacity, and no more than that is let in,
less what the backlog needs; below the target more is tried again, a little at a time. This holds for whatever the load
is made of, hits of a millisecond or streams of a minute, where a bound on how many are in flight would be right for one
of them only. (The law is AIMD on a rate, with the decrease measured instead of guessed.)
Knows: numbers handed in. Does not know: clocks, requests, who measures.
"""

from collections.abc import Iterable
from math import inf

from msgspec import Struct

_BURST = 1.0  # seconds: what few are late for in so long is worked off instead of refused;
_LONG, _LATE = 0.5, 0.05  # where many come: what takes so long, or delays by so much all the time, is an overload
_DRAIN = 0.5  # seconds in which a backlog is to be worked off
_HARDEST = 0.7  # of the capacity, at most so much is kept for a backlog at once
_TRY_MORE = 1.05  # per update, while the delay is small
_NEARLY = 0.95  # of the capacity is tried at once when it is
_PLENTY = 3.0  # where the rate is so many times what comes, there is no overload any more
_CLEAR = 0.3  # of a stretch must have gone into new work, or it says nothing about the capacity
_TRUST_MORE, _TRUST_LESS = 0.5, 0.1  # in one new measurement that is higher, or lower: less was often let in than fits
_MOST = 0.98  # some always come through, so that the end of an overload is noticed
_LONGEST_WAIT = 30.0


class Pressure(Struct, frozen=True):
    """`share`: of newcomers to turn away on average, 0 to 0.98. `rate`: let in per second, inf: all that come.

    `capacity`: per second, as last measured; inf: never. `delay`: seconds, as of the last update. `standing`: for so
    many seconds it has been above the target.
    """

    share: float = 0.0
    rate: float = inf
    capacity: float = inf
    delay: float = 0.0
    standing: float = 0.0


class Seen(Struct, frozen=True):
    """One stretch of `seconds`: the least delay seen in it, how many came, how many of them were let in.

    `cut`: more would have been let in, had there been time for them. `burst`: so few came since there was last no delay
    that they may be all.
    """

    seconds: float
    delay: float
    came: int
    let_in: int
    cut: bool = False
    burst: bool = False


def pressed(before: Pressure, seen: Seen, target: float) -> Pressure:
    """The pressure after that stretch."""
    rate, capacity = before.rate, before.capacity
    coming = seen.came / seen.seconds
    standing = before.standing + seen.seconds if seen.delay > target else 0.0
    calm = standing < _BURST if seen.burst else seen.delay <= _LATE and standing < _LONG
    if rate == inf and calm:
        return Pressure(delay=seen.delay, standing=standing)
    if seen.delay > target or (seen.cut and rate < inf):
        capacity = _measured(before, seen)
        backlog = max(0.0, seen.delay - target) / _DRAIN
        rate = min(rate * _TRY_MORE, capacity * (1.0 - min(_HARDEST, backlog)))
    elif rate < inf:
        rate = max(rate, _NEARLY * capacity) * _TRY_MORE
        if rate > _PLENTY * coming:
            rate = capacity = inf
    share = 0.0 if rate >= coming else 1.0 - rate / coming
    return Pressure(min(_MOST, share), rate, capacity, seen.delay, standing)


def _measured(before: Pressure, seen: Seen) -> float:
    """What was let in, over the time that it took: all of this stretch, and what the backlog grew by (or less)."""
    took = seen.seconds + seen.delay - before.delay
    if seen.let_in == 0 or took < _CLEAR * seen.seconds:
        return before.capacity if before.capacity < inf else max(1, seen.let_in) / seen.seconds
    fresh = seen.let_in / took
    if before.capacity == inf:
        return fresh
    return before.capacity + (_TRUST_MORE if fresh > before.capacity else _TRUST_LESS) * (fresh - before.capacity)


def level(asked: Iterable[float], rate: float) -> float:
    """The rate up to which every key is let in whole, so that all of them together get `rate`: max-min fairness.

    `asked`: what each key asks for per second. inf where there is enough for all; what a quiet key does not use goes to
    the others. (Bertsekas and Gallager, Data Networks, 6.5.2.)
    """
    waiting = sorted(asked)
    left = rate
    for place, own in enumerate(waiting):
        even = left / (len(waiting) - place)
        if own > even:
            return even
        left -= own
    return inf


def let_in(asked: Iterable[float], up_to: float) -> float:
    """What they get together at that level."""
    return sum(min(own, up_to) for own in asked)


def chance(own: float, up_to: float) -> float:
    """The chance with which one newcomer of a key that asks for `own` per second is turned away."""
    return 0.0 if own <= up_to else min(_MOST, 1.0 - up_to / own)


def comes_back_in(pressure: Pressure, jitter: float) -> float:
    """Seconds, 1 to 30: as many as demand exceeds what is served, so that those turned away come back spread out.

    `jitter` in [0, 1) moves it by a quarter either way.
    """
    return max(1.0, min(_LONGEST_WAIT, 1.0 / (1.0 - pressure.share)) * (0.75 + jitter / 2))


def memory_full(used: int, limit: int | None, *, before: bool) -> bool:
    """From 95 % of the limit on, until there is less than 92 %."""
    return limit is not None and used >= limit * (0.92 if before else 0.95)
