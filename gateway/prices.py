"""What a token costs at which provider, when: the operator's own prices first, then the bundled table, then engines.

Knows: price overrides in the database, genai-prices (bundled, never fetched), what an engine's hour makes of a token.
Does not know: usage, budgets, HTTP. An unknown price is None and never 0: the caller refuses the request.

Every price is integers (pico-USD per token) under an id that is a digest of those integers, so that whatever was
charged can be recomputed from the ledger alone. Classes of tokens that usage does not tell apart (audio, images) make
a price "assumed"; per-search and per-storage fees are not token prices and are left out.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from sqlalchemy import func, select
from sqlalchemy.engine import Connection

from gateway.db.models import PriceOverride
from gateway.db.session import Database
from gateway.ids import uuid7
from gateway.ledger.balances import insert_once
from policies.money import Price, PriceStatus, Tier

if TYPE_CHECKING:
    from genai_prices.types import ModelPrice, Provider

    from gateway.settings import Settings

_PICO_PER_MILLION_USD = 1_000_000  # a price of 1 USD per million tokens is 10^6 pico-USD per token
_PICO_PER_USD = 10**12
_SLOT_SECONDS = 900  # bundled prices may depend on the time of day; a quarter of an hour is the finest step
_MOST_CACHED = 4_096
_MOST_UNPRICED = 200
_DEAREST = Decimal(100_000)  # USD per million tokens; above it is a mistake of unit
_ASSUMED_DECODE_TPS = 50.0  # small model, two cores; replaced by `nearhit engine bench`
_PREFILL_TO_DECODE = 10.0  # reading is at least that much faster than writing
_ENCODER_TPS = 20_000.0
_UNCOUNTED = ("input_audio_mtok", "output_audio_mtok", "input_image_mtok", "output_image_mtok", "output_reasoning_mtok")
ANY = "*"


class Override(Struct, frozen=True, kw_only=True):
    """A price set by the operator. `provider` may be `*`. In force from `effective_from` until the next one."""

    provider: str
    model: str
    price: Price
    effective_from: float
    source: str
    actor: str


class PriceBook:
    """Look-ups are plain, bounded in memory and cost a dictionary access; `load` reads the overrides (again)."""

    def __init__(self, database: Database, *, settings: "Settings", now: Callable[[], float]) -> None:
        self._database = database
        self._settings = settings
        self._now = now
        self._overrides: dict[tuple[str, str], list[Override]] = {}
        self._cached: dict[tuple[str, str, str, int], Price | None] = {}
        self._unpriced: dict[str, float] = {}
        self._insert = insert_once(database.dialect, PriceOverride)

    async def load(self) -> None:
        """Read the overrides and bring the bundled table into memory. Call it again when another process set one."""
        wanted = select(PriceOverride).order_by(PriceOverride.effective_from)
        async with self._database.read() as connection:
            rows = (await connection.execute(wanted)).mappings().all()
        found: dict[tuple[str, str], list[Override]] = {}
        for row in rows:
            found.setdefault((row["provider"], row["model"]), []).append(_override(row))
        self._overrides = found
        self._cached.clear()
        await asyncio.to_thread(_bundled)

    async def refresh(self) -> None:
        """Read the overrides again when another process has added one."""
        async with self._database.read() as connection:
            count = await connection.scalar(select(func.count()).select_from(PriceOverride))
        if count != sum(len(rows) for rows in self._overrides.values()):
            await self.load()

    def price(self, provider: str, kind: str, model: str, at: float, *, tier: str = "default") -> Price | None:
        """What `model` costs at `provider` at that time; None when nobody knows.

        `kind` is the provider's (`local` for bundled engines), `tier` the service tier the request asks for.
        """
        for name in ((provider, model), (ANY, model)):
            if (rows := self._overrides.get(name)) is not None:
                for row in reversed(rows):
                    if row.effective_from <= at:
                        return row.price
        key = (provider, model, tier, int(at // _SLOT_SECONDS))
        if key in self._cached:
            return self._cached[key]
        if len(self._cached) >= _MOST_CACHED:
            self._cached.clear()
        price = self._cached[key] = self._look_up(provider, kind, model, at, tier)
        if price is None:
            if len(self._unpriced) >= _MOST_UNPRICED:
                self._unpriced.pop(next(iter(self._unpriced)))
            self._unpriced[f"{provider}/{model}"] = at
        return price

    def unpriced(self) -> list[str]:
        """`provider/model` names that were asked for and have no price, oldest first."""
        return list(self._unpriced)

    def overrides(self) -> list[Override]:
        """Every override, by name and date."""
        return [row for _, rows in sorted(self._overrides.items()) for row in rows]

    async def set(
        self,
        name: str,
        *,
        input_usd: str,
        output_usd: str,
        actor: str,
        cached_usd: str | None = None,
        effective_from: float | None = None,
    ) -> Override:
        """Set the price of `provider/model` (or `*/model`), in USD per million tokens. Raises ValueError.

        Both 0 marks the model as free. An earlier price keeps its charges: prices change from a date on, never back.
        """
        provider, _, model = name.partition("/")
        if not provider or not model:
            raise ValueError(f"a price needs provider/model, not {name[:80]!r}")
        rates = (_pico(input_usd), _pico(output_usd), _pico(cached_usd or input_usd))
        status: PriceStatus = "free" if rates[0] == rates[1] == 0 else "exact"
        begins = self._now() if effective_from is None else effective_from
        row = {
            "id": uuid7(),
            "provider": provider,
            "model": model,
            "input_pico": rates[0],
            "output_pico": rates[1],
            "cached_pico": rates[2],
            "cache_write_pico": rates[0],
            "request_pico": 0,
            "status": status,
            "effective_from": begins,
            "source": "set",
            "actor": actor,
            "created": self._now(),
        }
        await self._database.transact(_add, self._insert, row)
        await self.load()
        return _override(row)

    def _look_up(self, provider: str, kind: str, model: str, at: float, tier: str) -> Price | None:
        if kind == "local":
            return self._local(provider, model)
        configured = self._settings.providers.get(provider)
        known = _provider(provider, configured.base_url if configured else None)
        if known is not None:
            found = known.find_model(model, all_providers=_bundled().providers)
            if found is not None:
                when = datetime.fromtimestamp(at, UTC)
                context = None if tier in ("default", "auto", "") else {"service_tier": tier}
                return _compiled(f"{known.id}/{found.id}", found.get_prices(when, context))
        return _SCRIPTED if kind == "scripted" else None

    def _local(self, provider: str, model: str) -> Price:
        """An engine's hour, spread over the tokens it makes in an hour; the encoder's likewise."""
        settings = self._settings.engines.get(provider)
        if settings is None or model == "minilm":
            hour = settings.hour_usd if settings else "0.50"
            return engine_price(hour, _ENCODER_TPS, _ENCODER_TPS, measured=False)
        decode = settings.tokens_per_second or _ASSUMED_DECODE_TPS
        measured = settings.tokens_per_second is not None
        return engine_price(settings.hour_usd, decode * _PREFILL_TO_DECODE, decode, measured=measured)


def engine_price(hour_usd: str, prefill_tps: float, decode_tps: float, *, measured: bool) -> Price:
    """The price of a token on hardware that costs `hour_usd` and reads or writes so many tokens a second."""
    hour = _amount(hour_usd) * _PICO_PER_USD / 3600
    rates = (_up(hour / Decimal(prefill_tps)), _up(hour / Decimal(decode_tps)))
    status: PriceStatus = "exact" if measured else "assumed"
    if rates == (0, 0):
        status = "free"
    return _price("engine", (rates[0], rates[1], rates[0], rates[0], 0), (), status)


def _override(row: Any) -> Override:
    numbers = (
        row["input_pico"],
        row["output_pico"],
        row["cached_pico"],
        row["cache_write_pico"],
        row["request_pico"],
    )
    return Override(
        provider=row["provider"],
        model=row["model"],
        price=_price(f"set/{row['provider']}/{row['model']}", numbers, (), cast("PriceStatus", row["status"])),
        effective_from=row["effective_from"],
        source=row["source"],
        actor=row["actor"],
    )


def _add(connection: Connection, insert: Any, row: dict[str, Any]) -> None:
    connection.execute(insert, [row])


def _price(name: str, numbers: tuple[int, int, int, int, int], tiers: Sequence[Tier], status: PriceStatus) -> Price:
    told = repr((numbers, [(t.start, t.input, t.output, t.cached_input, t.cache_write) for t in tiers], status))
    return Price(
        id=f"{name}@{hashlib.blake2s(told.encode(), digest_size=5).hexdigest()}",
        input=numbers[0],
        output=numbers[1],
        cached_input=numbers[2],
        cache_write=numbers[3],
        request=numbers[4],
        status=status,
        tiers=tuple(tiers),
    )


_SCRIPTED = _price("scripted", (1_000_000, 2_000_000, 1_000_000, 1_000_000, 0), (), "assumed")


# -- the bundled table ---------------------------------------------------------------------------------------------


def _bundled() -> Any:
    from genai_prices.data_snapshot import get_snapshot  # a fifth of a second that only the first look-up pays

    return get_snapshot()


def _provider(name: str, base_url: str | None) -> "Provider | None":
    """The table's provider behind a configured one: by its address, else by the name the operator gave it."""
    for reference in ((None, None, base_url), (None, name, None)):
        if reference[1] or reference[2]:
            try:
                return _bundled().find_provider(*reference)
            except LookupError:
                continue
    return None


