"""Closing a month: what keeps it open, its lines and digest written once, chained to the month closed before it.

Knows: the order of steps, what may be repeated after a crash. Does not know: who may close, statements, HTTP.

First the month is marked as being closed: from that commit on whatever is posted for it is booked later
(`gateway.ledger.late`), so its entries do not change any more and can be added up at leisure. Then lines are written,
and last the digest, after which the database refuses any change. A crash in between leaves the mark; closing the month
again writes the lines anew. Of two who close the same month at once the later one goes on: each has a mark of its own.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import structlog
from msgspec import Struct, structs, to_builtins
from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.kept import kept_from, kept_since
from gateway.db.models import (
    Boot,
    BudgetWindow,
    Entry,
    EntryConflict,
    Lease,
    MonthLine,
    MonthSeal,
    SharedCost,
)
from gateway.db.queries import Queries
from gateway.db.session import Also, Database, nothing
from gateway.ledger.balances import CHUNK, chunks
from gateway.ledger.grouping import TooMany
from gateway.ledger.hits import Hits, MonthHits, digest_of, forget, write
from gateway.ledger.late import last_closed, take_turn
from gateway.ledger.lines import START, Level, Line, Totals, attempts, digest, lines_of, totals
from gateway.ledger.sum_upgrade import mend
from policies.months import Blocker, Process, Standing, blockers, following, month_of, pruned, span
from policies.statements import Facts, Shared, TeamFacts

log = structlog.get_logger("nearhit.ledger")

_LOST_SECONDS = 60.0
_MOST_EARLIER = 3
_APART = 0.001  # seconds between two tries to close the same month
_COLUMNS = Line.__struct_fields__


class Seal(Struct, frozen=True, kw_only=True):
    """One month that is closed, or (`digest` None) being closed. Amounts in nano-USD."""

    month: str
    began: float
    actor: str
    reason: str | None
    sealed: float | None
    entries: int
    amount_nano: int
    estimated_nano: int
    adjustments_nano: int
    previous: str | None
    digest: str | None


class AlreadyClosed(ValueError):
    """The month is closed, for good."""


class NotClosable(ValueError):
    """Something keeps the month open."""

    def __init__(self, found: list[Blocker]) -> None:
        super().__init__("; ".join(blocker.text for blocker in found))
        self.blockers = found


class Months:
    """Handle to the closed months of one database. `now`: the database's clock, seconds since the epoch."""

    def __init__(self, database: Database, *, now: Callable[[], float]) -> None:
        self._database = database
        self._now = now

    async def seals(self) -> list[Seal]:
        """Every closed month and those being closed, oldest first."""
        async with self._database.read() as connection:
            return await seals(connection)

    async def seal(self, month: str) -> Seal | None:
        return next((seal for seal in await self.seals() if seal.month == month), None)

    async def blockers(self, month: str) -> list[Blocker]:
        """Everything that keeps the month from being closed now. Raises ValueError for what is no month."""
        async with self._database.snapshot() as connection:
            return blockers(month, await _standing(connection, month), self._now(), _LOST_SECONDS)

    async def close(
        self, month: str, actor: str, reason: str | None = None, also: Callable[[Totals, str], Also] | None = None
    ) -> Seal:
        """Close a month; `reason`: why although something is open. `also`: what belongs to it, by its sums and digest.

        Raises AlreadyClosed, NotClosable, TooMany, ValueError for what is no month, and what a database raises.
        """
        if (seal := await self.seal(month)) is not None and seal.digest is not None:
            raise AlreadyClosed(f"{month} is closed already")
        found = await self.blockers(month)
        if any(reason is None or not blocker.forcible for blocker in found):
            raise NotClosable(found)
        begun = await self._database.transact(_begin, month, (actor, reason if found else None), self._now())
        while await self._database.transact(_forget, month, begun):
            pass
        lines, by = await self._add_up(month)
        await mend(self._database)  # what is sealed of usage stays, also if an older process wrote late
        known = await facts_of(self._database, month, lines)
        if known.pruned and reason is None:  # just now: nothing had gone when it was looked for what keeps it open
            raise NotClosable([pruned(month, await kept_from(self._database))])
        hits = await self._hits(month)
        kept = None if hits is None else await asyncio.to_thread(digest_of, hits)
        facts = to_builtins(structs.replace(known, by=by, hits=kept))
        for place, some in enumerate(chunks(lines)):
            await self._database.transact(_write, month, begun, some, place)
        for place, some in enumerate(chunks(hits or [])):
            await self._database.transact(_write_hits, month, begun, some, place)
        made_of = await asyncio.to_thread(digest, begun.previous, month, lines, facts)
        sums = await asyncio.to_thread(totals, lines)
        values = structs.asdict(sums) | {"facts": facts, "previous": begun.previous, "digest": made_of}
        last = nothing if also is None else also(sums, made_of)
        await self._database.transact(_finish, month, begun, values | {"sealed": self._now()}, last)
        made = await self.seal(month)
        assert made is not None, "it was written just now and cannot be taken out"
        return made

    async def _add_up(self, month: str) -> tuple[list[Line], Level]:
        """Per user if that fits into memory; a month with too many of them is sealed per key, and says so."""
        async with self._database.snapshot() as connection:
            try:
                return await lines_of(connection, month, "user"), "user"
            except TooMany:
                return await lines_of(connection, month, "key"), "key"

    async def _hits(self, month: str) -> list[Hits] | None:
        """None where there are more than a seal keeps: exports read them from the sums while those are kept."""
        try:
            return await MonthHits(self._database, month).all()
        except TooMany as error:
            log.warning("the month is closed without its hits", month=month, reason=str(error))
            return None


