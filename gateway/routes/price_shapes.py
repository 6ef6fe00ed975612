"""Prices as JSON: what people set, what is in force, in USD per million tokens.

Knows: shapes. Does not know: routes, where prices come from.
"""

from typing import Any

from msgspec import Struct, structs

from gateway.price_terms import Amount, Terms
from gateway.prices import Override
from gateway.routes import shapes
from gateway.routes.charged_price import per_million
from policies.money import Band, Price, Rates, usd

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_CLASSES = {
    "cache_write_1h": "cache_write_1h_usd",
    "reasoning": "reasoning_usd",
    "audio_in": "audio_input_usd",
    "audio_out": "audio_output_usd",
    "image_in": "image_input_usd",
    "image_out": "image_output_usd",
}
_PICO_PER_NANO = 1_000


class PriceWanted(Terms, kw_only=True, forbid_unknown_fields=True):
    """The terms of a price, and from when until when they hold: a time, a date, a duration from now; now by default."""

    effective_from: Amount | None = None
    effective_until: Amount | None = None

    @property
    def terms(self) -> Terms:
        return Terms(**{name: getattr(self, name) for name in Terms.__struct_fields__})


class RatesLine(Struct, kw_only=True):
    """USD per million tokens; a class that is null costs what its whole does. `above`: for prompts longer than that."""

    input_usd: str
    output_usd: str
    cached_usd: str
    cache_write_usd: str
    cache_write_1h_usd: str | None = None
    reasoning_usd: str | None = None
    audio_input_usd: str | None = None
    audio_output_usd: str | None = None
    image_input_usd: str | None = None
    image_output_usd: str | None = None
    above: int | None = None


class HoursLine(RatesLine, kw_only=True):
    """Rates in hours of the week, UTC. `now`: whether they hold at the moment."""

    days: str
    start: str
    end: str
    tiers: list[RatesLine]
    now: bool


class PriceLine(Struct, kw_only=True):
    """The price in force now, USD per million tokens; null without one, and then requests for it are refused.

    `source`: `set` by an operator, `bench` or `engine` (an hour of hardware over its tokens), `bundled` table, or
    `none`. `status`: exact, measured, assumed or free. `version`: what a request begun now is charged by. `stale`: why
    a bundled price may be wrong by now. `service`: percent of the price, by service tier. `request_usd`: per call;
    `web_search_usd`, `file_search_usd`: per search of the provider's, null where that is not known. `replaced_from`:
    from when on another one counts, which is set already and begins later.
    """

    model: str
    source: str
    status: str | None
    input_usd: str | None
    output_usd: str | None
    cached_usd: str | None
    version: str | None
    effective_from: str | None = None
    effective_until: str | None = None
    request_usd: str | None = None
    web_search_usd: str | None = None
    file_search_usd: str | None = None
    rates: RatesLine | None = None
    tiers: list[RatesLine] = []
    hours: list[HoursLine] = []
    service: dict[str, str] = {}
    stale: list[str] = []
    replaced_from: str | None = None


class TableLine(Struct, kw_only=True):
    """The bundled table of list prices. `as_of`: the newest day on which it says that a price was verified."""

    name: str
    version: str
    as_of: str
    age_days: int


def price_line(model: str, source: str, price: Price | None, mine: Override | None, now: float) -> PriceLine:
    """`price` is what is charged now; `mine` the contract behind it, if any."""
    if price is None:
        return PriceLine(
            model=model, source="none", status=None, input_usd=None, output_usd=None, cached_usd=None, version=None
        )
    whole = price if mine is None else mine.price
    return PriceLine(
        model=model,
        source=source,
        status=price.status,
        input_usd=per_million(price.input),
        output_usd=per_million(price.output),
        cached_usd=per_million(price.cached_input),
        version=price.id,
        effective_from=None if mine is None else shapes.moment(mine.effective_from),
        effective_until=None if mine is None else shapes.moment(mine.effective_until),
        request_usd=fee_usd(price.request),
        web_search_usd=fee_usd(price.web_search),
        file_search_usd=fee_usd(price.file_search),
        rates=RatesLine(**_rates(whole)),
        tiers=[RatesLine(**_rates(tier), above=tier.start) for tier in whole.tiers],
        hours=[_hours(band, now) for band in whole.bands],
        service={} if mine is None else mine.service,
    )


def fee_usd(pico: int | None) -> str | None:
    """A fee, rounded up to the nano-USD."""
    return None if pico is None else usd(-(-pico // _PICO_PER_NANO))


def _hours(band: Band, now: float) -> HoursLine:
    return HoursLine(
        **_rates(band),
        days=",".join(day for n, day in enumerate(_DAYS) if band.days >> n & 1),
        start=f"{band.start // 60:02}:{band.start % 60:02}",
        end=f"{band.end // 60:02}:{band.end % 60:02}",
        tiers=[RatesLine(**_rates(tier), above=tier.start) for tier in band.tiers],
        now=band.holds(now),
    )


def _rates(rates: Rates) -> dict[str, Any]:
    apart = {} if rates.apart is None else structs.asdict(rates.apart)
    return {
        "input_usd": per_million(rates.input),
        "output_usd": per_million(rates.output),
        "cached_usd": per_million(rates.cached_input),
        "cache_write_usd": per_million(rates.cache_write),
        **{name: per_million(apart[field]) for field, name in _CLASSES.items() if apart.get(field) is not None},
    }
