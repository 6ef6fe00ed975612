"""`nearhit db copy`: what one database holds, into another.

Knows: who may be using the database meanwhile, and what is in journals and not in it yet. Does not know: tables.
"""

import asyncio
import os
import sys
import time
from contextlib import AsyncExitStack
from typing import TextIO

from sqlalchemy import func, select

from gateway.cli.wrong import Wrong
from gateway.db.copying import Copied, Differs, NotEmpty, copy
from gateway.db.migrate import StaleSchema, require_current
from gateway.db.models import Boot
from gateway.db.session import UNREACHABLE, Database, parse, words_of
from gateway.ledger import Ledger
from gateway.serve_home import CannotServe, lock, prepare
from gateway.settings import Settings
from gateway.tasks import Tasks

_QUIET = 90.0  # seconds after its last sign of life that a process may still write: as long as a lease lives
_BETWEEN = 0.2  # seconds between two lines of progress


def copied(settings: Settings, url: str) -> list[Copied]:
    """Raises Wrong, with nothing written, when something stands in the way."""
    try:
        parse(url)
    except ValueError as error:
        raise Wrong(f"--to: {error}") from error
    try:
        return asyncio.run(_copied(settings, url))
    except (CannotServe, StaleSchema, NotEmpty, Differs) as error:
        raise Wrong(f"{error}; nothing was copied") from error
    except UNREACHABLE as error:
        raise Wrong(f"a database cannot be used: {words_of(error)}; nothing was copied") from error


async def _copied(settings: Settings, url: str) -> list[Copied]:
    async with AsyncExitStack() as stack:
        prepare(settings)
        stack.callback(os.close, lock(settings.home))
        source, target = Database(settings.database_url), Database(url)
        for database in (source, target):
            stack.push_async_callback(database.close)
        await require_current(source)
        await _prepare(settings, source)
        await target.start()
        with Progress(sys.stderr) as progress:
            return await copy(source, target, progress.tell)


async def _prepare(settings: Settings, source: Database) -> None:
    """Put into it what this home's journal holds, as every start does. Raises CannotServe while others write to it."""
    tasks = Tasks()
    journal = settings.home / "journal"
    ledger = Ledger(source, journal, settings=settings, now=time.time, monotonic=time.monotonic, tasks=tasks)
    try:
        await ledger.start(background=False)
        # Other hosts may be on the same PostgreSQL, by whose clock signs of life are dated.
        alive = select(func.count()).where(
            Boot.id != ledger.boot, Boot.closed.is_(None), Boot.seen > ledger.instant() - _QUIET
        )
        async with source.read() as connection:
            count = await connection.scalar(alive) if source.dialect == "postgresql" else 0
    finally:
        await ledger.close()
        await tasks.finish(1.0)
    if count:
        raise CannotServe(f"{count} gateway processes were using this database a moment ago: stop them and wait 90 s")


class Progress:
    """A line that is written over and over on a terminal; nothing elsewhere."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._shown = out.isatty()
        self._next = 0.0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._out.write("\r\033[K")

    def tell(self, table: str, done: int, total: int) -> None:
        if self._shown and (now := time.monotonic()) >= self._next:
            self._next = now + _BETWEEN
            self._out.write(f"\r\033[K{table}: {done:,} of {total:,} rows")
            self._out.flush()
