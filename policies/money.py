"""Tokens, prices and what an attempt costs, in integers only.

Knows: token classes, prices in pico-USD per token, amounts in nano-USD, one rounding (up) per attempt.
Does not know: providers, budgets, where a price came from, the clock.
"""

from decimal import Decimal
from typing import Literal

from msgspec import Struct

PICO_PER_NANO = 1_000
NANO_PER_USD = 1_000_000_000
_MINUTES_PER_DAY = 1_440
_THURSDAY = 3  # the epoch began on one

PriceStatus = Literal["exact", "measured", "assumed", "free"]


class Usage(Struct, frozen=True, kw_only=True, gc=False):
    """Tokens of one attempt, each token in one class.

    `cached`, `cache_write`, `audio_in` and `image_in` are parts of `prompt`; `reasoning`, `audio_out` and `image_out`
    of `completion`; `cache_write_1h` (kept for an hour instead of five minutes) is a part of `cache_write`.
    No tokens: `web_searches` and `file_searches`, a fee each; `unpriced`, whatever else was done for a fee that nobody
    here knows.
    """

    prompt: int = 0
    cached: int = 0
    cache_write: int = 0
    completion: int = 0
    reasoning: int = 0
    cache_write_1h: int = 0
    audio_in: int = 0
    audio_out: int = 0
    image_in: int = 0
    image_out: int = 0
    web_searches: int = 0
    file_searches: int = 0
    unpriced: int = 0

    @property
    def total(self) -> int:
        return self.prompt + self.completion

    @property
    def classes(self) -> tuple[int, ...] | None:
        """The rarer classes, in the order of the fields; None when there are none, as in nearly every attempt."""
        tokens = self.cache_write_1h, self.audio_in, self.audio_out, self.image_in, self.image_out
        if self.web_searches or self.file_searches or self.unpriced:
            return *tokens, self.web_searches, self.file_searches, self.unpriced
        return tokens if any(tokens) else None


class Apart(Struct, frozen=True, kw_only=True):
    """Rates of classes that are priced apart from their whole; None: at the rate of the whole.

    The whole of `cache_write_1h` is `cache_write`, that of audio and images is input or output.
    """

    cache_write_1h: int | None = None
    reasoning: int | None = None
    audio_in: int | None = None
    audio_out: int | None = None
    image_in: int | None = None
    image_out: int | None = None


class Rates(Struct, frozen=True, kw_only=True):
    """Pico-USD per token of each class."""

    input: int
    output: int
    cached_input: int
    cache_write: int
    apart: Apart | None = None


class Tier(Rates, frozen=True, kw_only=True):
    """Rates that replace a price's own, for every token of a request whose prompt is longer than `start` tokens."""

    start: int


