"""Tokens, prices and what an attempt costs, in integers only.

Knows: token classes, prices in pico-USD per token, amounts in nano-USD, one rounding (up) per attempt.
Does not know: providers, budgets, where a price came from, the clock.
"""

from typing import Literal

from msgspec import Struct

PICO_PER_NANO = 1_000
NANO_PER_USD = 1_000_000_000

PriceStatus = Literal["exact", "assumed", "free"]


class Usage(Struct, frozen=True, kw_only=True):
    """Tokens of one attempt. `cached` and `cache_write` are parts of `prompt`, `reasoning` of `completion`."""

    prompt: int = 0
    cached: int = 0
    cache_write: int = 0
    completion: int = 0
    reasoning: int = 0

    @property
    def total(self) -> int:
        return self.prompt + self.completion


class Price(Struct, frozen=True, kw_only=True):
    """What a token costs, in pico-USD per token (USD per million tokens x 1e6); `request` in pico-USD per call.

    `id` names the price version; with the token counts of a ledger row it recomputes the charge exactly.
    """

    id: str
    input: int
    output: int
    cached_input: int
    cache_write: int
    request: int = 0
    status: PriceStatus = "exact"


def cost_nano(usage: Usage, price: Price) -> int:
    """Nano-USD of one attempt, rounded up once (so a charge is never below the sum of its tokens)."""
    fresh = usage.prompt - usage.cached - usage.cache_write
    pico = (
        fresh * price.input
        + usage.cached * price.cached_input
        + usage.cache_write * price.cache_write
        + usage.completion * price.output
        + price.request
    )
    return -(-pico // PICO_PER_NANO)


def usd(nano: int) -> str:
    """Exact decimal string of an amount: `1_500_000` -> `"0.0015"`; never a float, never an exponent."""
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
