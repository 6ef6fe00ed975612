"""How near kept answers were to what was asked lately: the served ones, and the best of those that were not.

Knows: rows and explanations. Does not know: what is made of it. Reads a bounded number of the newest.
"""

from typing import Any

import msgspec
from msgspec import Struct
from sqlalchemy import Text, select
from sqlalchemy import cast as sql_cast

from gateway.db.models import Explain, RequestRow
from gateway.db.session import Database

MOST = 2_000


class Near(Struct, frozen=True):
    """One look-up by meaning: cosine and the policy's confidence of the answer that was served, or was nearest."""

    served: bool
    similarity: float | None
    confidence: float | None


class _Looked(Struct):
    similarity: float | None = None
    confidence: float | None = None


class _Told(Struct):
    looked: list[_Looked] = []
    candidates: list[_Looked] = []


_decode = msgspec.json.Decoder(_Told).decode


async def nearness(database: Database, since: float, team: str | None, *, most: int = MOST) -> list[Near]:
    """Newest first. Misses that looked at nothing are left out, and explanations of a shape that is not known."""
    row = RequestRow
    wanted = select(row.cache, row.similarity, row.confidence, sql_cast(Explain.data, Text).label("told")).join(
        Explain, Explain.request_id == row.id
    )
    wanted = wanted.where(row.at >= since, row.cache.in_(("hit-semantic", "miss")))
    if team is not None:
        wanted = wanted.where(row.team == team)
    async with database.read() as connection:
        rows = (await connection.execute(wanted.order_by(row.at.desc()).limit(most))).all()
    return [near for found in rows if (near := _near(found)) is not None]


def _near(row: Any) -> Near | None:
    if row.cache == "hit-semantic":
        return Near(True, row.similarity, row.confidence)
    try:
        told = _decode(row.told)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    best = max(told.looked or told.candidates, key=lambda one: one.similarity or 0.0, default=None)
    return None if best is None else Near(False, best.similarity, best.confidence)
