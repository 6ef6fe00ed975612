"""How often services have searched the web or files for an answer, as the ledger has it: a fee each.

Knows: where an entry keeps it, SQL for both dialects. Does not know: reports, who may see what, prices.
Sums of usage do not count searches: few requests make any, and an index leads to those entries alone.
"""

from typing import Any

from msgspec import Struct
from sqlalchemy import BigInteger, ColumnElement, case, cast, func, select
from sqlalchemy.types import JSON

from gateway.db.models import Entry
from gateway.db.session import Database, Dialect
from gateway.db.usage import MOST_GROUPS

_PATIENCE = 30.0
_WEB, _FILES = 5, 6  # places in `Entry.classes`
_BY = {"team": Entry.team, "project": Entry.project, "key": Entry.key_id, "user": Entry.user, "model_used": Entry.model}


class Searched(Struct, frozen=True, kw_only=True):
    """Searches in one bucket (from 0) of one group. `web_requests`, `file_requests`: requests that made any."""

    bucket: int
    group: dict[str, str]
    web: int
    files: int
    web_requests: int
    file_requests: int


async def searches(
    database: Database, start: int, end: int, *, seconds: int, team: str | None = None
) -> list[Searched]:
    """By bucket of `seconds`, team, project, key, user and model, of attempts that began in `[start, end)`.

    At most `MOST_GROUPS`, in no order.
    """
    web, files = (_count(database.dialect, place) for place in (_WEB, _FILES))
    bucket = cast(func.floor((Entry.admitted - start) / seconds), BigInteger)
    by = [func.coalesce(column, "").label(name) for name, column in _BY.items()]
    requests = [func.count(case((count > 0, Entry.request_id)).distinct()) for count in (web, files)]
    sums = [cast(func.coalesce(func.sum(count), 0), BigInteger) for count in (web, files)]
    wanted: Any = select(bucket, *by, *sums, *requests)
    wanted = wanted.where(Entry.classes.is_not(None), Entry.admitted >= start, Entry.admitted < end, (web + files) > 0)
    if team is not None:
        wanted = wanted.where(Entry.team == team)
    async with database.read(patience=_PATIENCE) as connection:
        rows = (await connection.execute(wanted.group_by(bucket, *by).limit(MOST_GROUPS))).all()
    return [_searched(tuple(row)) for row in rows]


def _searched(row: tuple[Any, ...]) -> Searched:
    bucket, *group, web, files, web_requests, file_requests = row
    named = dict(zip(_BY, group, strict=True))
    return Searched(
        bucket=bucket, group=named, web=web, files=files, web_requests=web_requests, file_requests=file_requests
    )


def _count(dialect: Dialect, place: int) -> ColumnElement[int]:
    """The number there; a list that ends before has none."""
    if dialect == "sqlite":
        found: Any = func.json_extract(Entry.classes, f"$[{place}]")
    else:
        found = cast(Entry.classes, JSON).op("->>")(place)
    return func.coalesce(cast(found, BigInteger), 0)
