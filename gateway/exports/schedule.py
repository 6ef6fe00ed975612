"""Exports that happen by themselves: files in a folder, one per day or month, each complete or not there.

Knows: what is due, who takes a run where several processes share the database, how a file takes its place.
Does not know: rows (`gateway.exports`), HTTP.

A daily FOCUS file or statement is that of the whole month so far. A monthly file is written when the month is over and
once more when it has been closed. A run that failed is told and tried again; days that were missed are caught up.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import structlog
from msgspec import Struct
from sqlalchemy import select, update
from sqlalchemy.engine import Connection

from gateway.db.models import ExportRun, MonthSeal
from gateway.db.session import UNREACHABLE, Database
from gateway.exports.focus import Listed
from gateway.exports.focus_file import Wanted, write_focus
from gateway.exports.plain import COLUMNS, entries_between, entries_of_month
from gateway.exports.sinks import sink
from gateway.ledger.balances import insert_once
from gateway.ledger.statement import statement
from gateway.outage import Outage
from gateway.turns import take_turns
from policies.periods import day_span, month_around, next_due

if TYPE_CHECKING:  # settings bring pydantic, which nothing here needs at run time
    from gateway.settings import ExportSettings

log = structlog.get_logger("nearhit.exports")

_TURN_SECONDS = 60.0
_TAKEN_SECONDS = 1_800.0  # a run that began so long ago and has not ended died with its process
_AGAIN_SECONDS = 900.0
_LONGEST_ERROR = 500
_SEALED = "/sealed"
_NONE_YET = ""  # before every month: of those that are closed later each is written, also several closed at once

Statement = Callable[[Any], bytes]


class Run(Struct, frozen=True, kw_only=True):
    """The last run of an export."""

    name: str
    period: str
    began: float
    ended: float | None
    files: list[str]
    error: str | None


class Scheduler:
    """One per worker. `shown`: how a statement becomes CSV; `listed`: list prices; `now`: wall-clock seconds."""

    def __init__(
        self,
        database: Database,
        jobs: "Sequence[ExportSettings]",
        shown: Statement,
        *,
        listed: Listed,
        now: Callable[[], float],
    ) -> None:
        self._listed = listed
        self._database = database
        self._jobs = jobs
        self._shown = shown
        self._now = now
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Until `stop`; never stopped in the middle of a file."""
        away = Outage(log, "exports wait for the database", "exports go on")
        if self._jobs:
            await take_turns(self.turn, self._stopping, _TURN_SECONDS, away)

    def stop(self) -> None:
        self._stopping.set()

    async def turn(self) -> int:
        """Write one period of each export that is due; answers how many."""
        count = 0
        for job in self._jobs:
            count += await self._due(job.name, job)
            if job.every == "month":
                count += await self._due(job.name + _SEALED, job)
        return count

    async def _due(self, name: str, job: "ExportSettings") -> bool:
        sealed = name.endswith(_SEALED)
        closed = await self._closed() if sealed else []
        period = await self._database.transact(_take, name, job.every, closed if sealed else None, self._now())
        if period is None:
            return False
        error: str | None = None
        files: list[str] = []
        try:
            files = [str(await self._write(job, period))]
        except (OSError, ValueError, *UNREACHABLE) as problem:
            error = f"{type(problem).__name__}: {problem}"[:_LONGEST_ERROR]
            log.error("an export could not be written", export=name, period=period, error=error)
        values = {"ended": self._now(), "files": files, "error": error}
        async with self._database.begin() as connection:
            await connection.execute(update(ExportRun).where(ExportRun.name == name).values(values))
        return error is None

    async def _closed(self) -> list[str]:
        wanted = select(MonthSeal.month).where(MonthSeal.digest.is_not(None)).order_by(MonthSeal.month)
        async with self._database.read() as connection:
            return [row.month for row in await connection.execute(wanted)]

    async def _write(self, job: "ExportSettings", period: str) -> Path:
        """Into a file beside its place, synced, then renamed: a reader never finds half of one."""
        daily_entries = job.what == "entries" and job.every == "day"
        name = period if daily_entries else month_around(period)
        place = job.folder / f"{job.name}-{name}.{job.format}"
        part = place.with_name(f".{place.name}.{os.getpid()}.part")
        await asyncio.to_thread(partial(job.folder.mkdir, parents=True, exist_ok=True))
        try:
            with await asyncio.to_thread(part.open, "wb") as file:
                await self._fill(job, period, file)
                await asyncio.to_thread(_sync, file)
            await asyncio.to_thread(part.replace, place)
        finally:
            await asyncio.to_thread(partial(part.unlink, missing_ok=True))
        return place

    async def _fill(self, job: "ExportSettings", period: str, file: BinaryIO) -> None:
        month = month_around(period)
        if job.what == "focus":
            form = "parquet" if job.format == "parquet" else "csv"
            wanted = Wanted(month=month, form=form, version=job.focus_version)
            await write_focus(self._database, self._listed, wanted, file)
        elif job.what == "statement":
            found = await statement(self._database, month, self._now())
            await asyncio.to_thread(file.write, self._shown(found))
        elif job.every == "day":
            await _copy(entries_between(self._database, *day_span(period)), job, file)
        else:
            await _copy(entries_of_month(self._database, month), job, file)


async def runs(database: Database) -> dict[str, Run]:
    """The last run of every export, by name."""
    names = Run.__struct_fields__
    wanted = select(*(getattr(ExportRun, name) for name in names)).where(ExportRun.period != _NONE_YET)
    async with database.read() as connection:
        rows = await connection.execute(wanted)
        return {row.name: Run(**dict(zip(names, row, strict=True))) for row in rows}


async def _copy(pages: AsyncGenerator[list[dict[str, Any]], None], job: "ExportSettings", file: BinaryIO) -> None:
    writer = sink(job.format, COLUMNS, file)
    async for rows in pages:
        await asyncio.to_thread(writer.write, rows)
    await asyncio.to_thread(writer.close)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _take(connection: Connection, name: str, every: Any, closed: list[str] | None, now: float) -> str | None:
    """The period this process is to write now; None when nothing is due or another one is at it.

    `closed`: the closed months, for the run that follows those.
    """
    wanted = select(ExportRun.period, ExportRun.began, ExportRun.ended, ExportRun.error).where(ExportRun.name == name)
    row = connection.execute(wanted.with_for_update()).first()
    if row is None:
        period = next_due(every, None, now) if closed is None else (closed[-1] if closed else _NONE_YET)
        if period is not None:
            over, blank = now if period == _NONE_YET else None, list[str]()
            begun = {"name": name, "period": period, "began": now, "ended": over, "files": blank}
            dialect = "sqlite" if connection.dialect.name == "sqlite" else "postgresql"
            if connection.execute(insert_once(dialect, ExportRun), [begun]).rowcount == 0:
                return None  # another process found no row either, and was first
        return period or None
    if row.ended is None:
        period = row.period if now - row.began >= _TAKEN_SECONDS else None
    elif row.error is not None:
        period = row.period if now - row.began >= _AGAIN_SECONDS else None
    elif closed is None:
        period = next_due(every, row.period, now)
    else:
        period = next((month for month in closed if month > row.period), None)
    if period is not None:
        values = {"period": period, "began": now, "ended": None, "error": None}
        connection.execute(update(ExportRun).where(ExportRun.name == name).values(values))
    return period