class Band(Rates, frozen=True, kw_only=True):
    """Rates in certain hours of the week: from minute `start` of the UTC day until before minute `end`.

    `days`: bit 0 is Monday. With `end` <= `start` the hours run past midnight and belong to the day they began on.
    `tiers` replace the price's own.
    """

    days: int
    start: int
    end: int
    tiers: tuple[Tier, ...] = ()

    def holds(self, at: float) -> bool:
        """Whether these are the rates at an instant in seconds since the epoch."""
        day, minute = divmod(int(at // 60), _MINUTES_PER_DAY)
        weekday = (day + _THURSDAY) % 7
        today, yesterday = self.days >> weekday & 1, self.days >> (weekday - 1) % 7 & 1
        if self.start < self.end:
            return bool(today) and self.start <= minute < self.end
        return bool((today and minute >= self.start) or (yesterday and minute < self.end))


class Price(Rates, frozen=True, kw_only=True):
    """What a token costs, in pico-USD per token (USD per million tokens x 1e6); `request` in pico-USD per call.

    `web_search`, `file_search`: pico-USD per search, None: not known. They are the same in every tier and hour.
    `id` names the price version; with the token counts of a ledger row it recomputes the charge exactly.
    `tiers` are long-prompt rates by ascending `start`. A price with `bands` is a contract: its own rates hold outside
    their hours, and what is charged is a version without bands, that of the hour (`band`).
    """

    id: str
    request: int = 0
    web_search: int | None = None
    file_search: int | None = None
    status: PriceStatus = "exact"
    tiers: tuple[Tier, ...] = ()
    bands: tuple[Band, ...] = ()

    def rates(self, prompt: int) -> Rates:
        """The rates for a request with that many prompt tokens."""
        return _tier(self, self.tiers, prompt)

    @property
    def searches_cost(self) -> bool:
        return bool(self.web_search or self.file_search)

    def band(self, at: float) -> int:
        """Which hours an instant falls into: 0 outside of all bands, else the first that holds, counted from 1."""
        for number, band in enumerate(self.bands, start=1):
            if band.holds(at):
                return number
        return 0


def _tier(rates: Rates, tiers: tuple[Tier, ...], prompt: int) -> Rates:
    found = rates
    for tier in tiers:
        if prompt > tier.start:
            found = tier
    return found


def cost_nano(usage: Usage, price: Price) -> int:
    """Nano-USD of one attempt, rounded up once (so a charge is never below the sum of its tokens).

    A contract whose rates depend on the hour counts in its dearest one.
    """
    pico = _pico(usage, price.rates(usage.prompt) if price.tiers else price)
    for band in price.bands:
        pico = max(pico, _pico(usage, _tier(band, band.tiers, usage.prompt)))
    if usage.web_searches or usage.file_searches:
        pico += usage.web_searches * (price.web_search or 0) + usage.file_searches * (price.file_search or 0)
    return -(-(pico + price.request) // PICO_PER_NANO)


def unpriced(usage: Usage, price: Price) -> int:
    """How often something was done for a fee that the price does not know.

    What has a price per call, or none at all, includes its searches.
    """
    if price.request or price.status == "free":
        return usage.unpriced
    web = usage.web_searches if price.web_search is None else 0
    return usage.unpriced + web + (usage.file_searches if price.file_search is None else 0)


def _pico(usage: Usage, rates: Rates) -> int:
    fresh = usage.prompt - usage.cached - usage.cache_write
    pico = (
        fresh * rates.input
        + usage.cached * rates.cached_input
        + usage.cache_write * rates.cache_write
        + usage.completion * rates.output
    )
    return pico if rates.apart is None else pico + _beyond(usage, rates, rates.apart)


def _beyond(usage: Usage, rates: Rates, apart: Apart) -> int:
    """What classes priced apart cost more (or less) than as a part of their whole."""
    return sum(
        tokens * (rate - whole)
        for tokens, rate, whole in (
            (usage.cache_write_1h, apart.cache_write_1h, rates.cache_write),
            (usage.audio_in, apart.audio_in, rates.input),
            (usage.image_in, apart.image_in, rates.input),
            (usage.reasoning, apart.reasoning, rates.output),
            (usage.audio_out, apart.audio_out, rates.output),
            (usage.image_out, apart.image_out, rates.output),
        )
        if tokens and rate is not None
    )


def bound_nano(input_bound: int, max_output: int, price: Price, searches: int = 0) -> int:
    """The most an attempt can cost, nano-USD: every token at its dearest class, in the dearest tier and hour in reach.

    `max_output` counts the tokens of all choices together, `searches` those of both kinds.
    """
    fees = price.request
    if searches:
        fees += searches * max(price.web_search or 0, price.file_search or 0)
    if price.apart is None and not price.tiers and not price.bands:  # nearly every price, and on every request's way
        pico = input_bound * max(price.input, price.cached_input, price.cache_write) + max_output * price.output
        return -(-(pico + fees) // PICO_PER_NANO)
    pico = _worst(input_bound, max_output, price, price.tiers)
    for band in price.bands:
        pico = max(pico, _worst(input_bound, max_output, band, band.tiers))
    return -(-(pico + fees) // PICO_PER_NANO)


def _worst(input_bound: int, max_output: int, rates: Rates, tiers: tuple[Tier, ...]) -> int:
    pico = input_bound * _dearest_in(rates) + max_output * _dearest_out(rates)
    for tier in tiers:
        if input_bound > tier.start:
            pico = max(pico, input_bound * _dearest_in(tier) + max_output * _dearest_out(tier))
    return pico


def _dearest_in(rates: Rates) -> int:
    found, apart = max(rates.input, rates.cached_input, rates.cache_write), rates.apart
    if apart is None:
        return found
    return max(found, apart.cache_write_1h or 0, apart.audio_in or 0, apart.image_in or 0)


def _dearest_out(rates: Rates) -> int:
    apart = rates.apart
    if apart is None:
        return rates.output
    return max(rates.output, apart.reasoning or 0, apart.audio_out or 0, apart.image_out or 0)


def checked(usage: Usage) -> Usage:
    """`usage` with nonsense removed: no negative counts, parts never larger than their whole, no token in two classes.

    An upstream's numbers are input like any other; they may cost its own customers nothing less than zero. Where a
    token may have been counted as cached and as audio or image, it stays cached only.
    """
    if usage.classes is None and _is_sound(usage):
        return usage
    prompt, completion = max(0, usage.prompt), max(0, usage.completion)
    cached = min(max(0, usage.cached), prompt)
    cache_write = min(max(0, usage.cache_write), prompt - cached)
    reasoning = min(max(0, usage.reasoning), completion)
    if usage.classes is None:
        return Usage(prompt=prompt, cached=cached, cache_write=cache_write, completion=completion, reasoning=reasoning)
    fresh, spoken = prompt - cached - cache_write, completion - reasoning
    audio_in, audio_out = min(max(0, usage.audio_in), fresh), min(max(0, usage.audio_out), spoken)
    return Usage(
        prompt=prompt,
        cached=cached,
        cache_write=cache_write,
        completion=completion,
        reasoning=reasoning,
        cache_write_1h=min(max(0, usage.cache_write_1h), cache_write),
        audio_in=audio_in,
        audio_out=audio_out,
        image_in=min(max(0, usage.image_in), fresh - audio_in),
        image_out=min(max(0, usage.image_out), spoken - audio_out),
        web_searches=max(0, usage.web_searches),
        file_searches=max(0, usage.file_searches),
        unpriced=max(0, usage.unpriced),
    )


def _is_sound(usage: Usage) -> bool:
    """Whether the counts every upstream tells make sense, as they nearly always do."""
    return (
        usage.cached >= 0
        and usage.cache_write >= 0
        and usage.cached + usage.cache_write <= usage.prompt
        and 0 <= usage.reasoning <= usage.completion
    )


def usd(nano: int) -> str:
    """Exact decimal string of an amount: `1_500_000` -> `"0.0015"`; never a float, never an exponent."""
    if 0 <= nano < NANO_PER_USD:  # nearly always
        return f"0.{nano:09d}".rstrip("0") if nano else "0"
    sign, nano = ("-", -nano) if nano < 0 else ("", nano)
    whole, rest = divmod(nano, NANO_PER_USD)
    digits = f"{rest:09d}".rstrip("0")
    return f"{sign}{whole}.{digits}" if digits else f"{sign}{whole}"


def dollars(nano: int) -> Decimal:
    """The same amount as a number, for sheets and files."""
    return Decimal(nano) / NANO_PER_USD


def nano(usd_text: str) -> int:
    """Nano-USD of a decimal string. Raises ValueError on anything that is not a plain decimal in range."""
    sign = -1 if usd_text.startswith("-") else 1
    whole, _, rest = usd_text.removeprefix("-").partition(".")
    if not (whole or rest) or not (whole + rest).isascii() or not (whole + rest).isdigit() or len(whole) > 9:
        raise ValueError(f"not a plain decimal amount in USD: {usd_text[:40]!r}")
    if len(rest) > 9 and rest[9:].strip("0"):
        raise ValueError(f"finer than a nano-USD: {usd_text[:40]!r}")
    return sign * (int(whole or 0) * NANO_PER_USD + int(rest[:9].ljust(9, "0")))
