"""What a token costs at which provider, when: the operator's own prices first, then the bundled table, then engines.

Knows: contract prices in the database and when they are in force, the order in which prices are looked for.
Does not know: usage, budgets, HTTP. An unknown price is None and never 0: the caller refuses the request.

Every price is integers (pico-USD per token) under an id that is a digest of those integers, so that whatever was
charged can be recomputed from the ledger alone.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct, structs
from sqlalchemy import func, insert, select
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from gateway import price_table
from gateway.db.models import PriceOverride
from gateway.db.session import Also, Database, nothing
from gateway.engine_prices import Basis, engine_price, engine_speed, hour_usd
from gateway.ids import uuid7
from gateway.price_terms import Terms, at_percent, hours_of, named, percents, price_from, service_of
from policies.money import Price, PriceStatus

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, Provider

    from gateway.settings import Settings

_SLOT_SECONDS = 900  # bundled prices may depend on the time of day; a quarter of an hour is the finest step
_MOST_CACHED = 4_096
_MOST_UNPRICED = 200
_MOST_OVERRIDES = 20_000
_TAKEN = "{} has another price from that instant on already; choose another"
ANY = "*"
BY_HAND = "set"


class Override(Struct, frozen=True, kw_only=True):
    """A price set by the operator. `provider` may be `*`. In force in `[effective_from, effective_until)`.

    Of several in force at once the one that began last counts. `hours`: what is charged by service tier ("" is every
    other), outside of the price's bands and in each. `service`: percent of the price, by service tier. `basis`: of an
    engine's price.
    """

    provider: str
    model: str
    price: Price
    effective_from: float
    effective_until: float | None
    source: str
    actor: str
    service: dict[str, str]
    basis: Basis | None
    hours: dict[str, tuple[Price, ...]]

    def charged(self, at: float, tier: str) -> Price:
        """The price version that an attempt begun at that time is charged by."""
        service, _, region = tier.partition("+")
        hours = self.hours.get(service) or self.hours.get(region) or self.hours[""]
        return hours[self.price.band(at) if len(hours) > 1 else 0]

    def holds(self, at: float) -> bool:
        return self.effective_from <= at and (self.effective_until is None or at < self.effective_until)


class PriceSetting(Struct, frozen=True, kw_only=True):
    """Who sets a price, for when. `source`: `set` by hand, `bench` from a measurement of an engine."""

    actor: str
    effective_from: float | None = None
    effective_until: float | None = None
    source: str = BY_HAND
    status: PriceStatus = "exact"
    basis: Basis | None = None


class PriceBook:
    """Look-ups are plain, bounded in memory and cost a dictionary access; `load` reads the overrides (again)."""

    def __init__(self, database: Database, *, settings: "Settings", now: Callable[[], float]) -> None:
        self._database = database
        self._settings = settings
        self._now = now
        self._overrides: dict[tuple[str, str], list[Override]] = {}
        self._cached: dict[tuple[str, str, str, int], Price | None] = {}
        self._apart: dict[tuple[str, str], bool] = {}
        self._unpriced: dict[str, float] = {}
        self.generation = 0  # another number whenever overrides were read

    async def load(self) -> None:
        """Read the overrides and bring the bundled table into memory. Call it again when another process set one."""
        wanted = select(PriceOverride.__table__).order_by(PriceOverride.effective_from)
        async with self._database.read() as connection:
            rows = (await connection.execute(wanted)).mappings().all()
        found: dict[tuple[str, str], list[Override]] = {}
        for row in rows:
            found.setdefault((row["provider"], row["model"]), []).append(_override(row))
        self._overrides = found
        self._cached.clear()
        self.generation += 1
        await asyncio.to_thread(price_table.load)

    def configure(self, settings: "Settings") -> None:
        """Other providers and engines from now on."""
        self._settings = settings
        self._cached.clear()
        self._apart.clear()
        self.generation += 1

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
        price = self.peek(provider, kind, model, at, tier=tier)
        if price is None:
            if len(self._unpriced) >= _MOST_UNPRICED:
                self._unpriced.pop(next(iter(self._unpriced)))
            self._unpriced[f"{provider}/{model}"] = at
        return price

    def peek(self, provider: str, kind: str, model: str, at: float, *, tier: str = "default") -> Price | None:
        """The same for somebody who only wants to know: a name without a price is not noted."""
        if (mine := self.override(provider, model, at)) is not None:
            return mine.charged(at, tier)
        key = (provider, model, tier, int(at // _SLOT_SECONDS))
        if key in self._cached:
            return self._cached[key]
        if len(self._cached) >= _MOST_CACHED:
            self._cached.clear()
        price = self._cached[key] = self._look_up(provider, kind, model, at, tier)
        return price

    def background_tier(self, provider: str, kind: str, model: str, at: float) -> tuple[str, bool]:
        """The tier that a request nobody waits for is charged by, and whether it must be asked for upstream.

        `batch` where the operator has set what such requests cost; `flex` where the provider sells that tier, at what
        its batches cost, to whoever asks for it. Else `default`: a batch price alone is not had by single requests.
        """
        if (mine := self.override(provider, model, at)) is not None:
            return ("batch", False) if "batch" in mine.hours else ("default", False)
        usual = self.peek(provider, kind, model, at)
        flex = self.peek(provider, kind, model, at, tier="flex")
        sold = usual is not None and flex is not None and flex.id != usual.id and flex.status == usual.status
        return ("flex", True) if sold else ("default", False)

    def override(self, provider: str, model: str, at: float) -> Override | None:
        """The operator's own price in force at that time; for a dated name without one that of its alias.

        Not where the bundled table tells the two apart: what it has a row of its own for is not what the alias buys.
        """
        if not self._overrides:
            return None
        if (mine := self._in_force(provider, model, at)) is not None:
            return mine
        alias = price_table.undated(model)
        if alias is None or (mine := self._in_force(provider, alias, at)) is None:
            return None
        return None if self._is_apart(provider, model, alias) else mine

    def next_after(self, of: Override) -> Override | None:
        """The price of the same name that begins next and counts from then on; it may have begun long ago."""
        rows = self._overrides.get((of.provider, of.model), ())
        return next((row for row in rows if row.effective_from > of.effective_from), None)

    def next_begin(self, provider: str, model: str, at: float) -> float | None:
        """When the operator's next price of that name begins, of those set already; None without one."""
        rows = self._overrides.get((provider, model), ())
        mine = any(row.holds(at) for row in rows)
        others = () if mine else self._overrides.get((ANY, model), ())
        return min((row.effective_from for row in (*rows, *others) if row.effective_from > at), default=None)

    def _in_force(self, provider: str, model: str, at: float) -> Override | None:
        for name in ((provider, model), (ANY, model)):
            if (rows := self._overrides.get(name)) is not None:
                for row in reversed(rows):
                    if row.holds(at):
                        return row
        return None

    def _is_apart(self, provider: str, model: str, alias: str) -> bool:
        """Whether the dated name is a model of its own: to the bundled table, or as every name of an engine is."""
        if provider in self._settings.engines:
            return True
        key = provider, model
        if key not in self._apart:
            if len(self._apart) >= _MOST_CACHED:
                self._apart.clear()
            dated, usual = self._row(provider, model), self._row(provider, alias)
            self._apart[key] = dated is not None and (usual is None or dated[1].id != usual[1].id)
        return self._apart[key]

    def listed(self, provider: str, model: str, price: str, at: float) -> Price | None:
        """What the bundled table asked at that time for what was charged at `price`, the id of an operator's own.

        None where that was none of an operator's, and where the table knows neither the model nor its service tier.
        """
        if not price.startswith(f"{BY_HAND}/") or (found := self._row(provider, model)) is None:
            return None
        service = service_of(price)
        usual, asked = (price_table.list_price(*found, at, tier) for tier in ("", service))
        return None if service and asked == usual else asked

    def unpriced(self) -> list[str]:
        """`provider/model` names that requests asked for in this process and had no price, oldest first."""
        return [name for name in self._unpriced if self.override(*_split(name), self._now()) is None]

    def overrides(self) -> list[Override]:
        """Every override, by name and date."""
        return [row for _, rows in sorted(self._overrides.items()) for row in rows]

    def doubts(self, provider: str, model: str, at: float) -> list[str]:
        """Why the bundled price of a model may be stale; empty when it has another price, or none speaks against it."""
        found = None if self.override(provider, model, at) else self._row(provider, model)
        return [] if found is None else price_table.doubts(found[1], at)

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
        """`put` for a plain price in USD per million tokens."""
        terms = Terms(input_usd=input_usd, output_usd=output_usd, cached_usd=cached_usd)
        return await self.put(name, terms, PriceSetting(actor=actor, effective_from=effective_from))

    async def put(
        self, name: str, terms: Terms, setting: PriceSetting, also: Callable[[Override], Also] | None = None
    ) -> Override:
        """Set the price of `provider/model` (or `*/model`). Raises ValueError for terms that make no sense.

        All rates 0 mark the model as free. An earlier price keeps its charges: prices change from a date on.
        `also`: what belongs to the change.
        """
        provider, _, model = name.partition("/")
        if not provider or not model:
            raise ValueError(f"a price needs provider/model, not {name[:80]!r}")
        if "*" in model or ("*" in provider and provider != ANY):  # it would be kept, and never charged
            raise ValueError(
                f"a price is of one model: {name[:80]!r} names none. `*/model` is that model at every provider; "
                "there is no price of all models, so that none is charged at a guess"
            )
        begins = self._now() if setting.effective_from is None else setting.effective_from
        if setting.effective_until is not None and setting.effective_until <= begins:
            raise ValueError("a price must end after it begins (effective_until)")
        row = _row_of((provider, model), terms, setting, begins) | {"created": self._now()}
        try:
            await self._database.transact(_add, row, nothing if also is None else also(_override(row)))
        except IntegrityError as error:  # another process was faster by an instant
            raise ValueError(_TAKEN.format(name)) from error
        await self.load()
        return _override(row)

    def _row(self, provider: str, model: str) -> "tuple[Provider, ModelInfo] | None":
        configured = self._settings.providers.get(provider)
        if configured is None:
            return price_table.find(provider, None, model)
        return price_table.find(provider, configured.base_url, model, configured.kind)

    def _look_up(self, provider: str, kind: str, model: str, at: float, tier: str) -> Price | None:
        if kind == "local":
            return self._local(provider, model)
        if (found := self._row(provider, model)) is not None:
            return price_table.list_price(*found, at, tier)
        return _SCRIPTED if kind == "scripted" else None

    def _local(self, provider: str, model: str) -> Price:
        """An engine's hour, spread over the tokens it makes in an hour; the encoder's likewise."""
        settings = self._settings.engines.get(provider)
        return engine_price(f"engine/{provider}/{model}", hour_usd(settings), engine_speed(settings, model))


