"""Who changed what: one appended row per change, each chained to the one before it by a digest.

A row that is altered or taken out breaks every digest after it; `verify` finds the first such place. That the newest
rows were not cut off is seen by whoever noted an earlier `head`: it must still be in the chain. A change of this
database and its row are one transaction (`noted`).
Does not know: what a change means. Secrets never come here: callers hand names and limits, not keys.
"""

import asyncio
import hashlib
from typing import NamedTuple, Protocol

import msgspec
from sqlalchemy import func, insert, select
from sqlalchemy.engine import Connection

from gateway.call import Principal
from gateway.db.models import Audit
from gateway.db.session import Also
from gateway.services import Services

_encode = msgspec.json.Encoder(order="deterministic").encode
_START = "0" * 64
_PAGE = 1_000
_WAIT_MS = "5000"  # for one's turn, which others have for the length of an insert
_TURN = 7_236_583_492  # any fixed number: PostgreSQL's advisory lock for this chain


class Change(NamedTuple):
    """`action` like `key.create`; `target` is what it was done to."""

    action: str
    target: str
    before: dict[str, object] | None = None
    after: dict[str, object] | None = None


class Asking(Protocol):
    """Who asks for a change, from where: a caller of the API or a visitor of the pages."""

    services: Services
    principal: Principal
    ip: str | None


def noted(asking: Asking, change: Change) -> Also:
    """The row of a change, for the transaction that makes it: either both are kept or neither is."""
    return said_by(asking.services, asking.principal, change, asking.ip)


def said_by(services: Services, actor: Principal, change: Change, ip: str | None) -> Also:
    """`noted`, of somebody who is not signed in yet."""
    return lambda connection: _append(connection, services.now(), actor.key_id, change, ip)


def said_at(at: float, actor: str, change: Change) -> Also:
    """`noted`, of a change that no request asked for: the configuration file's, read at `at`."""
    return lambda connection: _append(connection, at, actor, change, None)


async def note(services: Services, actor: Principal, change: Change, *, ip: str | None = None) -> None:
    """The row of what is not a change of this database, or was made already."""
    await services.database.transact(_append, services.now(), actor.key_id, change, ip)


def _append(connection: Connection, at: float, actor: str, change: Change, ip: str | None) -> None:
    """Two writers at once cannot fork the chain: whoever has read its last digest ends before another reads it.

    It is the last thing of its transaction, so whoever waits here holds up nobody who has passed.
    """
    _exclusive(connection)
    last = connection.scalar(select(Audit.digest).order_by(Audit.id.desc()).limit(1))
    digest = _digest(last or _START, at, actor, change, ip)
    connection.execute(insert(Audit).values(at=at, actor=actor, ip=ip, digest=digest, **change._asdict()))


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


def _exclusive(connection: Connection) -> None:
    """SQLite has one writer anyway; on PostgreSQL take turns. A busy machine must not undo somebody's change."""
    if connection.dialect.name == "postgresql":
        limits = [func.set_config(name, _WAIT_MS, True) for name in ("statement_timeout", "lock_timeout")]
        connection.execute(select(*limits))
        connection.execute(select(func.pg_advisory_xact_lock(_TURN)))
