"""The terms of a price as people write them, and as integers: classes, tiers, hours of the week, service tiers.

Knows: USD per million tokens as decimals, days and hours in UTC, percentages, the digest that names a price.
Does not know: where terms are kept, when they are in force, what they are charged for.
Every rate is rounded up to a pico-USD per token, so that a charge is never below its terms.
"""

import hashlib
import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from msgspec import Struct, structs

from policies.money import Apart, Band, Price, PriceStatus, Rates, Tier

PICO_PER_MILLION_USD = 1_000_000  # a price of 1 USD per million tokens is 10^6 pico-USD per token
PICO_PER_USD = 10**12
_DEAREST = Decimal(100_000)  # USD per million tokens; above it is a mistake of unit
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_EVERY_DAY = 0b1111111
_DAY_MINUTES = 1_440
_MOST_TIERS = 16
_MOST_BANDS = 32
_MOST_SERVICES = 8
_SERVICE = re.compile(r"\+(?!hours\d+@)([^\W\d]\w*)(?:\+hours\d+)?@[0-9a-f]+$")
_MOST_PERCENT = Decimal(1_000)

Amount = str | int | float


class RatesWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """USD per million tokens. Left out: cached and cache-writing tokens as input, the others as their whole."""

    input_usd: Amount | None = None
    output_usd: Amount | None = None
    cached_usd: Amount | None = None
    cache_write_usd: Amount | None = None
    cache_write_1h_usd: Amount | None = None
    reasoning_usd: Amount | None = None
    audio_input_usd: Amount | None = None
    audio_output_usd: Amount | None = None
    image_input_usd: Amount | None = None
    image_output_usd: Amount | None = None


class TierWanted(RatesWanted, kw_only=True, forbid_unknown_fields=True):
    """Rates of prompts longer than `above` tokens: rates of their own, or `percent` of the rates they replace."""

    above: int
    percent: Amount | None = None


class HoursWanted(RatesWanted, kw_only=True, forbid_unknown_fields=True):
    """Rates from `start` until before `end`, times of day in UTC, on `days` (`mon-fri`, `sat,sun`; all when left out).

    Either rates of their own, with tiers of their own, or `percent` of the price. Where hours overlap the first count.
    """

    start: str
    end: str
    days: str = "mon-sun"
    percent: Amount | None = None
    tiers: list[TierWanted] = []


class Terms(RatesWanted, kw_only=True, forbid_unknown_fields=True):
    """A whole price. `request_usd`: per call; `web_search_usd`, `file_search_usd`: per search that the provider makes.

    Input and output of 0 mark the model as free.
    `service`: percent of the price by service tier (`{"batch": 50, "priority": 200}`); others pay the price as it is.
    """

    request_usd: Amount | None = None
    web_search_usd: Amount | None = None
    file_search_usd: Amount | None = None
    tiers: list[TierWanted] = []
    hours: list[HoursWanted] = []
    service: dict[str, Amount] = {}


def price_from(name: str, terms: Terms, status: PriceStatus = "exact") -> Price:
    """Terms as a price whose id begins with `name`. Raises ValueError that says what is wrong with them."""
    base = _own_rates(terms, "the price")
    tiers = _tiers(terms.tiers, base, "tiers")
    if len(terms.hours) > _MOST_BANDS:
        raise ValueError(f"at most {_MOST_BANDS} `hours` are possible")
    bands = tuple(_band(hours, base, tiers, f"hours[{n}]") for n, hours in enumerate(terms.hours))
    made = Price(
        id=name,
        **structs.asdict(base),
        request=_per_call(terms.request_usd) or 0,
        web_search=_per_call(terms.web_search_usd),
        file_search=_per_call(terms.file_search_usd),
        status=status,
        tiers=tiers,
        bands=bands,
    )
    return named(structs.replace(made, status="free") if costs_nothing(made) else made)


def costs_nothing(price: Price) -> bool:
    """Whether nothing about it costs anything."""
    rates = [price, *price.tiers, *(r for band in price.bands for r in (band, *band.tiers))]
    fees = price.request or price.web_search or price.file_search
    return not fees and not any(_dearest(each) for each in rates)


def _dearest(rates: Rates) -> int:
    apart = rates.apart.__struct_fields__ if rates.apart else ()
    return max(
        rates.input,
        rates.output,
        rates.cached_input,
        rates.cache_write,
        *(getattr(rates.apart, field) or 0 for field in apart),
    )


