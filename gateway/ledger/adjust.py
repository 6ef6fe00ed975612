"""Corrections: another entry beside the one it corrects, never a change of it.

Knows: how a correction is numbered, and that it moves the balances its entry had moved. Does not know: who may do this
(the finance role, checked where the request arrives), or why.
"""

from types import SimpleNamespace
from typing import Any

import msgspec
from sqlalchemy import func, insert, select
from sqlalchemy.engine import Connection

from gateway.db.models import Entry
from gateway.db.session import Database
from gateway.ledger.balances import Spending, Windows, spend, table
from gateway.ledger.late import book as book_late
from policies.money import usd

_strings = msgspec.json.Decoder(list[str]).decode
_LONGEST_REASON = 500


async def adjust(
    database: Database, windows: Windows, entry_id: str, delta: int, note: tuple[str, str], now: float
) -> str:
    """Correct what an attempt cost by `delta` nano-USD; answers the id of the new entry. `note`: reason and author.

    Raises ValueError when there is no such entry or the correction would make its cost negative.
    """
    return await database.transact(_adjust, windows, entry_id, delta, note, now)


def _adjust(
    connection: Connection, windows: Windows, entry_id: str, delta: int, note: tuple[str, str], now: float
) -> str:
    entry = connection.execute(select(*table(Entry).columns).where(Entry.id == entry_id)).mappings().first()
    if entry is None or entry["source"] == "adjust":
        raise ValueError(f"there is no entry {entry_id[:80]!r} to correct")
    names = _strings(entry["windows"])
    unnamed = windows.unnamed(connection, SimpleNamespace(**entry), now)
    windows.lock(connection, (*names, *unnamed))
    count, already = _corrections(connection, entry_id)
    if entry["amount_nano"] + already + delta < 0:
        cost = usd(entry["amount_nano"] + already)
        raise ValueError(f"the attempt cost {cost} USD; a correction by {usd(delta)} USD would make it negative")
    row: dict[str, Any] = (
        dict(entry)
        | {
            "id": f"{entry_id}#adj.{count + 1}",
            "at": now,
            "amount_nano": delta,
            "reserved_nano": 0,
            "source": "adjust",
            "note": f"{note[0][:_LONGEST_REASON]} ({note[1]})",
            "digest": f"{delta}/adjust/{now}",
            "classes": None,
        }
        | dict.fromkeys(("prompt", "cached", "cache_write", "completion", "reasoning"), 0)
    )
    connection.execute(insert(Entry).values(row))
    book_late(connection, [(str(row["id"]), entry["admitted"])], now)
    changes = [Spending(name, delta, 0, 0) for name in names] + [Spending(name, delta, 0, 0, delta) for name in unnamed]
    spend(connection, "", sorted(changes))
    return str(row["id"])


def _corrections(connection: Connection, entry_id: str) -> tuple[int, int]:
    """How many there are, and their sum."""
    wanted = select(func.count(), func.coalesce(func.sum(Entry.amount_nano), 0)).where(
        Entry.source == "adjust", Entry.id.startswith(f"{entry_id}#adj.", autoescape=True)
    )
    row = connection.execute(wanted).one()
    return int(row[0]), int(row[1])
