"""Entries in the order they were admitted, a page at a time, so that no reader's memory grows with the ledger.

Knows: which columns a charge follows from, keyset pages. Does not know: what anyone does with them.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from sqlalchemy import and_, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.models import Entry

_PAGE = 500
_COLUMNS = tuple(
    getattr(Entry, name)
    for name in (
        "id",
        "request_id",
        "admitted",
        "team",
        "project",
        "provider",
        "model",
        "windows",
        "price",
        "prompt",
        "cached",
        "cache_write",
        "completion",
        "reasoning",
        "classes",
        "amount_nano",
        "reserved_nano",
        "source",
    )
)


async def pages(
    connection: AsyncConnection, start: float, end: float, team: str | None = None
) -> AsyncGenerator[Sequence[Any], None]:
    """The entries admitted in `[start, end)`, of one team or of all. Empty pages are not told."""
    at, last = start, ""
    while True:
        after = or_(Entry.admitted > at, and_(Entry.admitted == at, Entry.id > last))
        wanted = select(*_COLUMNS).where(Entry.admitted >= at, Entry.admitted < end, after)
        if team is not None:
            wanted = wanted.where(Entry.team == team)
        page = wanted.order_by(Entry.admitted, Entry.id).limit(_PAGE)
        rows = (await connection.execute(page)).all()
        if rows:
            yield rows
        if len(rows) < _PAGE:
            return
        at, last = rows[-1].admitted, rows[-1].id
