"""The newest requests of the last moments, as few columns as the live pages need.

Knows: which index answers this, and a bound on how much is read. Does not know: what is made of it.
"""

from msgspec import Struct
from sqlalchemy import select

from gateway.db.models import RequestRow
from gateway.db.session import Database

MOST = 5_000
_PATIENCE = 5.0


class Ended(Struct, frozen=True):
    """One request that has ended; durations in milliseconds, None where there was none."""

    at: float
    status: int
    source: str
    provider: str
    model_used: str
    stream: bool
    completion: int
    ttft_ms: float | None
    tpot_ms: float | None
    total_ms: float
    overhead_ms: float | None
    similarity: float | None
    confidence: float | None


async def lately(database: Database, since: float, team: str | None, *, most: int = MOST) -> list[Ended]:
    """Newest first, those that came in at or after `since` (seconds since the epoch), at most `most`."""
    row = RequestRow
    wanted = select(
        row.at,
        row.status,
        row.source,
        row.provider,
        row.model_used,
        row.stream,
        row.completion,
        row.ttft_ms,
        row.tpot_ms,
        row.total_ms,
        row.overhead_ms,
        row.similarity,
        row.confidence,
    ).where(row.at >= since)
    if team is not None:
        wanted = wanted.where(row.team == team)
    async with database.read(patience=_PATIENCE) as connection:
        found = await connection.execute(wanted.order_by(row.at.desc()).limit(most))
        return [Ended(*line) for line in found.all()]
