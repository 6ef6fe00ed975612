"""Which newcomers are turned away when a worker cannot keep up: how many, whose first, and when to come back.

The signal is the delay that every request in this worker meets, the event loop's lag. While it stands above its target
the worker was busy all the time, so what it got done in that time is its capacity, and no more than that is let in,
less what the backlog needs; below the target more is tried again, a little at a time. This holds for whatever the load
is made of, hits of a millisecond or streams of a minute, where a bound on how many are in flight would be right for one
of them only. (The law is AIMD on a rate, with the decrease measured instead of guessed.)
Knows: numbers handed in. Does not know: clocks, requests, who measures.
"""

from collections.abc import Iterable
from math import exp, inf

from msgspec import Struct
from msgspec.structs import replace

_BURST = 1.0  # seconds: what few are late for in so long is worked off instead of refused;
_LONG, _LATE = 0.5, 0.05  # where many come: what takes so long, or delays by so much all the time, is an overload
_DRAIN = 0.5  # seconds in which a backlog is to be worked off
_HARDEST = 0.7  # of the capacity, at most so much is kept for a backlog at once
_TRY_MORE = 1.1  # per update, from the capacity on, while the delay is small
_PLENTY = 3.0  # where the rate is so many times what comes, there is no overload any more
_REMEMBERS = 1.0  # seconds: what a request costs is looked at over about so long
_MOST = 0.98  # some always come through, so that the end of an overload is noticed
_LONGEST_WAIT = 30.0


class Pressure(Struct, frozen=True):
    """`share`: of newcomers to turn away on average, 0 to 0.98. `rate`: let in per second, inf: all that come.

    `delay`: seconds, as of the last update. `standing`: for so many seconds it has been above the target. `work`:
    seconds of it that the last requests let in made, `requests`: how many those were; both fade.
    """

    share: float = 0.0
    rate: float = inf
    delay: float = 0.0
    standing: float = 0.0
    work: float = 0.0
    requests: float = 0.0

    @property
    def capacity(self) -> float:
        """Requests per second; inf where nothing is known."""
        return self.requests / self.work if self.work > 0.0 and self.requests > 0.0 else inf


class Seen(Struct, frozen=True):
    """One stretch of `seconds`: the least delay seen in it, how many came, how many of them were let in.

    `worked`: seconds of it in which the worker was not idle.
    `cut`: more would have been let in, had there been time for them. `burst`: so few came since there was last no delay
    that they may be all.
    """

    seconds: float
    delay: float
    came: int
    let_in: int
    worked: float
    cut: bool = False
    burst: bool = False


def pressed(before: Pressure, seen: Seen, target: float) -> Pressure:
    """The pressure after that stretch."""
    work, requests = _worked(before, seen, target)
    now = Pressure(delay=seen.delay, work=work, requests=requests)
    coming = seen.came / seen.seconds
    standing = before.standing + seen.seconds if seen.delay > target else 0.0
    calm = standing < _BURST if seen.burst else seen.delay <= _LATE and standing < _LONG
    rate = before.rate
    if rate == inf and calm:
        return replace(now, standing=standing)
    if seen.delay > target or (seen.cut and rate < inf):
        backlog = max(0.0, seen.delay - target) / _DRAIN
        rate = min(rate * _TRY_MORE, now.capacity * (1.0 - min(_HARDEST, backlog)))
    elif rate < inf:
        rate = max(rate * _TRY_MORE, now.capacity)
        if rate > _PLENTY * coming:
            rate = inf
    share = 0.0 if rate >= coming else 1.0 - rate / coming
    return replace(now, share=min(_MOST, share), rate=rate, standing=standing)


def _worked(before: Pressure, seen: Seen, target: float) -> tuple[float, float]:
    """Seconds of work and the requests that made it: all of a stretch with a delay, else what was worked in it.

    And what the backlog grew by, or less: that is work of theirs which is still to be done.
    """
    if seen.let_in == 0:
        return before.work, before.requests
    took = (seen.seconds if seen.delay > target else seen.worked) + seen.delay - before.delay
    kept = exp(-seen.seconds / _REMEMBERS)
    return max(0.0, before.work * kept + took), before.requests * kept + seen.let_in


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
