"""The ledger's entries as they are, page by page.

Knows: their columns outside, amounts as decimals. Does not know: file formats, who asks.
Entries never change, so each page is a short read of its own and memory is that of one page.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from sqlalchemy import or_, select

from gateway.db.models import Entry, LateEntry
from gateway.db.session import Database
from gateway.exports.columns import Kind
from gateway.ledger.balances import table
from gateway.ledger.grouping import Scope, late, own
from policies.money import dollars
from policies.months import month_of

PAGE = 2_000
_TEXT = ("id", "request_id", "team", "project", "key_id", "user", "provider", "model", "asked", "provider_id", "price")
_COUNTS = ("prompt", "cached", "cache_write", "completion", "reasoning")
_AFTER = ("classes", "source", "ended", "note", "tags", "boot")
COLUMNS: Sequence[tuple[str, Kind]] = (
    ("month", "text"),
    ("admitted", "instant"),
    ("at", "instant"),
    *((name, "text") for name in _TEXT),
    *((name, "count") for name in _COUNTS),
    ("amount_usd", "number"),
    ("reserved_usd", "number"),
    *((name, "text") for name in _AFTER),
)
"""`month`: where the entry is booked. `admitted`: when it began, `at`: when it ended."""


async def entries_of_month(
    database: Database, month: str, team: str | None = None
) -> AsyncGenerator[list[dict[str, Any]], None]:
    """Every entry that is booked in a month, its own in order of admission, then the late ones."""
    for scope in (own(month, team), late(month, team)):
        async for page in _pages(database, scope):
            yield page


async def entries_between(
    database: Database, start: float, end: float, team: str | None = None
) -> AsyncGenerator[list[dict[str, Any]], None]:
    """Every entry admitted in `[start, end)`, in order of admission, wherever it is booked."""
    async for page in _pages(database, Scope(month="", start=start, end=end, team=team)):
        yield page


async def _pages(database: Database, scope: Scope) -> AsyncGenerator[list[dict[str, Any]], None]:
    names = [name for name, _ in COLUMNS if hasattr(Entry, name)]
    wanted = select(*(getattr(Entry, name) for name in names), Entry.amount_nano, Entry.reserved_nano, LateEntry.month)
    wanted = wanted.select_from(table(Entry)).outerjoin(table(LateEntry), LateEntry.entry_id == Entry.id)
    if scope.team is not None:
        wanted = wanted.where(Entry.team == scope.team)
    if scope.late:
        wanted = wanted.where(LateEntry.month == scope.month)
    else:
        wanted = wanted.where(Entry.admitted >= scope.start, Entry.admitted < scope.end)
        if scope.month:
            wanted = wanted.where(LateEntry.month.is_(None))
    place: tuple[float, str] | None = None
    while True:
        page = wanted
        if place is not None:
            after = or_(Entry.admitted > place[0], (Entry.admitted == place[0]) & (Entry.id > place[1]))
            page = page.where(Entry.admitted >= place[0], after)
        async with database.read(patience=30.0) as connection:
            found = await connection.execute(page.order_by(Entry.admitted, Entry.id).limit(PAGE))
            rows = found.mappings().all()
        if rows:
            yield [_shown(row) for row in rows]
        if len(rows) < PAGE:
            return
        place = (rows[-1]["admitted"], rows[-1]["id"])


def _shown(row: Any) -> dict[str, Any]:
    return {
        **row,
        "month": row["month"] or month_of(row["admitted"]),
        "amount_usd": dollars(row["amount_nano"]),
        "reserved_usd": dollars(row["reserved_nano"]),
    }
