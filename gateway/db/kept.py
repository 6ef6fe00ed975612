"""From which instant on sums of days are kept: what lay before it is not told by any page any more.

Knows: where pruning puts that on record. Does not know: what is pruned and when (`gateway.ledger.retention`).
"""

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.models import Setting
from gateway.db.session import Database
from gateway.db.sums import BLOCKS_FROM


async def kept_since(connection: AsyncConnection) -> int:
    """Seconds since the epoch, the first instant of a day in UTC; 0 where nothing has gone."""
    return int(await connection.scalar(select(Setting.value).where(Setting.name == BLOCKS_FROM)) or 0)


async def kept_from(database: Database) -> int:
    """The same, asked by itself."""
    async with database.read() as connection:
        return await kept_since(connection)