async def seals(connection: AsyncConnection) -> list[Seal]:
    """Every closed month and those being closed, oldest first."""
    names = Seal.__struct_fields__
    wanted = select(*(getattr(MonthSeal, name) for name in names)).order_by(MonthSeal.month)
    return [Seal(**dict(zip(names, row, strict=True))) for row in await connection.execute(wanted)]


async def stored_lines(connection: AsyncConnection, month: str, team: str | None = None) -> list[Line]:
    """The lines a closed month was sealed with."""
    wanted = select(*(getattr(MonthLine, name) for name in _COLUMNS)).where(MonthLine.month == month)
    if team is not None:
        wanted = wanted.where(MonthLine.team == team)
    rows = (await connection.execute(wanted.order_by(MonthLine.number))).all()
    return await asyncio.to_thread(lambda: [Line(*row) for row in rows])


async def facts_of(database: Database, month: str, lines: Sequence[Line]) -> Facts:
    """What statements need beside the lines, as it is now.

    Of a month whose usage is not kept whole any more that is what the lines say of attempts; half of it is no fact.
    """
    its = span(month)
    teams = [
        TeamFacts(
            row.group["team"],
            row.requests,
            row.hits,
            row.saved_nano,
            row.corrected_nano,
            row.audit_nano,
            row.discount_nano,
            row.embed_nano,
        )
        for row in await Queries(database).usage(["team"], its.start, its.end, latencies=False)
    ]
    async with database.read() as connection:
        shared = await shared_costs(connection, month)
        gone = its.start < await kept_since(connection)  # after it was read: what goes is put on record before it goes
    if gone:
        teams = [TeamFacts(team, requests=count) for team, count in attempts(lines).items()]
    return Facts(teams=sorted(teams, key=lambda team: team.team), shared=shared, nobody=False, named=False, pruned=gone)


async def shared_costs(connection: AsyncConnection, month: str) -> list[Shared]:
    """The costs that teams share in a month, in order of name."""
    asked = select(*SharedCost.__table__.columns).where(SharedCost.from_month <= month).order_by(SharedCost.name)
    return [
        Shared(name=row.name, amount_nano=row.amount_nano, team=row.team, split=row.split, shares=row.shares)
        for row in await connection.execute(asked)
        if row.until_month is None or row.until_month >= month
    ]


async def _standing(connection: AsyncConnection, month: str) -> Standing:
    its = span(month)
    boots = select(Boot.id, Boot.host, Boot.seen, Boot.journalled, Boot.oldest).where(
        Boot.closed.is_(None), Boot.started < its.end
    )
    processes = [Process(**row) for row in (await connection.execute(boots)).mappings()]
    left = Lease.granted_nano - Lease.consumed_nano
    leases = (
        select(func.count(), func.coalesce(func.sum(left), 0))
        .join(BudgetWindow, BudgetWindow.id == Lease.window_id)
        .where(Lease.closed.is_(False), left > 0, BudgetWindow.ends > its.start, BudgetWindow.ends <= its.end)
    )
    count, amount = (await connection.execute(leases)).one()
    conflicts = (
        select(func.count())
        .select_from(EntryConflict)
        .join(Entry, Entry.id == EntryConflict.entry_id)
        .where(Entry.admitted >= its.start, Entry.admitted < its.end)
    )
    return Standing(
        processes=processes,
        earlier=await _earlier(connection, its.start),
        leases=int(count),
        leased_nano=int(amount),
        conflicts=int(await connection.scalar(conflicts) or 0),
        first=None if await seals(connection) else await connection.scalar(select(func.min(Entry.admitted))),
        kept_from=await kept_since(connection),
    )


