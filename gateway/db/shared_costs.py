"""Costs that teams share: read, set, taken out.

Knows: their table. Does not know: how they are split (`policies.statements`), who may set them.
"""

from collections.abc import Callable

from msgspec import Struct, structs
from sqlalchemy import delete, insert, select
from sqlalchemy.engine import Connection

from gateway.db.models import SharedCost
from gateway.db.session import Also, Database
from policies.statements import Split

_MOST = 1_000


class SharedCostRow(Struct, frozen=True, kw_only=True):
    """One row; amounts in nano-USD a month."""

    name: str
    amount_nano: int | None
    team: str | None
    split: Split
    shares: dict[str, int]
    from_month: str
    until_month: str | None
    actor: str
    updated: float


async def load(database: Database) -> list[SharedCostRow]:
    """In order of name."""
    wanted = select(*SharedCost.__table__.columns).order_by(SharedCost.name).limit(_MOST)
    async with database.read() as connection:
        return [SharedCostRow(**row) for row in (await connection.execute(wanted)).mappings()]


async def put(database: Database, row: SharedCostRow, also: Callable[[SharedCostRow | None], Also]) -> None:
    """Set one; `also`: what belongs to the change, by what it was before."""
    await database.transact(_put, row, also)


async def take_out(database: Database, name: str, also: Callable[[SharedCostRow], Also]) -> bool:
    """Delete one; False when there was none. `also`: what belongs to the change, by what it was."""
    return await database.transact(_without, name, also)


def _put(connection: Connection, row: SharedCostRow, also: Callable[[SharedCostRow | None], Also]) -> None:
    before = _take_out(connection, row.name)
    connection.execute(insert(SharedCost).values(structs.asdict(row)))
    also(before)(connection)


def _without(connection: Connection, name: str, also: Callable[[SharedCostRow], Also]) -> bool:
    before = _take_out(connection, name)
    if before is not None:
        also(before)(connection)
    return before is not None


def _take_out(connection: Connection, name: str) -> SharedCostRow | None:
    wanted = select(*SharedCost.__table__.columns).where(SharedCost.name == name).with_for_update()
    found = connection.execute(wanted).mappings().first()
    connection.execute(delete(SharedCost).where(SharedCost.name == name))
    return None if found is None else SharedCostRow(**found)
