"""What a use would cost a day and a month, in parts, before it is begun.

Knows: tokens of a request, how many of them come, prices, an engine's hour. Does not know: traffic, the ledger, names.
Every part is rounded up to a nano-USD on its own, and the total is the sum of the parts.
"""

import math
from fractions import Fraction

from msgspec import Struct

from policies.engine_cost import Hardware, seconds_of
from policies.money import PICO_PER_NANO, Price, Usage, cost_nano

_SECONDS_PER_HOUR = 3_600
MOST_TOKENS = 100_000_000
MOST_REQUESTS = 10**10


class Workload(Struct, frozen=True, kw_only=True):
    """`requests` like these a day. Shares are between 0 and 1.

    `cached_share`: of the prompt, what the provider's own cache has; `hit_rate`: of the requests, what this gateway's
    cache answers, at no cost; `reasoning`: of the completion, tokens thought and not said.
    """

    prompt: int
    completion: int
    requests: int
    cached_share: Fraction = Fraction(0)
    hit_rate: Fraction = Fraction(0)
    reasoning: int = 0
    days: int = 30

    @property
    def usage(self) -> Usage:
        """The tokens of one request that is not answered from the cache."""
        cached = math.floor(self.prompt * self.cached_share)
        return Usage(prompt=self.prompt, cached=cached, completion=self.completion, reasoning=self.reasoning)

    @property
    def asked(self) -> Fraction:
        """Requests a day that are not answered from the cache."""
        return self.requests * (1 - self.hit_rate)


class Parts(Struct, frozen=True, kw_only=True):
    """Nano-USD. `calls`: the fee per call; `lookups`: looking prompts up in the cache; `saved` is not in `total`."""

    input: int
    cached: int
    output: int
    calls: int
    lookups: int
    saved: int

    @property
    def total(self) -> int:
        return self.input + self.cached + self.output + self.calls + self.lookups

    def times(self, days: int) -> "Parts":
        return Parts(**{name: getattr(self, name) * days for name in self.__struct_fields__})


class Engines(Struct, frozen=True, kw_only=True):
    """The same on engines of one's own: how many work at once, how busy they are, nano-USD a day with idle hours."""

    count: int
    busy: float
    day_nano: int


class Estimate(Struct, frozen=True, kw_only=True):
    """`request_nano`: one request that is not a hit."""

    request_nano: int
    day: Parts
    month: Parts
    engines: Engines | None


def checked_workload(work: Workload) -> Workload:
    """The same. Raises ValueError, with the name of the field, for what cannot be."""
    for name, value, most in (
        ("prompt_tokens", work.prompt, MOST_TOKENS),
        ("completion_tokens", work.completion, MOST_TOKENS),
        ("requests_per_day", work.requests, MOST_REQUESTS),
        ("reasoning_tokens", work.reasoning, work.completion),
    ):
        if not 0 <= value <= most:
            raise ValueError(f"{name} must lie between 0 and {most}")
    for name, share in (("cached_share", work.cached_share), ("hit_rate", work.hit_rate)):
        if not 0 <= share <= 1:
            raise ValueError(f"{name} must lie between 0 and 1")
    if not 1 <= work.days <= 366:
        raise ValueError("days_per_month must lie between 1 and 366")
    return work


def estimate(
    work: Workload, price: Price, *, lookup: Price | None = None, hardware: Hardware | None = None
) -> Estimate:
    """What the workload costs at `price`; `lookup`: what embedding a prompt costs, `hardware`: where it would run."""
    usage, rates = work.usage, price.rates(work.prompt)
    apart = rates.apart.reasoning if rates.apart is not None else None
    thought = rates.output if apart is None else apart
    output = (usage.completion - usage.reasoning) * rates.output + usage.reasoning * thought
    looked = 0 if lookup is None else work.prompt * lookup.input + lookup.request
    day = Parts(
        input=_nano((usage.prompt - usage.cached) * rates.input * work.asked),
        cached=_nano(usage.cached * rates.cached_input * work.asked),
        output=_nano(output * work.asked),
        calls=_nano(price.request * work.asked),
        lookups=_nano(Fraction(looked * work.requests)),
        saved=math.floor(cost_nano(usage, price) * work.requests * work.hit_rate),
    )
    engines = None if hardware is None else _engines(work, hardware)
    return Estimate(request_nano=cost_nano(usage, price), day=day, month=day.times(work.days), engines=engines)


def _engines(work: Workload, hardware: Hardware) -> Engines:
    """As many as it takes to work no more than `busy` of their paid hours."""
    need = Fraction(seconds_of(work.usage, hardware.speed)) * work.asked
    paid = Fraction(hardware.hours) * _SECONDS_PER_HOUR
    count = max(1, math.ceil(need / (paid * Fraction(hardware.speed.busy))))
    return Engines(count=count, busy=float(need / (paid * count)), day_nano=count * hardware.day_nano)


def _nano(pico: Fraction) -> int:
    return math.ceil(pico / PICO_PER_NANO)