def _compiled(name: str, prices: "ModelPrice") -> Price | None:
    """A row of the table as integers, rounded up to a pico-USD; None when it has no token prices."""
    if prices.input_mtok is None:
        return None
    starts = sorted({tier.start for value in prices.__dict__.values() for tier in getattr(value, "tiers", ())})
    tiers: list[Tier] = []
    for start in starts:
        rates = _rates(prices, start)
        tiers.append(Tier(start=start, input=rates[0], output=rates[1], cached_input=rates[2], cache_write=rates[3]))
    per_call = prices.__dict__.get("requests_kcount")
    request = _up(Decimal(per_call) * _PICO_PER_USD / 1000) if isinstance(per_call, Decimal) else 0
    uncounted = any(prices.__dict__.get(field) is not None for field in _UNCOUNTED)
    return _price(name, (*_rates(prices, None), request), tiers, "assumed" if uncounted else "exact")


def _rates(prices: "ModelPrice", start: int | None) -> tuple[int, int, int, int]:
    """Pico-USD per input, output, cached and cache-writing token, for prompts just above `start`."""

    def at(field: str) -> int | None:
        value: Any = prices.__dict__.get(field)
        if value is None:
            return None
        if isinstance(value, Decimal):
            return _up(value * _PICO_PER_MILLION_USD)
        found = value.base
        for tier in value.tiers:
            if start is not None and tier.start <= start:
                found = tier.price
        return _up(found * _PICO_PER_MILLION_USD)

    fresh = at("input_mtok") or 0
    cached, cache_write = at("cache_read_mtok"), at("cache_write_mtok")
    reasoning = at("output_reasoning_mtok") or 0
    return (
        fresh,
        max(at("output_mtok") or 0, reasoning),
        fresh if cached is None else cached,
        fresh if cache_write is None else cache_write,
    )


def _pico(usd_per_million: str) -> int:
    return _up(_amount(usd_per_million) * _PICO_PER_MILLION_USD)


def _amount(text: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation as error:
        raise ValueError(f"not an amount in USD: {text[:40]!r}") from error
    if not value.is_finite() or not 0 <= value <= _DEAREST:
        raise ValueError(f"an amount between 0 and {_DEAREST} USD is expected, not {text[:40]!r}")
    return value


def _up(value: Decimal) -> int:
    whole = int(value)
    return whole if whole == value else whole + 1
