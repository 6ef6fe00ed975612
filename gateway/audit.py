"""Who changed what: one appended row per change, each chained to the one before it by a digest.

A row that is altered or taken out breaks every digest after it; `broken` finds the first such place.
Does not know: what a change means. Secrets never come here: callers hand names and limits, not keys.
"""

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


async def broken(services: Services) -> int | None:
    """The id of the first row whose digest does not follow from the rows before it; None when all is whole."""
    digest, after = _START, 0
    while True:
        wanted = select(Audit).where(Audit.id > after).order_by(Audit.id).limit(_PAGE)
        async with services.database.read() as connection:
            rows = (await connection.execute(wanted)).all()
        for row in rows:
            change = Change(row.action, row.target, row.before, row.after)
            if row.digest != (digest := _digest(digest, row.at, row.actor, change, row.ip)):
                return row.id
            after = row.id
        if len(rows) < _PAGE:
            return None


def _digest(previous: str, at: float, actor: str, change: Change, ip: str | None) -> str:
    return hashlib.sha256(_encode([previous, at, actor, *change, ip])).hexdigest()


async def _exclusive(connection: AsyncConnection) -> None:
    """SQLite has one writer anyway; on PostgreSQL take turns."""
    if connection.dialect.name == "postgresql":
        await connection.execute(select(func.pg_advisory_xact_lock(_TURN)))