def _split(name: str) -> tuple[str, str]:
    provider, _, model = name.partition("/")
    return provider, model


def _row_of(name: tuple[str, str], terms: Terms, setting: PriceSetting, begins: float) -> dict[str, Any]:
    price = price_from(f"{setting.source}/{name[0]}/{name[1]}", terms, setting.status)
    rich = price.apart or price.bands or price.tiers or price.web_search is not None or price.file_search is not None
    return {
        "id": uuid7(),
        "provider": name[0],
        "model": name[1],
        "input_pico": price.input,
        "output_pico": price.output,
        "cached_pico": price.cached_input,
        "cache_write_pico": price.cache_write,
        "request_pico": price.request,
        "status": price.status,
        "effective_from": begins,
        "effective_until": setting.effective_until,
        "source": setting.source,
        "actor": setting.actor,
        "terms": msgspec.to_builtins(price) if rich else None,
        "service": percents(terms.service) or None,
        "basis": None if setting.basis is None else msgspec.to_builtins(setting.basis),
    }


def _override(row: Any) -> Override:
    price = _stored_price(row)
    service: dict[str, str] = row["service"] or {}
    return Override(
        provider=row["provider"],
        model=row["model"],
        price=price,
        effective_from=row["effective_from"],
        effective_until=row["effective_until"],
        source=row["source"],
        actor=row["actor"],
        service=service,
        basis=None if row["basis"] is None else msgspec.convert(row["basis"], Basis),
        hours={"": hours_of(price)}
        | {name: hours_of(at_percent(price, percent, name)) for name, percent in service.items()},
    )


