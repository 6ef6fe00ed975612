"""A charge taken apart: which meter ran how far, and what each unit of it cost.

Knows: meters, the exact price of each in pico-USD. Does not know: where charges come from, the rounding of the whole
(`policies.money.cost_nano` rounds it up once), formats of exports.
"""

from collections.abc import Iterable

from msgspec import Struct

from policies.money import PICO_PER_NANO, Apart, Price, Rates, Usage

INPUT = "Input Tokens"
CACHED = "Cached Input Tokens"
WRITTEN = "Cache Write Tokens"
OUTPUT = "Output Tokens"
REQUESTS = "Requests"
WEB_SEARCHES, FILE_SEARCHES = "Web Searches", "File Searches"
ROUNDING = "Rounding"
ADJUSTMENT = "Adjustment"
LONG_WRITTEN = "One Hour Cache Write Tokens"
AUDIO_IN, IMAGE_IN = "Audio Input Tokens", "Image Input Tokens"
REASONING, AUDIO_OUT, IMAGE_OUT = "Reasoning Tokens", "Audio Output Tokens", "Image Output Tokens"
# Of what is counted one by one; everything else is tokens.
COUNTED = frozenset((REQUESTS, WEB_SEARCHES, FILE_SEARCHES))
# Classes that may be priced apart: the meter of their whole, and their field in `Apart` and `Usage`.
_OWN = {
    LONG_WRITTEN: (WRITTEN, "cache_write_1h"),
    AUDIO_IN: (INPUT, "audio_in"),
    IMAGE_IN: (INPUT, "image_in"),
    REASONING: (OUTPUT, "reasoning"),
    AUDIO_OUT: (OUTPUT, "audio_out"),
    IMAGE_OUT: (OUTPUT, "image_out"),
}


class Metered(Struct, frozen=True):
    """`quantity` tokens (or requests, or searches) at `pico` pico-USD each."""

    meter: str
    quantity: int
    pico: int

    @property
    def cost_pico(self) -> int:
        return self.quantity * self.pico


def is_plain(price: Price) -> bool:
    """Whether a price is the same for every prompt and class: then many attempts can be metered as one."""
    return not (price.tiers or price.apart)


def meters(usage: Usage, price: Price, requests: int = 1) -> list[Metered]:
    """What an attempt was charged for at `price`, meters that did not run left out.

    The costs of the parts add up to what `cost_nano` rounds up. A price that depends on the hour has been replaced by
    that of its hour before (`Price.bands`). `requests` attempts with these tokens in all can be metered at once if
    their price `is_plain`.
    """
    rates = price.rates(usage.prompt)
    parts = [
        Metered(INPUT, usage.prompt - usage.cached - usage.cache_write, rates.input),
        Metered(CACHED, usage.cached, rates.cached_input),
        Metered(WRITTEN, usage.cache_write, rates.cache_write),
        Metered(OUTPUT, usage.completion, rates.output),
        Metered(REQUESTS, requests if price.request else 0, price.request),
        Metered(WEB_SEARCHES, usage.web_searches if price.web_search else 0, price.web_search or 0),
        Metered(FILE_SEARCHES, usage.file_searches if price.file_search else 0, price.file_search or 0),
    ]
    if rates.apart is not None:
        parts = _taken_apart(parts, usage, rates)
    return [part for part in parts if part.quantity]


def rate(price: Price, meter: str) -> int | None:
    """Pico-USD of one unit of a meter, for a prompt of no tier; None for what is no meter of tokens or fees."""
    apart = price.apart or Apart()
    rates = {INPUT: price.input, CACHED: price.cached_input, WRITTEN: price.cache_write, OUTPUT: price.output}
    fees = {REQUESTS: price.request, WEB_SEARCHES: price.web_search or 0, FILE_SEARCHES: price.file_search or 0}
    if meter in rates or meter in fees:
        return (rates | fees)[meter]
    own = _OWN.get(meter)
    if own is None:
        return None
    whole, field = own
    return rates[whole] if (found := getattr(apart, field)) is None else found


def in_nano(parts: Iterable[Metered], amount: int) -> list[tuple[str, int, int]]:
    """(meter, quantity, nano-USD) that add up to `amount` exactly: whole nano-USD each, the rest under `Rounding`."""
    found = [(part.meter, part.quantity, part.cost_pico // PICO_PER_NANO) for part in parts]
    rest = amount - sum(cost for _, _, cost in found)
    return [*found, (ROUNDING, 0, rest)] if rest else found


def _taken_apart(parts: list[Metered], usage: Usage, rates: Rates) -> list[Metered]:
    """Classes with rates of their own leave the meter of their whole and run one themselves."""
    apart = rates.apart
    assert apart is not None, "asked only where classes are priced apart"
    left = {part.meter: part.quantity for part in parts}
    found: list[Metered] = []
    for meter, (whole, field) in _OWN.items():
        quantity, pico = getattr(usage, field), getattr(apart, field)
        if quantity and pico is not None:
            left[whole] -= quantity
            found.append(Metered(meter, quantity, pico))
    return [Metered(part.meter, left[part.meter], part.pico) for part in parts] + found
