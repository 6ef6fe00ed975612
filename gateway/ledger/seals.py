"""Proof that closed months are what they were: their chain, their lines, and the entries behind them.

Knows: what must agree. Does not know: how to mend anything; it only tells.
"""

import asyncio
from collections import Counter
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.models import MonthSeal
from gateway.db.session import Database
from gateway.ledger.closing import Seal, seals, stored_lines
from gateway.ledger.hits import stored_digest
from gateway.ledger.lines import START, Level, Line, Totals, digest, lines_of, totals
from policies.money import usd

_MOST_PER_MONTH = 20


async def verify(database: Database) -> list[str]:
    """Every difference, each in a sentence; empty when every closed month is bit for bit what it was."""
    async with database.snapshot() as connection:
        return await _chain(connection)


async def _chain(connection: AsyncConnection) -> list[str]:
    found: list[str] = []
    previous = START
    for seal in await seals(connection):
        if seal.digest is None:
            found.append(f"{seal.month} was not closed to the end: close it again")
            continue
        if seal.previous != previous:
            found.append(f"{seal.month} is not chained to the month closed before it")
        found += await _check(connection, seal)
        previous = seal.digest
    return found


async def _check(connection: AsyncConnection, seal: Seal) -> list[str]:
    facts: dict[str, Any] = await connection.scalar(select(MonthSeal.facts).where(MonthSeal.month == seal.month)) or {}
    stored = await stored_lines(connection, seal.month)
    if await asyncio.to_thread(digest, seal.previous or START, seal.month, stored, facts) != seal.digest:
        return [f"{seal.month} was changed after it was closed: its digest does not follow from its lines"]
    kept = facts.get("hits")
    if kept is not None and await stored_digest(connection, seal.month) != kept:
        return [f"{seal.month}: its hits were changed after it was closed"]
    sums = Totals(seal.entries, seal.amount_nano, seal.estimated_nano, seal.adjustments_nano)
    if await asyncio.to_thread(totals, stored) != sums:
        return [f"{seal.month}: its totals are not those of its lines"]
    by: Level = facts.get("by", "user")
    return await asyncio.to_thread(_compare, seal.month, stored, await lines_of(connection, seal.month, by))


def _compare(month: str, stored: list[Line], entries: list[Line]) -> list[str]:
    """Lines that do not follow from the entries any more; numbers in nano-USD become USD."""
    if stored == entries:
        return []
    said: Counter[tuple[str, ...]] = Counter()
    for line, sign in [(line, 1) for line in entries] + [(line, -1) for line in stored]:
        said[line.kind, line.team, line.project, line.model, line.meter] += sign * line.amount_nano
    told = [
        f"{month}: {' / '.join(name)} is {usd(amount)} USD more in the entries than in the closed month"
        for name, amount in sorted(said.items())
        if amount
    ]
    return told[:_MOST_PER_MONTH] or [f"{month}: quantities in the entries are not those of the closed month"]
