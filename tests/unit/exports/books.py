"""Ledgers with months in them, written straight into the tables: what closing and exports are tested on."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import insert, text

from gateway.db.models import ApiKey, Entry, PriceVersion, Team
from gateway.db.session import Database
from gateway.ledger.posts import classes_text
from policies.money import Price, Usage, cost_nano
from tests.clock import FrozenClock
from tests.empty_database import fresh_postgres

# A contract's, with the id the price book gives it, and half of it for batches.
AGREED, AGREED_BATCH = "set/openai/gpt-5-mini@00000000a1", "set/openai/gpt-5-mini+batch@00000000a2"
PRICES = {
    AGREED: {"input_pico": 200_000, "output_pico": 1_500_000, "cached_pico": 20_000},
    AGREED_BATCH: {"input_pico": 100_000, "output_pico": 750_000, "cached_pico": 10_000},
    "plain": {"input_pico": 150_000, "output_pico": 600_000, "cached_pico": 75_000, "cache_write_pico": 187_500},
    "odd": {"input_pico": 37_333, "output_pico": 1, "cached_pico": 7, "cache_write_pico": 11, "request_pico": 999},
    "tiered": {
        "input_pico": 1_250_000,
        "output_pico": 10_000_000,
        "tiers": [[200_000, 2_500_000, 15_000_000, 250_000, 0]],
    },
}


def at(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()


def price(name: str) -> Price:
    """The price of `PRICES` as the policies know it."""
    from gateway.ledger.records import price_of

    row = price_row(name)
    numbers = tuple(row[f"{part}_pico"] for part in ("input", "output", "cached", "cache_write", "request"))
    return price_of(name, numbers, row["tiers"], None)


def price_row(name: str) -> dict[str, Any]:
    row: dict[str, Any] = {column.name: 0 for column in PriceVersion.__table__.columns}
    return row | {"id": name, "status": "exact", "tiers": [], "terms": None, "first_used": 0.0} | PRICES[name]


def entry(number: int, admitted: float, usage: Usage, charged_at: str = "plain", **changes: Any) -> dict[str, Any]:
    """One attempt and what it cost."""
    amount = cost_nano(usage, price(charged_at))
    row: dict[str, Any] = {column.name: None for column in Entry.__table__.columns}
    row |= {
        "id": f"r{number:06}.1",
        "request_id": f"r{number:06}",
        "admitted": admitted,
        "at": admitted + 1,
        "boot": "b",
        "windows": "[]",
        "team": "acme",
        "project": "web",
        "key_id": "key1",
        "provider": "openai",
        "model": "gpt-5-mini",
        "price": charged_at,
        "prompt": usage.prompt,
        "cached": usage.cached,
        "cache_write": usage.cache_write,
        "completion": usage.completion,
        "reasoning": usage.reasoning,
        "classes": classes_text(usage.classes or ()),
        "amount_nano": amount,
        "reserved_nano": amount,
        "source": "provider",
        "ended": "complete",
        "digest": "d",
        "charged": True,
    }
    return row | changes


async def post(database: Database, entries: Sequence[dict[str, Any]]) -> None:
    """Entries as they are, with their prices."""
    async with database.begin() as connection:
        known = {row[0] for row in await connection.execute(text("SELECT id FROM price_version"))}
        new = [price_row(name) for name in sorted({row["price"] for row in entries} - known)]
        if new:
            await connection.execute(insert(PriceVersion), new)
        await connection.execute(insert(Entry), list(entries))


async def named(database: Database) -> None:
    """A team and a key with names for people."""
    key = {"id": "key1", "name": "web server", "prefix": "sk", "hash": "h", "team": "acme", "project": "web"}
    async with database.begin() as connection:
        await connection.execute(insert(Team), [{"id": "acme", "name": "Acme Corp", "created": 0.0}])
        row = {column.name: None for column in ApiKey.__table__.columns} | key | {"role": "app", "created": 0.0}
        await connection.execute(insert(ApiKey), [row])


async def hits(database: Database) -> None:
    """Three hits on 20 October, written as the gateway writes them."""
    from tests.unit.control.house import happened, hit_row  # brings every route, which only this needs

    noon = FrozenClock(at(2026, 10, 20, 12))
    await happened(database, [hit_row(noon, number) for number in range(3)])


@asynccontextmanager
async def fresh(tmp_path: Path, server: str | None) -> AsyncGenerator[Database, None]:
    """An empty database of this version: SQLite, or a new one on a PostgreSQL server."""
    database = Database(f"sqlite:///{tmp_path / 'n.db'}" if server is None else await fresh_postgres(server))
    await database.start()
    yield database
    await database.close()