def percents(service: dict[str, Amount]) -> dict[str, str]:
    """`service` as it is kept: decimal text by lower-case name. Raises ValueError."""
    if len(service) > _MOST_SERVICES:
        raise ValueError(f"at most {_MOST_SERVICES} service tiers are possible")
    found: dict[str, str] = {}
    for name, value in service.items():
        if not name.isidentifier() or len(name) > 32:
            raise ValueError(f"`service`: {name[:40]!r} is no name of a service tier")
        found[name.lower()] = f"{_percent(value, f'service.{name}').normalize():f}"
    return found


def hours_of(price: Price) -> tuple[Price, ...]:
    """What is charged by: the price outside of its bands, then that of each band, every one a version of its own."""
    name = price.id.rpartition("@")[0]
    outside = structs.replace(price, id=name, bands=())
    inside = (
        Price(
            id=f"{name}+hours{number}",
            **_fields(band),
            request=price.request,
            web_search=price.web_search,
            file_search=price.file_search,
            status=price.status,
            tiers=band.tiers,
        )
        for number, band in enumerate(price.bands, start=1)
    )
    return named(outside), *map(named, inside)


def at_percent(price: Price, percent: str, name: str) -> Price:
    """`price` at a share of its rates, as a price version of its own; the fee per call shrinks or grows alike.

    Not those of searches: services tell no other for them in any tier.
    """
    share = Decimal(percent) / 100
    bands = tuple(
        Band(
            **_scaled(band, share),
            days=band.days,
            start=band.start,
            end=band.end,
            tiers=tuple(_scaled_tier(tier, share) for tier in band.tiers),
        )
        for band in price.bands
    )
    made = Price(
        id=f"{price.id.rpartition('@')[0]}+{name}",
        **_scaled(price, share),
        request=up(price.request * share),
        web_search=price.web_search,
        file_search=price.file_search,
        status=price.status,
        tiers=tuple(_scaled_tier(tier, share) for tier in price.tiers),
        bands=bands,
    )
    return named(made)


def service_of(name: str) -> str:
    """The service tier in the id of a price that `at_percent` and `hours_of` made; empty for every other."""
    found = _SERVICE.search(name)
    return "" if found is None else found[1]


def _fields(rates: Rates) -> dict[str, Any]:
    return {name: getattr(rates, name) for name in Rates.__struct_fields__}


def named(price: Price) -> Price:
    """The price whose id so far is only a name, under that name and the digest of all its terms."""
    tiers = [(t.start, t.input, t.output, t.cached_input, t.cache_write) for t in price.tiers]
    numbers = price.input, price.output, price.cached_input, price.cache_write, price.request
    told: tuple[object, ...] = (numbers, tiers, price.status)
    if price.apart or price.bands or any(tier.apart for tier in price.tiers):
        told = (*told, price.apart, price.tiers, price.bands)
    if price.web_search is not None or price.file_search is not None:
        told = (*told, price.web_search, price.file_search)
    digest = hashlib.blake2s(repr(told).encode(), digest_size=5).hexdigest()
    return structs.replace(price, id=f"{price.id}@{digest}")


def _own_rates(wanted: RatesWanted, where: str) -> Rates:
    if wanted.input_usd is None or wanted.output_usd is None:
        raise ValueError(f"{where} needs input_usd and output_usd, in USD per million tokens")
    fresh = pico(wanted.input_usd)
    apart = Apart(
        cache_write_1h=_maybe(wanted.cache_write_1h_usd),
        reasoning=_maybe(wanted.reasoning_usd),
        audio_in=_maybe(wanted.audio_input_usd),
        audio_out=_maybe(wanted.audio_output_usd),
        image_in=_maybe(wanted.image_input_usd),
        image_out=_maybe(wanted.image_output_usd),
    )
    return Rates(
        input=fresh,
        output=pico(wanted.output_usd),
        cached_input=fresh if wanted.cached_usd is None else pico(wanted.cached_usd),
        cache_write=fresh if wanted.cache_write_usd is None else pico(wanted.cache_write_usd),
        apart=None if apart == Apart() else apart,
    )


def _rates(wanted: TierWanted | HoursWanted, base: Rates, where: str) -> Rates:
    """Rates of its own, or a percentage of `base`; never both."""
    given = any(getattr(wanted, name) is not None for name in RatesWanted.__struct_fields__)
    if wanted.percent is None:
        return _own_rates(wanted, where)
    if given:
        raise ValueError(f"{where} takes a percentage or rates of its own, not both")
    return Rates(**_scaled(base, _percent(wanted.percent, f"{where}.percent") / 100))


