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
from gateway.ledger.openings import UNCONFIRMED, scopes_of_row
from gateway.ledger.records import price_of
from policies.money import Price, Usage, cost_nano, usd

_PAGE = 5_000
_MOST_FINDINGS = 1_000
_RARE = (
    *("cache_write_1h", "audio_in", "audio_out", "image_in", "image_out"),
    *("web_searches", "file_searches", "unpriced"),
)
_strings = msgspec.json.Decoder(list[str]).decode
_counts = msgspec.json.Decoder(list[int]).decode


async def verify(database: Database) -> list[str]:
    """Every difference, each in a sentence; empty when all is right."""
    found: list[str] = []
    async with database.snapshot() as connection:
        sums = await _add_up(connection, found)
        await _compare_windows(connection, sums, found)
        conflicts = await connection.scalar(select(func.count()).select_from(EntryConflict))
        if conflicts:
            found.append(f"{conflicts} entries contradict another one of the same attempt")
    return found[:_MOST_FINDINGS]


class _Sums:
    """Per window, from the entries, nano-USD. `opening`: the part of `spent` by entries that do not name the window."""

    def __init__(self, openings: dict[str, list[tuple[str, int, int]]]) -> None:
        self.spent: Counter[str] = Counter()
        self.estimated: Counter[str] = Counter()
        self.opening: Counter[str] = Counter()
        self._openings = openings

    def add(self, row: Any) -> None:
        named = _strings(row.windows)
        unnamed: list[str] = []
        if self._openings:
            under = [window for scope in scopes_of_row(row) for window in self._openings.get(scope, ())]
            unnamed = [name for name, starts, ends in under if starts <= row.admitted < ends and name not in named]
        for name in (*named, *unnamed):
            self.spent[name] += row.amount_nano
            self.estimated[name] += row.amount_nano if row.source in UNCONFIRMED else 0
        for name in unnamed:
            self.opening[name] += row.amount_nano


async def _add_up(connection: AsyncConnection, found: list[str]) -> _Sums:
    """Adds up the entries; recomputes each charge on the way."""
    openings: dict[str, list[tuple[str, int, int]]] = {}
    opened = select(BudgetWindow.scope, BudgetWindow.id, BudgetWindow.starts, BudgetWindow.ends)
    for scope, name, starts, ends in await connection.execute(opened.where(BudgetWindow.opened.is_not(None))):
        openings.setdefault(scope, []).append((name, starts, ends))
    sums = _Sums(openings)
    prices = await prices_by_id(connection)
    last = ""
    while True:
        page = select(*_COLUMNS).where(Entry.id > last).order_by(Entry.id).limit(_PAGE)
        rows = (await connection.execute(page)).all()
        for row in rows:
            sums.add(row)
            if (problem := _miscomputed(row, prices)) is not None and len(found) < _MOST_FINDINGS:
                found.append(problem)
        if len(rows) < _PAGE:
            return sums
        last = rows[-1].id


def _miscomputed(row: Any, prices: dict[str, Price]) -> str | None:
    right = right_nano(row, prices)
    if right is None:
        return f"entry {row.id} was charged at the price {row.price}, which is not known"
    if right == row.amount_nano:
        return None
    charged = f"entry {row.id} charges {usd(row.amount_nano)} USD"
    if row.source == "void":
        return f"{charged} and yet is void"
    if row.source == "upper_bound":
        return f"{charged}, not its bound {usd(right)} USD"
    return f"{charged}; its tokens cost {usd(right)} USD"


def right_nano(row: Any, prices: dict[str, Price]) -> int | None:
    """What an entry must charge by its own row; None when its price is not known. A correction is what it says."""
    if row.source == "adjust":
        return int(row.amount_nano)
    if row.source == "void":
        return 0
    if row.source == "upper_bound":
        return int(row.reserved_nano)
    price = prices.get(row.price)
    return None if price is None else cost_nano(usage_of(row), price)


async def _compare_windows(connection: AsyncConnection, sums: _Sums, found: list[str]) -> None:
    held: Counter[str] = Counter()
    open_leases = select(Lease.window_id, Lease.granted_nano - Lease.consumed_nano).where(Lease.closed.is_(False))
    for window, amount in await connection.execute(open_leases):
        held[window] += amount
    wanted = select(
        BudgetWindow.id,
        BudgetWindow.spent_nano,
        BudgetWindow.estimated_nano,
        BudgetWindow.held_nano,
        BudgetWindow.opening_nano,
    ).order_by(BudgetWindow.id)
    known: set[str] = set()
    for name, *stored in await connection.execute(wanted):
        known.add(name)
        right = (sums.spent[name], sums.estimated[name], held[name], sums.opening[name])
        for what, its, should in zip(("spent", "estimated", "held", "opening"), stored, right, strict=True):
            if its != should:
                found.append(f"window {name}: {what} is {usd(its)} USD and should be {usd(should)} USD")
    found.extend(f"entries draw on a window that does not exist: {name}" for name in sorted(set(sums.spent) - known))


async def prices_by_id(connection: AsyncConnection) -> dict[str, Price]:
    """Every price that was ever charged."""
    found: dict[str, Price] = {}
    for row in await connection.execute(select(*PriceVersion.__table__.columns)):
        numbers = (row.input_pico, row.output_pico, row.cached_pico, row.cache_write_pico, row.request_pico)
        found[row.id] = price_of(row.id, numbers, row.tiers, row.terms)
    return found


def usage_of(row: Any) -> Usage:
    """The tokens an entry was charged for."""
    main = Usage(
        prompt=row.prompt,
        cached=row.cached,
        cache_write=row.cache_write,
        completion=row.completion,
        reasoning=row.reasoning,
    )
    return main if row.classes is None else msgspec.structs.replace(main, **classes_of(row.classes))


def classes_of(classes: str | None) -> dict[str, int]:
    """The rarer classes by the name of their field in `Usage`; a row has as many as there were when it was written."""
    return {} if classes is None else dict(zip(_RARE, _counts(classes), strict=False))


_COLUMNS = (
    Entry.admitted,
    Entry.team,
    Entry.project,
    Entry.key_id,
    Entry.user,
    Entry.provider,
    Entry.model,
    Entry.asked,
    Entry.tags,
    Entry.charged,
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
    Entry.classes,
)
