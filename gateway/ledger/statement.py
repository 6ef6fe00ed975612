"""A month as finance reads it: its totals, its bills per team, the months there are.

Knows: that a closed month is read as it was sealed and an open one from its entries. Does not know: formats, roles.
"""

import asyncio
from collections import Counter
from typing import Literal

from msgspec import Struct, convert, structs
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.models import Entry, LateEntry, MonthSeal
from gateway.db.session import Database
from gateway.ledger.balances import table
from gateway.ledger.closing import Seal, facts_of, seals, stored_lines
from gateway.ledger.grouping import late, own, sums_of
from gateway.ledger.lines import Line, Totals, lines_of, totals
from policies.meters import ADJUSTMENT, COUNTED, ROUNDING
from policies.months import following, month_of, span
from policies.statements import Facts, TeamBill, bills

State = Literal["running", "open", "closing", "sealed"]
_MOST_MONTHS = 600


class Month(Struct, frozen=True):
    """A month, its seal if it has one, and what it adds up to."""

    name: str
    state: State
    seal: Seal | None
    sums: Totals


class Spent(Struct, frozen=True, order=True):
    """What a team spent on one model in one project, nano-USD. `requests` are attempts, `tokens` of all meters."""

    project: str
    provider: str
    model: str
    requests: int
    tokens: int
    amount_nano: int
    estimated_nano: int


class Adjusted(Struct, frozen=True, order=True):
    """What was booked in this month for an earlier one, nano-USD."""

    belongs: str
    project: str
    model: str
    amount_nano: int


class TeamStatement(Struct, frozen=True):
    """One team's bill and what its own part consists of."""

    bill: TeamBill
    spent: list[Spent]
    adjusted: list[Adjusted]


class Statement(Struct, frozen=True):
    """Everything finance needs of a month. The bills of all teams add up to the ledger's sum and the shared costs.

    `pruned`: its usage is, or was when it was closed, not kept whole any more, so the facts of bills tell no savings.
    """

    month: Month
    teams: list[TeamStatement]
    pruned: bool = False


async def months(database: Database, now: float, team: str | None = None) -> list[Month]:
    """Every month from the first entry to the one that runs, newest first, at most 600. `team`: of that one only."""
    async with database.snapshot() as connection:
        known = {seal.month: seal for seal in await seals(connection)}
        first = await connection.scalar(select(func.min(Entry.admitted)))
        name = min([month_of(first if first is not None else now), *known])
        names: list[str] = []
        while name <= month_of(now):
            names.append(name)
            name = following(name)
        # The newest, should somebody once have closed one of another age.
        return [await _month(connection, name, known.get(name), now, team) for name in names[::-1][:_MOST_MONTHS]]


async def month(database: Database, name: str, now: float, team: str | None = None) -> Month:
    """One month. Raises ValueError for what is no month."""
    span(name)
    async with database.snapshot() as connection:
        known = {seal.month: seal for seal in await seals(connection)}
        return await _month(connection, name, known.get(name), now, team)


async def statement(database: Database, name: str, now: float, team: str | None = None) -> Statement:
    """The bills of a month; those of a closed one as they were when it was closed. `team`: only that one's bill.

    Raises ValueError for what is no month.
    """
    async with database.snapshot() as connection:
        known = {seal.month: seal for seal in await seals(connection)}
        seal = known.get(name)
        closed = seal is not None and seal.digest is not None
        lines = await (stored_lines(connection, name) if closed else lines_of(connection, name, "model"))
        kept = await connection.scalar(select(MonthSeal.facts).where(MonthSeal.month == name))
        its = Month(name, _state(name, seal, now), seal, totals(line for line in lines if team in (None, line.team)))
    facts = await facts_of(database, name, lines) if kept is None else convert(kept, Facts)
    return Statement(its, await asyncio.to_thread(_of_teams, lines, facts, team), facts.pruned)


def _of_teams(lines: list[Line], facts: Facts, team: str | None) -> list[TeamStatement]:
    """Away from the event loop: a closed month has a line per user."""
    by_team: dict[str, list[Line]] = {}
    for line in lines:
        by_team.setdefault(line.team, []).append(line)
    found = [bill for bill in _bills(lines, facts) if team in (None, bill.team)]
    return [_of_team(bill, by_team.get(bill.team, [])) for bill in found]


async def booked(database: Database, entry_id: str) -> str:
    """The month an entry is booked in. Raises LookupError when there is none of that id."""
    wanted = select(Entry.admitted, LateEntry.month).outerjoin(table(LateEntry), LateEntry.entry_id == Entry.id)
    async with database.read() as connection:
        row = (await connection.execute(wanted.where(Entry.id == entry_id))).first()
    if row is None:
        raise LookupError(entry_id)
    return row.month or month_of(row.admitted)


async def _month(connection: AsyncConnection, name: str, seal: Seal | None, now: float, team: str | None) -> Month:
    if seal is not None and seal.digest is not None:
        sums = Totals(seal.entries, seal.amount_nano, seal.estimated_nano, seal.adjustments_nano)
        if team is not None:
            sums = totals(await stored_lines(connection, name, team))
        return Month(name, "sealed", seal, sums)
    count, amount, guessed = await sums_of(connection, own(name, team))
    later, adjusted, unsure = await sums_of(connection, late(name, team))
    return Month(
        name, _state(name, seal, now), seal, Totals(count + later, amount + adjusted, guessed + unsure, adjusted)
    )


def _state(name: str, seal: Seal | None, now: float) -> State:
    if seal is not None:
        return "closing" if seal.digest is None else "sealed"
    return "running" if now < span(name).end else "open"


def _bills(lines: list[Line], facts: Facts) -> list[TeamBill]:
    spent: Counter[str] = Counter()
    adjusted: Counter[str] = Counter()
    for line in lines:
        (spent if line.kind == "own" else adjusted)[line.team] += line.amount_nano
    return bills(spent, adjusted, facts)


def _of_team(bill: TeamBill, lines: list[Line]) -> TeamStatement:
    spent: dict[tuple[str, str, str], Spent] = {}
    adjusted: dict[tuple[str, str, str], Adjusted] = {}
    for line in lines:
        if line.kind == "own":
            key = (line.project, line.provider, line.model)
            spent[key] = _add(spent.get(key) or Spent(*key, 0, 0, 0, 0), line)
        else:
            late_key = (line.belongs, line.project, line.model)
            before = adjusted.get(late_key) or Adjusted(*late_key, 0)
            adjusted[late_key] = structs.replace(before, amount_nano=before.amount_nano + line.amount_nano)
    return TeamStatement(bill, sorted(spent.values()), sorted(adjusted.values()))


def _add(before: Spent, line: Line) -> Spent:
    tokens = line.meter not in COUNTED and line.meter not in (ROUNDING, ADJUSTMENT)
    return structs.replace(
        before,
        requests=before.requests + (0 if line.meter == ADJUSTMENT else line.entries),  # a correction is no attempt
        tokens=before.tokens + (line.quantity if tokens else 0),
        amount_nano=before.amount_nano + line.amount_nano,
        estimated_nano=before.estimated_nano + line.estimated_nano,
    )
