"""Long things in the database, a piece at a time: files, answers kept under an idempotency key.

They live where their rows live, so every worker and machine sees them, and one transaction covers both. Knows: pieces
by owner and number. Does not know: whose they are, for how long.
"""

from collections.abc import AsyncGenerator, Sequence

from sqlalchemy import delete, insert, select
from sqlalchemy.engine import Connection

from gateway.db.models import StoredPiece
from gateway.db.session import Database

PIECE = 256 << 10  # bytes: long enough to be quick, short enough that other writers never wait for it


def cut(data: bytes) -> list[bytes]:
    return [data[start : start + PIECE] for start in range(0, len(data), PIECE)]


def add(connection: Connection, owner: str, pieces: Sequence[bytes], first: int = 0) -> None:
    """Write pieces, numbered from `first`."""
    if pieces:
        rows = [{"owner": owner, "number": first + n, "data": data} for n, data in enumerate(pieces)]
        connection.execute(insert(StoredPiece), rows)


def drop(connection: Connection, owners: Sequence[str]) -> None:
    connection.execute(delete(StoredPiece).where(StoredPiece.owner.in_(owners)))


async def read(database: Database, owner: str) -> AsyncGenerator[bytes, None]:
    """The pieces in order; each is a look-up of its own, so no connection is held while a slow client reads."""
    number = 0
    while True:
        wanted = select(StoredPiece.data).where(StoredPiece.owner == owner, StoredPiece.number == number)
        async with database.read() as connection:
            data = await connection.scalar(wanted)
        if data is None:
            return
        yield data
        number += 1
