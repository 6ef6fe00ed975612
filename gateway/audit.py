"""Who changed what: one appended row per change, each chained to the one before it by a digest.

A row that is altered or taken out breaks every digest after it; `verify` finds the first such place. That the newest
rows were not cut off is seen by whoever noted an earlier `head`: it must still be in the chain.
Does not know: what a change means. Secrets never come here: callers hand names and limits, not keys.
"""

import asyncio
import hashlib
from typing import NamedTuple

import msgspec
from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.call import Principal
from gateway.db.models import Audit
from gateway.services import Services

_encode = msgspec.json.Encoder(order="deterministic").encode
_START = "0" * 64
_PAGE = 1_000
_TURN = 7_236_583_492  # any fixed number: PostgreSQL's advisory lock for this chain


class Change(NamedTuple):
    """`action` like `key.create`; `target` is what it was done to."""

    action: str
    target: str
    before: dict[str, object] | None = None
    after: dict[str, object] | None = None


async def note(services: Services, actor: Principal, change: Change, *, ip: str | None = None) -> None:
    """Append one row. Two writers at once cannot fork the chain: the insert happens in one write transaction."""
    at = services.now()
    async with services.database.begin() as connection:
        await _exclusive(connection)
        last = await connection.scalar(select(Audit.digest).order_by(Audit.id.desc()).limit(1))
        digest = _digest(last or _START, at, actor.key_id, change, ip)
        await connection.execute(
            insert(Audit).values(
                at=at,
                actor=actor.key_id,
                action=change.action,
                target=change.target,
                before=change.before,
                after=change.after,
                ip=ip,
                digest=digest,
            )
        )


class Verdict(NamedTuple):
    """`broken_at`: the id of the first row whose digest does not follow from those before it, None when all is whole.

    `head`: the digest of the last row. `seen`: whether the digest that was asked for is in the chain, True for none.
    """

    broken_at: int | None
    rows: int
    head: str
    seen: bool


async def verify(services: Services, *, noted: str | None = None) -> Verdict:
    """Every row from the first on. `noted`: a head that somebody wrote down earlier."""
    digest, after, count = _START, 0, 0
    seen = noted is None or noted == _START
    while True:
        wanted = select(Audit).where(Audit.id > after).order_by(Audit.id).limit(_PAGE)
        async with services.database.read() as connection:
            rows = (await connection.execute(wanted)).all()
        for row in rows:
            change = Change(row.action, row.target, row.before, row.after)
            if row.digest != (digest := _digest(digest, row.at, row.actor, change, row.ip)):
                return Verdict(row.id, count, digest, seen)
            after, count = row.id, count + 1
            seen = seen or digest == noted
        if len(rows) < _PAGE:
            return Verdict(None, count, digest, seen)
        await asyncio.sleep(0)  # others' turn: a long chain must not hold up answers


def _digest(previous: str, at: float, actor: str, change: Change, ip: str | None) -> str:
    return hashlib.sha256(_encode([previous, at, actor, *change, ip])).hexdigest()


async def _exclusive(connection: AsyncConnection) -> None:
    """SQLite has one writer anyway; on PostgreSQL take turns."""
    if connection.dialect.name == "postgresql":
        await connection.execute(select(func.pg_advisory_xact_lock(_TURN)))
