"""Tokens, prices and what an attempt costs, in integers only.

Knows: token classes, prices in pico-USD per token, amounts in nano-USD, one rounding (up) per attempt.
Does not know: providers, budgets, where a price came from, the clock.
"""

from typing import Literal

from msgspec import Struct

PICO_PER_NANO = 1_000
NANO_PER_USD = 1_000_000_000

PriceStatus = Literal["exact", "assumed", "free"]


class Usage(Struct, frozen=True, kw_only=True, gc=False):
    """Tokens of one attempt. `cached` and `cache_write` are parts of `prompt`, `reasoning` of `completion`."""

    prompt: int = 0
    cached: int = 0
    cache_write: int = 0
    completion: int = 0
    reasoning: int = 0

    @property
    def total(self) -> int:
        return self.prompt + self.completion


class Tier(Struct, frozen=True, kw_only=True):
    """Rates that replace a price's own, for every token of a request whose prompt is longer than `start` tokens."""

    start: int
    input: int
    output: int
    cached_input: int
    cache_write: int


class Price(Struct, frozen=True, kw_only=True):
    """What a token costs, in pico-USD per token (USD per million tokens x 1e6); `request` in pico-USD per call.

    `id` names the price version; with the token counts of a ledger row it recomputes the charge exactly.
    `tiers` are long-prompt rates by ascending `start`.
    """

    id: str
    input: int
    output: int
    cached_input: int
    cache_write: int
    request: int = 0
    status: PriceStatus = "exact"
    tiers: tuple[Tier, ...] = ()

    def rates(self, prompt: int) -> "Price | Tier":
        """The rates for a request with that many prompt tokens."""
        found: Price | Tier = self
        for tier in self.tiers:
            if prompt > tier.start:
                found = tier
        return found


def cost_nano(usage: Usage, price: Price) -> int:
    """Nano-USD of one attempt, rounded up once (so a charge is never below the sum of its tokens)."""
    rates = price.rates(usage.prompt) if price.tiers else price
    fresh = usage.prompt - usage.cached - usage.cache_write
    pico = (
        fresh * rates.input
        + usage.cached * rates.cached_input
        + usage.cache_write * rates.cache_write
        + usage.completion * rates.output
        + price.request
    )
    return -(-pico // PICO_PER_NANO)


def bound_nano(input_bound: int, max_output: int, price: Price) -> int:
    """The most an attempt can cost, nano-USD: every prompt token at its dearest class, in the dearest tier in reach.

    `max_output` counts the tokens of all choices together.
    """
    pico = input_bound * max(price.input, price.cached_input, price.cache_write) + max_output * price.output
    for tier in price.tiers:
        if input_bound > tier.start:
            dearest = max(tier.input, tier.cached_input, tier.cache_write)
            pico = max(pico, input_bound * dearest + max_output * tier.output)
    return -(-(pico + price.request) // PICO_PER_NANO)


def checked(usage: Usage) -> Usage:
    """`usage` with nonsense removed: no negative counts, parts never larger than their whole.

    An upstream's numbers are input like any other; they may cost its own customers nothing less than zero.
    """
    prompt, completion = max(0, usage.prompt), max(0, usage.completion)
    cached = min(max(0, usage.cached), prompt)
    return Usage(
        prompt=prompt,
        cached=cached,
        cache_write=min(max(0, usage.cache_write), prompt - cached),
        completion=completion,
        reasoning=min(max(0, usage.reasoning), completion),
    )


def usd(nano: int) -> str:
    """Exact decimal string of an amount: `1_500_000` -> `"0.0015"`; never a float, never an exponent."""
    if nano == 0:
        return "0"
    sign, nano = ("-", -nano) if nano < 0 else ("", nano)
    whole, rest = divmod(nano, NANO_PER_USD)
    digits = f"{rest:09d}".rstrip("0")
    return f"{sign}{whole}.{digits}" if digits else f"{sign}{whole}"


def nano(usd_text: str) -> int:
    """Nano-USD of a decimal string. Raises ValueError on anything that is not a plain decimal in range."""
    sign = -1 if usd_text.startswith("-") else 1
    whole, _, rest = usd_text.removeprefix("-").partition(".")
    if not (whole or rest) or not (whole + rest).isascii() or not (whole + rest).isdigit() or len(whole) > 9:
        raise ValueError(f"not a plain decimal amount in USD: {usd_text[:40]!r}")
    if len(rest) > 9 and rest[9:].strip("0"):
        raise ValueError(f"finer than a nano-USD: {usd_text[:40]!r}")
    return sign * (int(whole or 0) * NANO_PER_USD + int(rest[:9].ljust(9, "0")))
