"""Corrections: another entry beside the one it corrects, never a change of it.

Knows: how a correction is numbered, and that it moves the balances its entry had moved. Does not know: who may do this
(the finance role, checked where the request arrives), or why.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
from msgspec import Struct
from sqlalchemy import ColumnElement, func, insert, select
from sqlalchemy.engine import Connection

from gateway.db.models import Entry
from gateway.db.session import UNREACHABLE, Also, Database
from gateway.ledger.alerting import Alerting, Moved
from gateway.ledger.balances import Spending, Windows, spend, table
from gateway.ledger.late import book as book_late
from policies.money import usd

_strings = msgspec.json.Decoder(list[str]).decode
_LONGEST_REASON = 500
Told = Callable[[str], Also]
"""What belongs to the new entry of that id, in its transaction."""


class Correction(Struct, frozen=True, kw_only=True):
    """`delta`: nano-USD more than `entry_id` says; `mark` is what no other correction has."""

    entry_id: str
    delta: int
    reason: str
    actor: str
    mark: str
    also: Told | None = None


async def adjust(database: Database, windows: Windows, alerting: Alerting, wanted: Correction, now: float) -> str:
    """Correct what an attempt cost; answers the id of the new entry.

    Raises ValueError when there is no such entry or the correction would make its cost negative, and what an
    unreachable database raises: then it was not made, unless the database is still away. A reply that was lost is
    looked for, since whoever is told to try again would correct twice.
    """
    try:
        return await database.transact(_adjust, windows, alerting, wanted, now)
    except UNREACHABLE:
        mine = select(Entry.id).where(Entry.source == "adjust", Entry.digest == _digest(wanted), _of(wanted.entry_id))
        async with database.read() as connection:
            if (made := await connection.scalar(mine)) is not None:
                return str(made)
        raise


def _adjust(connection: Connection, windows: Windows, alerting: Alerting, wanted: Correction, now: float) -> str:
    entry_id, delta = wanted.entry_id, wanted.delta
    entry = connection.execute(select(*table(Entry).columns).where(Entry.id == entry_id)).mappings().first()
    if entry is None or entry["source"] == "adjust":
        raise ValueError(f"there is no entry {entry_id[:80]!r} to correct")
    names = _strings(entry["windows"])
    unnamed = windows.unnamed(connection, SimpleNamespace(**entry), now)
    balances = windows.lock(connection, (*names, *unnamed))
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
            "note": f"{wanted.reason[:_LONGEST_REASON]} ({wanted.actor})",
            "digest": _digest(wanted),
            "classes": None,
        }
        | dict.fromkeys(("prompt", "cached", "cache_write", "completion", "reasoning"), 0)
    )
    connection.execute(insert(Entry).values(row))
    book_late(connection, [(str(row["id"]), entry["admitted"])], now)
    changes = [Spending(name, delta, 0, 0) for name in names] + [Spending(name, delta, 0, 0, delta) for name in unnamed]
    spend(connection, "", sorted(changes))
    moved = [Moved(name, of.limit, of.spent, of.spent + delta) for name, of in balances.items()]
    alerting.moved(connection, moved, now)
    if wanted.also is not None:
        wanted.also(row["id"])(connection)
    return str(row["id"])


def _digest(wanted: Correction) -> str:
    return f"{wanted.delta}/adjust/{wanted.mark}"


def _of(entry_id: str) -> ColumnElement[bool]:
    """The corrections of an entry, by the beginning of their key."""
    return Entry.id.startswith(f"{entry_id}#adj.", autoescape=True)


def _corrections(connection: Connection, entry_id: str) -> tuple[int, int]:
    """How many there are, and their sum."""
    wanted = select(func.count(), func.coalesce(func.sum(Entry.amount_nano), 0)).where(
        Entry.source == "adjust", _of(entry_id)
    )
    row = connection.execute(wanted).one()
    return int(row[0]), int(row[1])
