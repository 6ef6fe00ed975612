"""The bundled table of list prices: genai-prices as it was installed, never fetched.

Knows: which provider of the table is meant, its rates as integers, how old the table is and what it says of itself.
Does not know: the operator's own prices, engines, usage.

What is priced by the character or by the hour of sound instead of by the token counts characters or seconds as input.
Other fees that are neither for tokens nor for searches (storage, containers) are left out; a model with classes of
tokens that `policies.money.Usage` does not tell apart is "assumed", and so is sound: some bill a shortest length.
"""

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache, lru_cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from gateway.price_terms import PICO_PER_MILLION_USD, PICO_PER_USD, at_percent, named, up
from policies.money import Apart, Price, Rates, Tier

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice, Provider

TABLE_MAX_AGE_DAYS = 90
_VERIFIED_MAX_AGE_DAYS = 365
_SECONDS_PER_DAY = 86_400
_SECONDS_PER_HOUR = 3_600
_UNCOUNTED = (
    "cache_audio_read_mtok",
    "cache_image_read_mtok",
    "input_video_mtok",
    "output_video_mtok",
    "output_citation_mtok",
    "input_mchars",
)
_DATE = re.compile(r"\b(?:verified|checked) on (20\d\d-[01]\d-[0-3]\d)\b")  # other days are of prices that will change
_DATED = re.compile(r"(.+)[-@]20\d\d(-?)(?:0[1-9]|1[0-2])\2(?:0[1-9]|[12]\d|3[01])")
_ONE_SERVICE = ("azure", "bedrock")
_NORMAL = ("default", "auto", "")
# Percent of every rate where a request is kept in one region. Source: Anthropic's pricing, data residency.
_REGIONAL = {"anthropic": "110"}
# Percent of the price in a tier that the table has none for: what a service says of all of its models (Google of
# priority 175 to 200). Sources: Gemini API, optimization; docs.fireworks.ai, batch inference; aws.amazon.com/bedrock,
# pricing. Together and xAI name the models whose batches are cheaper: of others nothing is assumed.
_TOLD_OF_ALL = {
    ("google", "flex"): "50",
    ("google", "priority"): "200",
    ("fireworks", "batch"): "50",
    ("aws", "batch"): "50",
}


class Table(Struct, frozen=True, kw_only=True):
    """Which table is bundled. `as_of`: the newest day on which it says a price was verified."""

    name: str
    version: str
    as_of: str
    age_days: int


def load() -> Any:
    """Bring the table into memory: a fifth of a second that only the first call pays."""
    from genai_prices.data_snapshot import get_snapshot

    return get_snapshot()


def find(
    provider: str, base_url: str | None, model: str, kind: str | None = None
) -> "tuple[Provider, ModelInfo] | None":
    """The row of a model: its provider is known by its address, else by its given name, else by its kind.

    By kind only where that says whose prices hold: no address of its own, or a language that one service speaks.
    """
    known = _known(provider, base_url, kind)
    found = None if known is None else known.find_model(model, all_providers=load().providers)
    return None if known is None or found is None else (known, found)


def knows(provider: str, base_url: str | None, kind: str | None) -> bool:
    """Whether it has prices of that service at all."""
    return _known(provider, base_url, kind) is not None


def _known(provider: str, base_url: str | None, kind: str | None) -> "Provider | None":
    telling = base_url is None or kind in _ONE_SERVICE
    return _provider(provider, base_url, kind if telling else None)


@lru_cache(maxsize=4_096)
def undated(model: str) -> str | None:
    """The alias of a dated name (`gpt-y-2026-01-01`, `claude-x-20260101`, `claude-x@20260101`); None for others."""
    found = _DATED.fullmatch(model)
    return None if found is None else found[1]


def context_window(provider: str, base_url: str | None, model: str, kind: str | None) -> int | None:
    """How many tokens the model's window holds, where the table knows."""
    found = find(provider, base_url, model, kind)
    return None if found is None else found[1].context_window


def list_price(known: "Provider", model: "ModelInfo", at: float, service: str) -> Price | None:
    """The price at that time for a service tier (`batch`, `priority`, …); None for what has no token prices.

    `service` may end in `+` and the region that a request is kept in (`gateway.call.tier_in`).
    """
    when = datetime.fromtimestamp(at, UTC)
    service, _, region = service.partition("+")
    # What one service calls a tier another calls a speed.
    names = ("processing",) if service == "batch" else ("service_tier", "speed")
    context: Mapping[str, str] | None = None if service in _NORMAL else dict.fromkeys(names, service)
    price = _compiled(f"{known.id}/{model.id}", model.get_prices(when, context))
    share = _TOLD_OF_ALL.get((known.id, service))
    if price is not None and share and not any(service in row.when.values() for row in model.price_variants or ()):
        price = at_percent(structs.replace(price, status="assumed"), share, service)
    percent = _REGIONAL.get(known.id) if region else None
    return price if price is None or percent is None else at_percent(price, percent, region)


