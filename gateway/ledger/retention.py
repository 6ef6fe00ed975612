"""How long things are kept: rows of requests, explanations, sums of hours and of days.

Knows: what may go when, and in which order: first it is said from which instant on rows are kept, then they go, so that
no page takes half a day for a whole one. Does not know: settings' names, who asks.

Money is never pruned: ledger entries, corrections and balances stay. A month whose rows are gone is told by its days.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import structlog
from msgspec import Struct
from sqlalchemy import ColumnElement, Delete, Select, Table, delete, func, select, text, tuple_, union, update
from sqlalchemy.engine import Connection

from gateway.db.models import Explain, RequestRow, Setting, UsageDay, UsageDays8, UsageDays64, UsageHour, UsageWho
from gateway.db.session import UNREACHABLE, Database
from gateway.db.sums import BLOCKS_FROM, DAY, HOUR, HOURS_FROM, NAMES_GONE, ROWS_FROM
from gateway.ledger.balances import insert_once, table
from gateway.ledger.request_rows import Summed, made_so_far
from gateway.ledger.shipper import set_within
from gateway.ledger.sum_blocks import make_blocks
from gateway.ledger.sum_rows import facets_of
from gateway.ledger.sum_upgrade import mend, take_along
from gateway.ledger.sums import make_days

if TYPE_CHECKING:  # settings bring pydantic, which nothing here needs at run time
    from gateway.settings import Settings

log = structlog.get_logger("nearhit.ledger")

_FIRST_SECONDS = 60.0
_EVERY_SECONDS = 600.0  # what an hour that is over adds to a user is read from rows until then
_TURN_SECONDS = 60.0
_SOON_SECONDS = 1.0
_PRUNE_EVERY = 6  # of those turns
_BATCH = 1_000
_LOCKED_MS = 60_000
_used = union(select(UsageHour.who), select(UsageDay.who)).subquery()
_UNUSED = select(UsageWho.id).outerjoin(_used, _used.c.who == UsageWho.id).where(_used.c.who.is_(None)).limit(_BATCH)
_PAUSE = 0.02  # between batches: whoever writes requests goes first


class Kept(Struct, frozen=True, kw_only=True):
    """For how many days; 0 is for ever, for explanations not at all."""

    requests: int = 90
    hours: int = 400
    days: int = 2_600
    explanations: int = 7


class Retention:
    """Prunes one database. `now`: wall-clock seconds. Every process may do it: the same is gone whoever was first."""

    def __init__(self, database: Database, kept: Kept, *, now: Callable[[], float]) -> None:
        self._database = database
        self._kept = kept
        self._now = now
        self._add_setting = insert_once(database.dialect, Setting)

    async def run(self, stopping: asyncio.Event) -> None:
        """Make what is over every ten minutes, and prune every hour; a failure is logged and tried again.

        What an upgrade or an older process leaves to be done is done a minute a turn, and the next one comes soon.
        """
        pause, turns = _FIRST_SECONDS, 0
        while not await set_within(stopping, pause):
            right = await self._tried(make_days(self._database, self._now()))
            until = time.monotonic() + _TURN_SECONDS
            right &= await self._tried(take_along(self._database, stopping, until))
            right &= await self._tried(mend(self._database, until))
            pause = _SOON_SECONDS if right and time.monotonic() >= until else _EVERY_SECONDS
            await self._tried(make_blocks(self._database))
            if turns % _PRUNE_EVERY or await self._tried(self.prune()):
                turns += 1

    async def _tried(self, step: Awaitable[Any]) -> bool:
        """One step of a turn: what fails is tried again the next one, and keeps no other from being done."""
        try:
            await step
        except UNREACHABLE as error:
            log.warning("sums and pruning wait for the database", error=repr(error)[:300])
            return False
        return True

    async def prune(self) -> int:
        """Delete what was kept its time, in small transactions; answers how many rows. Raises as the database does."""
        oldest = self._now() - self._kept.explanations * DAY
        gone = await self._delete(table(Explain), Explain.at < oldest, "request_id")
        async with self._database.read() as connection:
            made = (await connection.run_sync(made_so_far)).days * DAY  # rows and hours go once their day is made
        if self._kept.requests:
            oldest = select(func.min(RequestRow.at))
            floor = await self._raise(ROWS_FROM, min(made, self._first_day(self._kept.requests)), oldest)
            gone += await self._delete(table(RequestRow), RequestRow.at < floor, "id")
        if self._kept.hours:
            oldest = select(func.min(UsageHour.starts) * HOUR).where(UsageHour.facet == "")
            floor = await self._raise(HOURS_FROM, min(made, self._first_day(self._kept.hours)), oldest)
            gone += await self._prune_sums(UsageHour, floor // HOUR)
        if self._kept.days:
            oldest = select(func.min(UsageDay.starts) * DAY).where(UsageDay.facet == "")
            floor = await self._raise(BLOCKS_FROM, self._first_day(self._kept.days), oldest)
            for of, size in ((UsageDays64, 64), (UsageDays8, 8), (UsageDay, 1)):  # what only whole days make goes first
                gone += await self._prune_sums(of, -(-floor // (size * DAY)))
        return gone + await self._prune_names()

    def _first_day(self, days: int) -> int:
        """The first instant that is kept: pruning takes whole days (UTC)."""
        return int(self._now() // DAY - days) * DAY

    async def _raise(self, name: str, instant: int, oldest: Select[Any]) -> int:
        """Put on record from where on something is kept; it never goes back, whatever the settings of another process.

        Where nothing is older nothing goes: an answer about the time before there was a gateway is that nothing was.
        """
        return await self._database.transact(self._raise_in, name, instant, oldest)

    def _raise_in(self, connection: Connection, name: str, instant: int, oldest: Select[Any]) -> int:
        connection.execute(self._add_setting, {"name": name, "value": "0"})
        held = int(connection.execute(select(Setting.value).where(Setting.name == name).with_for_update()).scalar_one())
        first = connection.execute(oldest).scalar()
        if held >= instant or first is None or first >= instant:
            return held
        connection.execute(update(Setting).where(Setting.name == name).values(value=str(instant)))
        return instant

    async def _delete(self, of: Table, condition: ColumnElement[bool], key: str) -> int:
        """Delete by the key, some at a time, so that no transaction is long and no other writer waits long."""
        some = select(of.c[key]).where(condition).limit(_BATCH)
        return await self._repeat(delete(of).where(of.c[key].in_(some.scalar_subquery())))

    async def _prune_sums(self, model: Summed, starts: int) -> int:
        """The oldest periods of each facet: the beginning of the key, so that nothing is searched for."""
        gone, of = 0, table(model)
        facets = await self._database.examine(60.0, facets_of, model)
        for facet in facets:
            mine = (of.c.facet == facet) & (of.c.starts < starts)
            some = select(of.c.starts, of.c.who).where(mine).limit(_BATCH)
            gone += await self._repeat(delete(of).where(mine, tuple_(of.c.starts, of.c.who).in_(some)))
        return gone

    async def _prune_names(self) -> int:
        """Combinations that no sum has any more, some at a time; sought without a lock, then looked at again."""
        async with self._database.read(patience=60.0) as connection:
            names = list((await connection.execute(_UNUSED)).scalars())
        return await self._database.transact(_forget_names, names, self._add_setting) if names else 0

    async def _repeat(self, statement: Delete) -> int:
        """Until a turn finds less than it could take."""
        gone = _BATCH
        total = 0
        while gone >= _BATCH:
            gone = await self._database.transact(_gone, statement)
            total += gone
            await asyncio.sleep(_PAUSE)
        return total


def kept(settings: "Settings") -> Kept:
    """What the configuration says."""
    given = settings.retention
    return Kept(
        requests=given.requests, hours=given.hours, days=given.days, explanations=settings.telemetry.explain_days
    )


def _forget_names(connection: Connection, names: list[int], add_setting: Any) -> int:
    """Nobody counts meanwhile; whoever remembers one of them puts it back (`RequestRows`), told by the setting."""
    if connection.dialect.name == "postgresql":
        limits = [func.set_config(name, str(_LOCKED_MS), True) for name in ("statement_timeout", "lock_timeout")]
        connection.execute(select(*limits))
        connection.execute(text("LOCK TABLE usage_hour, usage_day IN SHARE ROW EXCLUSIVE MODE"))
    again: set[int] = set()
    for of in (UsageHour, UsageDay):
        again.update(connection.execute(select(of.who).where(of.who.in_(names)).distinct()).scalars())
    gone = _gone(connection, delete(UsageWho).where(UsageWho.id.in_(set(names) - again)))
    connection.execute(add_setting, {"name": NAMES_GONE, "value": "0"})
    held = connection.execute(select(Setting.value).where(Setting.name == NAMES_GONE).with_for_update()).scalar_one()
    connection.execute(update(Setting).where(Setting.name == NAMES_GONE).values(value=str(int(held) + 1)))
    return gone


def _gone(connection: Connection, statement: Delete) -> int:
    return connection.execute(statement).rowcount
