"""What a token costs on hardware of one's own, and from which load on that is cheaper than buying it.

Knows: tokens read and written a second, the price of an hour, a typical request. Does not know: engines, settings,
where prices come from. Reading and writing share the hardware: their times add up.
"""

import math
from fractions import Fraction

from msgspec import Struct

from policies.money import Price, Usage, cost_nano

_SECONDS_PER_HOUR = 3_600
PICO_PER_USD = 10**12
NANO_PER_USD = 10**9


class Speed(Struct, frozen=True, kw_only=True):
    """Tokens read and written a second with several requests at once. `busy`: share of its paid hours it works."""

    prefill_tps: float
    decode_tps: float
    busy: float = 1.0
    measured: bool = False


class Hardware(Struct, frozen=True, kw_only=True):
    """An engine that is paid for `hours` a day, whether it works or not; `hour_nano` in nano-USD."""

    hour_nano: int
    speed: Speed
    hours: float = 24.0

    @property
    def day_nano(self) -> int:
        return math.ceil(Fraction(self.hour_nano) * Fraction(self.hours))


class BreakEven(Struct, frozen=True, kw_only=True):
    """From `requests_per_day` on the engine costs no more than the upstream; None: never, as the upstream is free.

    `utilization`: that many requests over what the engine can do in its paid hours; above 1 it cannot do so many.
    `engine_nano`: a request's share of the hour when the engine is never idle.
    """

    upstream_nano: int
    engine_nano: int
    requests_per_day: int | None
    tokens_per_day: int | None
    utilization: float | None
    reachable: bool


def token_pico(hour_nano: int, speed: Speed) -> tuple[int, int]:
    """Pico-USD of a token read and of one written, rounded up, when the hour is spread over its busy part."""
    second = Fraction(hour_nano * 1_000, _SECONDS_PER_HOUR) / Fraction(speed.busy)
    return math.ceil(second / Fraction(speed.prefill_tps)), math.ceil(second / Fraction(speed.decode_tps))


def seconds_of(usage: Usage, speed: Speed) -> float:
    """How long one engine works on a request; a prompt it has in its prefix cache is not read again."""
    return (usage.prompt - usage.cached) / speed.prefill_tps + usage.completion / speed.decode_tps


def capacity(hardware: Hardware, usage: Usage) -> float:
    """Requests like `usage` that the engine can do in its paid hours of a day; infinite for empty ones."""
    seconds = seconds_of(usage, hardware.speed)
    return hardware.hours * _SECONDS_PER_HOUR / seconds if seconds else math.inf


def break_even(hardware: Hardware, usage: Usage, upstream: Price) -> BreakEven:
    """Compare the engine with an upstream on requests like `usage`."""
    theirs = cost_nano(usage, upstream)
    possible = capacity(hardware, usage)
    seconds = Fraction(seconds_of(usage, hardware.speed))
    ours = math.ceil(Fraction(hardware.hour_nano) * seconds / _SECONDS_PER_HOUR)
    if theirs == 0:
        return BreakEven(
            upstream_nano=0,
            engine_nano=ours,
            requests_per_day=None,
            tokens_per_day=None,
            utilization=None,
            reachable=hardware.hour_nano == 0,
        )
    requests = -(-hardware.day_nano // theirs)
    return BreakEven(
        upstream_nano=theirs,
        engine_nano=ours,
        requests_per_day=requests,
        tokens_per_day=requests * usage.total,
        utilization=requests / possible,
        reachable=requests <= possible,
    )