def describe(now: float) -> Table:
    """Name, version and age of the table."""
    as_of = _as_of(int(now // _SECONDS_PER_DAY))
    age = (datetime.fromtimestamp(now, UTC).date() - as_of).days
    return Table(name="genai-prices", version=_installed(), as_of=as_of.isoformat(), age_days=age)


def doubts(model: "ModelInfo", now: float) -> list[str]:
    """Why the table's price of a model may no longer be right, in words; empty when nothing speaks against it."""
    found: list[str] = []
    if model.deprecated:
        found.append("the provider has deprecated the model")
    table = describe(now)
    if table.age_days > TABLE_MAX_AGE_DAYS:
        found.append(f"the bundled table ends on {table.as_of}, {table.age_days} days ago")
    today = datetime.fromtimestamp(now, UTC).date()
    verified = _dates(model.price_comments, today)
    if verified and (today - verified[-1]).days > _VERIFIED_MAX_AGE_DAYS:
        found.append(f"the table last verified it on {verified[-1]}")
    return found


@cache
def _installed() -> str:
    return version("genai-prices")


@lru_cache(maxsize=4)
def _as_of(day: int) -> date:
    today = datetime.fromtimestamp(day * _SECONDS_PER_DAY, UTC).date()
    newest = date(2000, 1, 1)
    for provider in load().providers:
        for model in provider.models:
            known = _dates(model.price_comments, today)
            newest = max(newest, *known[-1:], newest)
    return newest


def _dates(text: str | None, today: date) -> list[date]:
    """The days on which a comment says that the price was looked at, not later than today, in order."""
    found: list[date] = []
    for match in _DATE.findall(text or ""):
        try:
            found.append(date.fromisoformat(match))
        except ValueError:
            continue
    return sorted(day for day in found if day <= today)


def _provider(name: str, base_url: str | None, kind: str | None) -> "Provider | None":
    for reference in ((None, None, base_url), (None, name, None), (None, kind, None)):
        if reference[1] or reference[2]:
            try:
                return load().find_provider(*reference)
            except LookupError:
                continue
    return None


def _compiled(name: str, prices: "ModelPrice") -> Price | None:
    """A row of the table as integers, rounded up to a pico-USD; None when it prices nothing that is counted."""
    if prices.__dict__.get("input_mtok") is None:
        return _otherwise(name, prices)
    starts = sorted({tier.start for value in prices.__dict__.values() for tier in getattr(value, "tiers", ())})
    base = _rates(prices, None)
    made = Price(
        id=name,
        input=base.input,
        output=base.output,
        cached_input=base.cached_input,
        cache_write=base.cache_write,
        apart=base.apart,
        request=_per_call(prices, "requests_kcount") or 0,
        web_search=_per_call(prices, "web_searches_kcount"),
        file_search=_per_call(prices, "storage_searches_kcount"),
        tiers=tuple(_tier(prices, start) for start in starts),
        status="assumed" if any(prices.__dict__.get(field) is not None for field in _UNCOUNTED) else "exact",
    )
    return named(made)


def _per_call(prices: "ModelPrice", field: str) -> int | None:
    """Pico-USD each of what the table prices by the thousand."""
    value: Any = prices.__dict__.get(field)
    return up(value * PICO_PER_USD / 1000) if isinstance(value, Decimal) else None


def _otherwise(name: str, prices: "ModelPrice") -> Price | None:
    """Speech by the million of characters, transcriptions by the hour."""
    characters: Any = prices.__dict__.get("input_mchars")
    hour: Any = prices.__dict__.get("input_audio_hours") or prices.__dict__.get("audio_hours")
    if isinstance(characters, Decimal):
        rate, status = up(characters * PICO_PER_MILLION_USD), "exact"
    elif isinstance(hour, Decimal):
        rate, status = up(hour * PICO_PER_USD / _SECONDS_PER_HOUR), "assumed"
    else:
        return None
    return named(Price(id=name, input=rate, output=0, cached_input=rate, cache_write=rate, status=status))


def _tier(prices: "ModelPrice", start: int) -> Tier:
    rates = _rates(prices, start)
    return Tier(
        start=start,
        input=rates.input,
        output=rates.output,
        cached_input=rates.cached_input,
        cache_write=rates.cache_write,
        apart=rates.apart,
    )


def _rates(prices: "ModelPrice", start: int | None) -> Rates:
    """Pico-USD per token of each class, for prompts just above `start`."""

    def at(field: str) -> int | None:
        value: Any = prices.__dict__.get(field)
        if value is None:
            return None
        if isinstance(value, Decimal):
            return up(value * PICO_PER_MILLION_USD)
        found = value.base
        for tier in value.tiers:
            if start is not None and tier.start <= start:
                found = tier.price
        return up(found * PICO_PER_MILLION_USD)

    fresh = at("input_mtok") or 0
    cached, cache_write = at("cache_read_mtok"), at("cache_write_mtok")
    apart = Apart(
        cache_write_1h=at("cache_write_1h_mtok"),
        reasoning=at("output_reasoning_mtok"),
        audio_in=at("input_audio_mtok"),
        audio_out=at("output_audio_mtok"),
        image_in=at("input_image_mtok"),
        image_out=at("output_image_mtok"),
    )
    return Rates(
        input=fresh,
        output=at("output_mtok") or 0,
        cached_input=fresh if cached is None else cached,
        cache_write=fresh if cache_write is None else cache_write,
        apart=None if apart == Apart() else apart,
    )
