"""Rate limits in the database: the rows people set, and the buckets that several workers draw on.

Knows: SQL, the order of locks (by id). Does not know: who waits, what a request needs, what happens without a database.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sqlalchemy import bindparam, func, insert, or_, select, text, update
from sqlalchemy.engine import Connection

from gateway.db.models import RateBucket, RateRow
from gateway.db.session import Also, Database, nothing
from gateway.ledger.balances import chunks, insert_once, parameters
from policies.budget import check_scope
from policies.rate import Rate, filled, portion

Said = Callable[[Rate | None, Rate], Also]
_MOST_RATES = 100_000
_MOST_PER_MINUTE = 10**12


def check(rate: Rate) -> Rate:
    """The limit as given. Raises ValueError that names what is wrong with it."""
    check_scope(rate.scope)
    for name, value in (("rpm", rate.rpm), ("tpm", rate.tpm)):
        if value is not None and not 0 <= value <= _MOST_PER_MINUTE:
            raise ValueError(f"{name} is a whole number per minute, 0 or more")
    return rate


async def load(database: Database) -> list[Rate]:
    """Every rate limit in force, in order of scope."""
    wanted = (
        select(RateRow)
        .where(or_(RateRow.rpm.is_not(None), RateRow.tpm.is_not(None)))
        .order_by(RateRow.scope)
        .limit(_MOST_RATES)
    )
    async with database.read() as connection:
        return [
            Rate(
                scope=row["scope"],
                rpm=row["rpm"],
                tpm=row["tpm"],
                version=row["version"],
                actor=row["actor"],
                updated=row["updated"],
            )
            for row in (await connection.execute(wanted)).mappings()
        ]


async def stamp(database: Database) -> tuple[int, int]:
    """Changes whenever any rate limit does."""
    async with database.read() as connection:
        row = (await connection.execute(select(func.count(), func.coalesce(func.sum(RateRow.version), 0)))).one()
    return int(row[0]), int(row[1])


async def put(database: Database, rate: Rate, *, actor: str, now: float, also: Also = nothing) -> Rate:
    """Set the limits of a scope; answers them with their new version. Raises ValueError when they make no sense."""

    def change(connection: Connection) -> Rate:
        made = write(connection, rate, actor, now)
        also(connection)
        return made

    return await database.transact(change)


async def put_unless_same(database: Database, rate: Rate, *, actor: str, now: float, said: Said) -> None:
    """`put`, where the scope does not have these very limits: of several workers with one file the first sets them.

    `said`: what else belongs to the change from the ones, None where there were none, to the others.
    """

    def change(connection: Connection) -> None:
        wanted = select(RateRow.rpm, RateRow.tpm, RateRow.version).where(RateRow.scope == rate.scope).with_for_update()
        row = connection.execute(wanted).first()
        if row is not None and (row.rpm, row.tpm) == (rate.rpm, rate.tpm):
            return
        before = None if row is None else Rate(scope=rate.scope, rpm=row.rpm, tpm=row.tpm)
        # Of the version that was read here: a row that another worker has put since must not be written over as none.
        said(before, _written(connection, rate, 0 if row is None else row.version, actor, now))(connection)

    await database.transact(change)


def write(connection: Connection, rate: Rate, actor: str, now: float) -> Rate:
    """`put` inside a transaction."""
    before = connection.scalar(select(RateRow.version).where(RateRow.scope == rate.scope).with_for_update()) or 0
    return _written(connection, rate, before, actor, now)


def _written(connection: Connection, rate: Rate, before: int, actor: str, now: float) -> Rate:
    """`before`: the version that is there, locked; 0 for none, where an IntegrityError says that there is one now."""
    check(rate)
    values = {"rpm": rate.rpm, "tpm": rate.tpm, "version": before + 1, "actor": actor, "updated": now}
    if before:
        connection.execute(update(RateRow).where(RateRow.scope == rate.scope).values(values))
    elif rate.rpm is not None or rate.tpm is not None:
        connection.execute(insert(RateRow).values(values | {"scope": rate.scope}))
    return Rate(scope=rate.scope, rpm=rate.rpm, tpm=rate.tpm, version=before + 1, actor=actor, updated=now)


class Ask(NamedTuple):
    """What one worker wants of one bucket. `back`: handed back, or a debt where negative; `least` 0: nothing more."""

    id: str
    per_minute: float
    back: float
    demand: float
    least: float


class Given(NamedTuple):
    """What it got, and what is left there for everybody."""

    id: str
    amount: float
    level: float


async def draw(database: Database, asks: Sequence[Ask], now: float, processes: int) -> list[Given]:
    """Take from shared buckets in one short transaction; one that does not exist yet is full."""
    return await database.transact(_draw, database, asks, now, processes)


def _draw(connection: Connection, database: Database, asks: Sequence[Ask], now: float, processes: int) -> list[Given]:
    known = _locked(connection, asks)
    unknown = sorted({ask.id: ask for ask in asks if ask.id not in known}.items())
    missing = [{"id": name, "level": ask.per_minute, "at": now} for name, ask in unknown]
    if missing:
        connection.execute(insert_once(database.dialect, RateBucket), missing)
        known = _locked(connection, asks)
    # Only now: before the locks it would be older than what whoever held them wrote, and that time would fill twice.
    at = now if database.dialect == "sqlite" else float(connection.scalar(_CLOCK) or now)
    found: list[Given] = []
    for ask in asks:
        level, since = known[ask.id]
        level = min(ask.per_minute, filled(level, ask.per_minute, at - since) + ask.back)
        amount = portion(level, ask.demand, ask.least, ask.per_minute, processes) if ask.least else 0.0
        found.append(Given(ask.id, amount, level - amount))
    connection.execute(_SET, [{"name": given.id, "to": given.level, "when": at} for given in found])
    return found


def _locked(connection: Connection, asks: Sequence[Ask]) -> dict[str, tuple[float, float]]:
    names = sorted(ask.id for ask in asks)
    pages = (connection.execute(_LOCK, {"names": list(some)}) for some in chunks(names))
    return {row[0]: (row[1], row[2]) for page in pages for row in page}


_CLOCK = text("SELECT extract(epoch FROM clock_timestamp())")
_LOCK = (
    select(RateBucket.id, RateBucket.level, RateBucket.at)
    .where(RateBucket.id.in_(parameters("names")))
    .order_by(RateBucket.id)
    .with_for_update()
)
_SET = update(RateBucket).where(RateBucket.id == bindparam("name")).values(level=bindparam("to"), at=bindparam("when"))
