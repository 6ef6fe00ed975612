"""Proof that the stored balances are what the entries add up to, and that every charge recomputes.

Knows: the invariants of the ledger. Does not know: how to mend anything; it only tells.
Reads one consistent snapshot, entries in pages, so its memory does not grow with the ledger.
"""

from collections import Counter
from typing import Any

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.models import BudgetWindow, Entry, EntryConflict, Lease, PriceVersion
from gateway.db.session import Database
from gateway.ledger.posts import UNCONFIRMED
from gateway.ledger.records import price_of
from policies.money import Price, Usage, cost_nano, usd

_PAGE = 5_000
_MOST_FINDINGS = 1_000
_strings = msgspec.json.Decoder(list[str]).decode


async def verify(database: Database) -> list[str]:
    """Every difference, each in a sentence; empty when all is right."""
    found: list[str] = []
    async with database.snapshot() as connection:
        spent, estimated = await _add_up(connection, found)
        await _compare_windows(connection, spent, estimated, found)
        conflicts = await connection.scalar(select(func.count()).select_from(EntryConflict))
        if conflicts:
            found.append(f"{conflicts} entries contradict another one of the same attempt")
    return found[:_MOST_FINDINGS]


async def _add_up(connection: AsyncConnection, found: list[str]) -> tuple[Counter[str], Counter[str]]:
    """Spent and estimated per window, from the entries; recomputes each charge on the way."""
    spent: Counter[str] = Counter()
    estimated: Counter[str] = Counter()
    prices = await prices_by_id(connection)
    last = ""
    while True:
        page = select(*_COLUMNS).where(Entry.id > last).order_by(Entry.id).limit(_PAGE)
        rows = (await connection.execute(page)).all()
        for row in rows:
            for name in _strings(row.windows):
                spent[name] += row.amount_nano
                estimated[name] += row.amount_nano if row.source in UNCONFIRMED else 0
            if (problem := _miscomputed(row, prices)) is not None and len(found) < _MOST_FINDINGS:
                found.append(problem)
        if len(rows) < _PAGE:
            return spent, estimated
        last = rows[-1].id


def _miscomputed(row: Any, prices: dict[str, Price]) -> str | None:
    if row.source == "adjust":
        return None
    if row.source == "void":
        return None if row.amount_nano == 0 else f"entry {row.id} is void and yet charges {usd(row.amount_nano)} USD"
    if row.source == "upper_bound":
        same = row.amount_nano == row.reserved_nano
        return (
            None
            if same
            else f"entry {row.id} charges {usd(row.amount_nano)} USD, not its bound {usd(row.reserved_nano)}"
        )
    price = prices.get(row.price)
    if price is None:
        return f"entry {row.id} was charged at the price {row.price}, which is not known"
    right = cost_nano(usage_of(row), price)
    same = row.amount_nano == right
    return None if same else f"entry {row.id} charges {usd(row.amount_nano)} USD; its tokens cost {usd(right)} USD"


async def _compare_windows(
    connection: AsyncConnection, spent: Counter[str], estimated: Counter[str], found: list[str]
) -> None:
    held: Counter[str] = Counter()
    open_leases = select(Lease.window_id, Lease.granted_nano - Lease.consumed_nano).where(Lease.closed.is_(False))
    for window, amount in await connection.execute(open_leases):
        held[window] += amount
    wanted = select(
        BudgetWindow.id, BudgetWindow.spent_nano, BudgetWindow.estimated_nano, BudgetWindow.held_nano
    ).order_by(BudgetWindow.id)
    known: set[str] = set()
    for name, its_spent, its_estimated, its_held in await connection.execute(wanted):
        known.add(name)
        for what, stored, right in (
            ("spent", its_spent, spent[name]),
            ("estimated", its_estimated, estimated[name]),
            ("held", its_held, held[name]),
        ):
            if stored != right:
                found.append(f"window {name}: {what} is {usd(stored)} USD and should be {usd(right)} USD")
    found.extend(f"entries draw on a window that does not exist: {name}" for name in sorted(set(spent) - known))


async def prices_by_id(connection: AsyncConnection) -> dict[str, Price]:
    """Every price that was ever charged."""
    found: dict[str, Price] = {}
    for row in await connection.execute(select(*PriceVersion.__table__.columns)):
        numbers = (row.input_pico, row.output_pico, row.cached_pico, row.cache_write_pico, row.request_pico)
        found[row.id] = price_of(row.id, numbers, row.tiers)
    return found


def usage_of(row: Any) -> Usage:
    return Usage(
        prompt=row.prompt,
        cached=row.cached,
        cache_write=row.cache_write,
        completion=row.completion,
        reasoning=row.reasoning,
    )


_COLUMNS = (
    Entry.id,
    Entry.windows,
    Entry.amount_nano,
    Entry.reserved_nano,
    Entry.source,
    Entry.price,
    Entry.prompt,
    Entry.cached,
    Entry.cache_write,
    Entry.completion,
    Entry.reasoning,
)