def _tiers(wanted: Sequence[TierWanted], base: Rates, where: str) -> tuple[Tier, ...]:
    if len(wanted) > _MOST_TIERS:
        raise ValueError(f"at most {_MOST_TIERS} {where} are possible")
    found = sorted(
        (
            Tier(start=tier.above, **structs.asdict(_rates(tier, base, f"{where}[{n}]")))
            for n, tier in enumerate(wanted)
        ),
        key=lambda tier: tier.start,
    )
    starts = [tier.start for tier in found]
    if len(set(starts)) < len(starts) or any(start < 1 for start in starts):
        raise ValueError(f"`{where}` need different thresholds of at least 1 token")
    return tuple(found)


def _band(wanted: HoursWanted, base: Rates, tiers: tuple[Tier, ...], where: str) -> Band:
    rates = _rates(wanted, base, where)
    if wanted.percent is not None:
        if wanted.tiers:
            raise ValueError(f"{where} takes a percentage of the tiers, or tiers of its own, not both")
        share = _percent(wanted.percent, where) / 100
        own = tuple(_scaled_tier(tier, share) for tier in tiers)
    else:
        if tiers and not wanted.tiers:
            raise ValueError(f"{where} has rates of its own; say what long prompts cost then: `tiers`")
        own = _tiers(wanted.tiers, rates, f"{where}.tiers")
    return Band(
        **structs.asdict(rates),
        days=_days(wanted.days, where),
        start=_minute(wanted.start, f"{where}.start") % _DAY_MINUTES,
        end=_minute(wanted.end, f"{where}.end"),
        tiers=own,
    )


def _scaled(rates: Rates, share: Decimal) -> dict[str, Any]:
    apart = rates.apart
    return {
        "input": up(rates.input * share),
        "output": up(rates.output * share),
        "cached_input": up(rates.cached_input * share),
        "cache_write": up(rates.cache_write * share),
        "apart": apart
        and Apart(**{name: None if rate is None else up(rate * share) for name, rate in structs.asdict(apart).items()}),
    }


def _scaled_tier(tier: Tier, share: Decimal) -> Tier:
    return Tier(start=tier.start, **_scaled(tier, share))


def _days(text: str, where: str) -> int:
    """`mon-fri,sun` -> a bit per day, Monday's the lowest; a range may run over the end of the week."""
    found = 0
    for part in text.lower().replace(" ", "").split(","):
        first, _, last = part.partition("-")
        last = last or first
        if first not in _DAYS or last not in _DAYS:
            raise ValueError(f"{where}.days: {part[:20]!r} is no day or range of days such as mon-fri")
        day, end = _DAYS.index(first), _DAYS.index(last)
        found |= 1 << day
        while day != end:
            day = (day + 1) % 7
            found |= 1 << day
    return found


def _minute(text: str, where: str) -> int:
    hour, colon, minute = text.strip().partition(":")
    if colon and hour.isascii() and minute.isascii() and hour.isdigit() and minute.isdigit() and len(minute) == 2:
        found = int(hour) * 60 + int(minute)
        if int(minute) < 60 and found <= _DAY_MINUTES:
            return found
    raise ValueError(f"{where}: {text[:20]!r} is no time of day such as 16:30 (UTC)")


def _percent(value: Amount, where: str) -> Decimal:
    try:
        found = Decimal(str(value).removesuffix("%"))
    except InvalidOperation as error:
        raise ValueError(f"{where}: not a percentage: {str(value)[:40]!r}") from error
    if not found.is_finite() or not 0 <= found <= _MOST_PERCENT:
        raise ValueError(f"{where}: between 0 and {_MOST_PERCENT} percent is expected, not {str(value)[:40]!r}")
    return found


def _per_call(usd: Amount | None) -> int | None:
    """Pico-USD of a fee."""
    return None if usd is None else up(amount(usd) * PICO_PER_USD)


def _maybe(value: Amount | None) -> int | None:
    return None if value is None else pico(value)


def pico(usd_per_million: Amount) -> int:
    """Pico-USD per token, rounded up. Raises ValueError."""
    return up(amount(usd_per_million) * PICO_PER_MILLION_USD)


def amount(value: Amount) -> Decimal:
    """An amount in USD. Raises ValueError for what is none, or cannot be meant."""
    text = str(value)
    try:
        found = Decimal(text)
    except InvalidOperation as error:
        raise ValueError(f"not an amount in USD: {text[:40]!r}") from error
    if not found.is_finite() or not 0 <= found <= _DEAREST:
        raise ValueError(f"an amount between 0 and {_DEAREST} USD is expected, not {text[:40]!r}")
    return found


def up(value: Decimal) -> int:
    """The next whole number."""
    whole = int(value)
    return whole if whole == value else whole + 1
