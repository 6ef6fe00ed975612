"""Limits per minute as token buckets: how much is there, how long until there is enough, how large a lease may be.

Knows: amounts and seconds, handed in. Does not know: scopes, workers, databases, the clock.

A bucket holds at most a minute's worth and fills evenly, so a scope that was quiet may use a whole minute's worth at
once, and from then on as much as the rate allows: at most twice the limit in any one minute, the limit over any longer
time. It may go below zero: what was used beyond a cautious guess is paid back before anything else is let through.
"""

from msgspec import Struct

_MINUTE = 60.0
_SHARE = 4  # a lease is at most a quarter of an equal share of what is there


class Rate(Struct, frozen=True, kw_only=True):
    """What one scope may use per minute; None is no limit. `actor`, `updated`: who set it, and when."""

    scope: str
    rpm: int | None = None
    tpm: int | None = None
    version: int = 1
    actor: str = ""
    updated: float = 0.0


class Bucket:
    """One limit of `per_minute`. `now` in seconds of any clock that never goes back."""

    __slots__ = ("at", "level", "per_minute")

    def __init__(self, per_minute: float, now: float, level: float | None = None) -> None:
        self.per_minute = per_minute
        self.level = per_minute if level is None else level
        self.at = now

    def left(self, now: float) -> float:
        """What may be taken now; negative while a debt is being paid back."""
        if now > self.at:
            self.level = filled(self.level, self.per_minute, now - self.at)
            self.at = now
        return self.level

    def has(self, need: float, now: float) -> bool:
        """Whether `need` may be taken. One above a whole minute's worth is met by a full bucket, and leaves a debt."""
        return self.per_minute > 0 and self.left(now) >= min(need, self.per_minute)

    def take(self, need: float) -> None:
        """Take what `has` has just found."""
        self.level -= need

    def give(self, amount: float, now: float) -> None:
        """Give back what was taken too much; a negative amount takes more, whether it is there or not."""
        self.level = min(self.per_minute, self.left(now) + amount)

    def wait(self, need: float, now: float) -> float:
        """Seconds until `need` could be taken, if nobody else takes anything."""
        return seconds_until(self.left(now), min(need, self.per_minute), self.per_minute)

    def change(self, per_minute: float, now: float) -> None:
        """Another limit from now on; what was used of the old one stays used."""
        used = self.per_minute - self.left(now)
        self.per_minute, self.level = per_minute, per_minute - used


def filled(level: float, per_minute: float, passed: float) -> float:
    """The level after `passed` seconds in which nothing was taken."""
    return min(per_minute, level + max(0.0, passed) * per_minute / _MINUTE)


def seconds_until(level: float, wanted: float, per_minute: float) -> float:
    """How long a bucket takes to fill up to `wanted`; a limit of nothing never does (a minute is told)."""
    if level >= wanted:
        return 0.0
    return (wanted - level) * _MINUTE / per_minute if per_minute > 0 else _MINUTE


def portion(level: float, demand: float, least: float, per_minute: float, processes: int) -> float:
    """How much one of several processes may take out of what they share. 0: not even one request could go on.

    `demand` is what its waiting requests need together, `least` what the smallest of them needs. Plenty there: a
    second's worth ahead, but at most a quarter of an equal share; nearly empty: exactly the demand, as far as it goes.
    """
    least = min(least, per_minute)
    if level < least:
        return 0.0
    ahead = min(per_minute / _MINUTE, level / (_SHARE * max(1, processes)))
    return max(least, min(max(demand, ahead), level))


def told(seconds: float) -> str:
    """A duration as OpenAI's headers tell it: `6ms`, `1.5s`, `1m30s`."""
    if seconds < 1:
        return f"{round(seconds * 1_000)}ms"
    minutes, rest = divmod(seconds, _MINUTE)
    if not minutes:
        return f"{rest:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{int(minutes)}m{int(rest)}s"
