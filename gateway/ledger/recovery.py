"""What dead processes left behind: post the ends they journalled, the upper bound of what they never ended.

Knows: how a journal is read back and what follows from it. Does not know: how processes die.
May be interrupted anywhere and begun again: every id was made before the crash, so a repeat changes nothing.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import structlog
from msgspec import Struct
from sqlalchemy import select
from sqlalchemy.engine import Connection

from gateway.call import AUDIT_SCOPE
from gateway.db.models import Entry, RequestRow
from gateway.db.models.happened import LARGEST_COUNT
from gateway.db.session import Database
from gateway.db.sums import COLUMNS, Row
from gateway.ledger import segments
from gateway.ledger.balances import chunks, parameters
from gateway.ledger.book import Book
from gateway.ledger.openings import UNCONFIRMED
from gateway.ledger.posts import Line, Posts
from gateway.ledger.records import Dispatch, Progress, Settle, Shipped
from gateway.ledger.request_rows import RequestRows

log = structlog.get_logger("nearhit.ledger")


class Found(Struct, kw_only=True):
    """What one journal says. `open_`: begun, not ended. `lines`: ended and not known to be in the database."""

    boot: str
    lines: list[Line]
    open_: list[Dispatch]
    progress: dict[str, Progress]
    begun: list[Dispatch]
    damaged: int = 0


def read(folder: Path) -> Found:
    """Everything a journal says. Blocking; damaged records in its middle are counted."""
    begun: dict[str, Dispatch] = {}
    ended: dict[str, Settle] = {}
    found = Found(boot=folder.name, lines=[], open_=[], progress={}, begun=[])
    shipped = -1
    for record in segments.read(folder):
        if record is None:
            found.damaged += 1
        elif isinstance(record, Dispatch):
            begun[record.id] = record
        elif isinstance(record, Settle):
            ended.setdefault(record.id, record)
        elif isinstance(record, Progress):
            found.progress[record.id] = record
        elif isinstance(record, Shipped):
            shipped = max(shipped, record.number)
    found.begun = list(begun.values())
    found.open_ = [record for name, record in begun.items() if name not in ended]
    found.lines = [
        Line(begun[name], record) for name, record in ended.items() if record.number > shipped and name in begun
    ]
    return found


class Recovery:
    """Recovers the journals of other boots under one folder, whichever processes they belonged to."""

    def __init__(self, database: Database, book: Book, posts: Posts, root: Path, *, now: Callable[[], float]) -> None:
        self._database = database
        self._book = book
        self._posts = posts
        self._root = root
        self._now = now
        self._request_rows = RequestRows(database.dialect)

    async def recover(self) -> int:
        """Bring every dead journal into the database and delete it; answers how many. Raises as the database does."""
        count = 0
        await self._book.close_silent(self._now())
        for folder, lock in segments.dead(self._root):
            try:
                await self._recover(await asyncio.to_thread(read, folder))
                segments.remove(folder)
                count += 1
            finally:
                os.close(lock)
        return count

    async def _recover(self, found: Found) -> None:
        doubtful = await self._not_posted(found.open_)
        lines = found.lines + [_unended(record, found.progress.get(record.id), self._now()) for record in doubtful]
        for some in chunks(lines):
            await self._posts.post(found.boot, some, self._now())
        await self._add_lost_requests(found.begun)
        await self._book.close_boot(found.boot, self._now())
        if lines or found.damaged:
            told = {"boot": found.boot, "posted": len(lines), "in_doubt": len(doubtful), "damaged": found.damaged}
            log.warning("recovered the journal of a process that did not stop by itself", **told)

    async def _not_posted(self, open_: list[Dispatch]) -> list[Dispatch]:
        """Those without an entry: an end may have reached the database and yet been lost from disk in a power cut."""
        posted: set[str] = set()
        async with self._database.read() as connection:
            for some in chunks([record.id for record in open_]):
                posted.update(row[0] for row in await connection.execute(_POSTED, {"names": list(some)}))
        return [record for record in open_ if record.id not in posted]

    async def _add_lost_requests(self, begun: list[Dispatch]) -> None:
        """A row for each request that died with its process, so that usage and ledger tell the same sums."""
        by_request: dict[str, Dispatch] = {record.request_id: record for record in begun}
        for some in chunks(list(by_request)):
            await self._database.transact(self._add_lost, {name: by_request[name] for name in some})

    def _add_lost(self, connection: Connection, begun: dict[str, Dispatch]) -> None:
        known = {row[0] for row in connection.execute(_KNOWN, {"names": list(begun)})}
        spent: dict[str, list[Any]] = {name: [] for name in begun if name not in known}
        if not spent:
            return
        for entry in connection.execute(_ENTRIES, {"names": sorted(spent)}).mappings():
            spent[entry["request_id"]].append(entry)
        lost = [_lost_request(begun[name], entries) for name, entries in sorted(spent.items())]
        self._request_rows.add(connection, lost)


def _unended(record: Dispatch, progress: Progress | None, now: float) -> Line:
    """Sent, and nobody knows how it ended: all that was reserved, so that nothing billed can be missing."""
    seen = f", {progress.completion} tokens were seen" if progress else ""
    return Line(
        record,
        Settle(
            0,
            record.id,
            now,
            record.reserve,
            (record.input_bound, 0, 0, record.max_output, 0),
            "upper_bound",
            "cut",
            None,
            f"recovered{seen}",
        ),
    )


def _lost_request(record: Dispatch, entries: list[Any]) -> Row:
    estimated = any(entry["source"] in UNCONFIRMED for entry in entries)
    known: dict[str, Any] = {
        "id": record.request_id,
        "at": record.admitted,
        "key_id": record.key_id,
        "team": record.team,
        "project": record.project,
        "user": record.user,
        "model": record.asked,
        "provider": record.provider,
        "model_used": record.model,
        "operation": record.operation,
        "stream": False,
        "source": "upstream",
        "cache": "audit" if any(name.startswith(AUDIT_SCOPE) for name in record.windows) else "miss",
        "status": 500,
        "error": "the process that served this request died",
        **{name: min(sum(entry[name] for entry in entries), LARGEST_COUNT) for name in _TOKENS},
        "cost_nano": sum(entry["amount_nano"] for entry in entries),
        "saved_nano": 0,
        "discount_nano": 0,
        "routed_nano": 0,
        "embed_nano": 0,
        "cost_status": "estimated" if estimated else "exact",
        "total_ms": 0.0,
        "attempts": len(entries),
        "complete": False,
        "client_gone": True,
        "tags": _encode(dict(tag.split("=", 1) for tag in record.tags)).decode() if record.tags else None,
    }
    return tuple(known.get(name) for name in COLUMNS)


_encode = msgspec.json.Encoder().encode
_TOKENS = ("prompt", "cached", "cache_write", "completion", "reasoning")
_POSTED = select(Entry.id).where(Entry.id.in_(parameters("names")))
_KNOWN = select(RequestRow.id).where(RequestRow.id.in_(parameters("names")))
_ENTRIES = select(Entry.request_id, Entry.amount_nano, Entry.source, *(getattr(Entry, name) for name in _TOKENS)).where(
    Entry.request_id.in_(parameters("names"))
)