async def _earlier(connection: AsyncConnection, before: float) -> list[str]:
    """The first few months before `before` that have entries and are not closed."""
    known = await seals(connection)
    found = [seal.month for seal in known if seal.digest is None and span(seal.month).start < before]
    start = span(following(known[-1].month)).start if known else 0
    while len(found) < _MOST_EARLIER:
        wanted = select(func.min(Entry.admitted)).where(Entry.admitted >= start, Entry.admitted < before)
        oldest = await connection.scalar(wanted)
        if oldest is None:
            break
        found.append(month_of(oldest))
        start = span(following(found[-1])).start
    return found


class _Begun(NamedTuple):
    """One try to close a month. `mark`: its own value of `began`; `previous`: the digest it is chained to."""

    mark: float
    previous: str


def _begin(connection: Connection, month: str, who: tuple[str, str | None], now: float) -> _Begun:
    """Mark the month as being closed; what was broken off has a new mark from now on."""
    take_turn(connection)
    wanted = select(MonthSeal.digest, MonthSeal.began).where(MonthSeal.month == month)
    found = connection.execute(wanted.with_for_update()).first()
    if found is not None and found.digest is not None:
        raise AlreadyClosed(f"{month} is closed already")
    newest = last_closed(connection)
    if newest is not None and newest > month:
        raise NotClosable([Blocker(kind="earlier", text=f"{newest} is closed already", forcible=False)])
    before = select(MonthSeal.digest).where(MonthSeal.month < month).order_by(MonthSeal.month.desc()).limit(1)
    previous = connection.scalar(before) or START
    mark = now if found is None else max(now, found.began + _APART)
    row: dict[str, Any] = {"began": mark, "actor": who[0], "reason": who[1]}
    if found is None:
        nothing = dict.fromkeys(("entries", "amount_nano", "estimated_nano", "adjustments_nano"), 0)
        connection.execute(insert(MonthSeal).values({"month": month, **row, **nothing}))
    else:
        connection.execute(update(MonthSeal).where(MonthSeal.month == month).values(row))
    return _Begun(mark, previous)


def _hold(connection: Connection, month: str, begun: _Begun) -> None:
    """See to it that nobody begins anew before this transaction has ended. Raises AlreadyClosed if somebody has."""
    mine = select(MonthSeal.month).where(
        MonthSeal.month == month, MonthSeal.began == begun.mark, MonthSeal.digest.is_(None)
    )
    if connection.execute(mine.with_for_update()).first() is None:
        raise AlreadyClosed(f"{month} is being closed by somebody else at this moment")


def _forget(connection: Connection, month: str, begun: _Begun) -> int:
    """Delete some lines and hits of a try that broke off; answers how many. A statement may not take as long as all."""
    _hold(connection, month, begun)
    some = select(MonthLine.number).where(MonthLine.month == month).order_by(MonthLine.number).limit(CHUNK)
    mine = MonthLine.month == month, MonthLine.number.in_(some.scalar_subquery())
    return connection.execute(delete(MonthLine).where(*mine)).rowcount + forget(connection, month)


def _write(connection: Connection, month: str, begun: _Begun, lines: Sequence[Line], place: int) -> None:
    _hold(connection, month, begun)
    rows = [{"month": month, "number": place * CHUNK + i, **structs.asdict(line)} for i, line in enumerate(lines)]
    connection.execute(insert(MonthLine), rows)


def _write_hits(connection: Connection, month: str, begun: _Begun, some: Sequence[Hits], place: int) -> None:
    _hold(connection, month, begun)
    write(connection, month, some, place)


def _finish(connection: Connection, month: str, begun: _Begun, values: dict[str, Any], also: Also) -> None:
    """Everything a seal says."""
    _hold(connection, month, begun)
    connection.execute(update(MonthSeal).where(MonthSeal.month == month).values(values))
    also(connection)