def _stored_price(row: Any) -> Price:
    if row["terms"] is not None:
        return msgspec.convert(row["terms"], Price)
    made = Price(
        id=f"{row['source']}/{row['provider']}/{row['model']}",
        input=row["input_pico"],
        output=row["output_pico"],
        cached_input=row["cached_pico"],
        cache_write=row["cache_write_pico"],
        request=row["request_pico"],
        status=cast("PriceStatus", row["status"]),
    )
    return named(made)


def _add(connection: Connection, row: dict[str, Any], also: Also) -> None:
    """The same price again changes nothing.

    Raises ValueError when there is another one from that very instant, or when there are too many.
    """
    same = select(*PriceOverride.__table__.columns).where(
        PriceOverride.provider == row["provider"],
        PriceOverride.model == row["model"],
        PriceOverride.effective_from == row["effective_from"],
    )
    known = connection.execute(same).mappings().first()
    if known is not None:
        if structs.replace(_override(known), actor="") != structs.replace(_override(row), actor=""):
            raise ValueError(_TAKEN.format(f"{row['provider']}/{row['model']}"))
        also(connection)
        return
    if (connection.scalar(select(func.count()).select_from(PriceOverride)) or 0) >= _MOST_OVERRIDES:
        raise ValueError(f"there are {_MOST_OVERRIDES} prices already")
    connection.execute(insert(PriceOverride).values(row))
    also(connection)


_SCRIPTED = named(
    Price(
        id="scripted",
        input=1_000_000,
        output=2_000_000,
        cached_input=1_000_000,
        cache_write=1_000_000,
        status="assumed",
    )
)
