"""Rows of single requests: the newest that match a filter, and all of a span in pages.

Knows: which index answers which filter, and how the sums tell where in time rare rows are. Does not know: connections,
shapes, who may see what.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from sqlalchemy import ColumnElement, Select, and_, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.models import RequestRow, Setting, UsageDay, UsageHour
from gateway.db.session import Dialect
from gateway.db.sums import DAY, DAYS_TO, HOUR, ROWS_FROM, TAG, USER
from gateway.db.usage import conditions, matching
from gateway.db.usage_cut import LABELLED_BY

PAGE = 500
"""Rows read at once: few enough that other requests need not wait for them."""

EVER = (0.0, 1e10)
"""`[start, end)` in seconds since the epoch around every row."""

_MOST_SPANS = 32  # hours read at once


class Wanted(Struct, frozen=True, kw_only=True):
    """The newest `limit` rows of a span that match `where`, older than the row `before`.

    `failed`: only those answered with 400 or more.
    """

    limit: int
    before: str | None
    where: Mapping[str, str]
    failed: bool
    span: tuple[float, float] = EVER

    @property
    def any(self) -> bool:
        """Whether every row matches, so that the index of time has them in order."""
        return not self.failed and not self.where


async def newest(connection: AsyncConnection, dialect: Dialect, wanted: Wanted) -> list[Any]:
    """Rows as mappings, newest first.

    The sums tell the days and hours that have any that match, and only those are read, newest first, until there are
    enough: a rare filter does not read every row.
    """
    row = RequestRow
    rows = select(row)
    last = await _before(connection, wanted.before)
    if wanted.span != EVER:
        rows = rows.where(row.at >= wanted.span[0], row.at < wanted.span[1])
    if wanted.before is not None:
        rows = rows.where(row.at <= last, or_(row.at < last, row.id < wanted.before))
    if wanted.failed:
        rows = rows.where(RequestRow.status >= 400)
    if wanted.any:
        in_order = rows.order_by(row.at.desc(), row.id.desc()).limit(wanted.limit)
        return list((await connection.execute(in_order)).mappings())
    rows = rows.where(*conditions(dialect, wanted.where))
    found: list[Any] = []
    async for some in _growing(_spans(connection, wanted, int(min(last, wanted.span[1])))):
        # Apart from the order that is wanted: else PostgreSQL walks the index of time and looks at every row of it.
        inside = rows.where(or_(*(_within(span) for span in some))).cte("inside").prefix_with("MATERIALIZED")
        columns = [column.label(str(column.name)) for column in inside.columns]  # "user" is a name of another kind here
        newest_first = select(*columns).order_by(inside.c.at.desc(), inside.c.id.desc())
        found += (await connection.execute(newest_first.limit(wanted.limit - len(found)))).mappings()
        if len(found) >= wanted.limit:
            break
    return found


async def _growing(spans: "AsyncGenerator[_Span, None]") -> "AsyncGenerator[list[_Span], None]":
    """One, then two, then four at once …: who asks often is found in the first, who asks rarely in few reads."""
    some: list[_Span] = []
    size = 1
    async for span in spans:
        some.append(span)
        if len(some) >= size:
            yield some
            some, size = [], min(2 * size, _MOST_SPANS)
    if some:
        yield some


def _within(span: "_Span") -> ColumnElement[bool]:
    return and_(RequestRow.at >= span.start, RequestRow.at < span.end)


class _Span(NamedTuple):
    """Seconds since the epoch."""

    start: int
    end: int


async def _spans(connection: AsyncConnection, wanted: Wanted, last: int) -> AsyncGenerator[_Span, None]:
    """Hours that may have such requests, newest first."""
    named = {name: value for name, value in wanted.where.items() if value}
    plain = {name: value for name, value in named.items() if name != USER and not name.startswith(TAG)}
    label = next((name for name in named if name not in plain), None)
    known = select(Setting.name, Setting.value).where(Setting.name.in_((ROWS_FROM, DAYS_TO)))
    floors = {row[0]: int(row[1]) for row in await connection.execute(known)}
    made, first = floors.get(DAYS_TO, 0), max(floors.get(ROWS_FROM, 0), int(wanted.span[0]))
    by_hour = _Sought(UsageHour, "", plain, wanted.failed)
    for hour in await _starts(connection, by_hour, (max(first // HOUR, made * 24), last // HOUR)):
        yield _Span(hour * HOUR, (hour + 1) * HOUR)
    by_day = _Sought(UsageDay, "", plain, wanted.failed)
    if label is not None:
        shared = {name: value for name, value in plain.items() if name in LABELLED_BY}
        by_day = _Sought(UsageDay, label, {**shared, label: named[label]}, wanted.failed)
    days = (first // DAY, min(last // DAY, made - 1))
    if label is not None:
        for hour in await _hours(connection, by_day, days):
            yield _Span(hour * HOUR, (hour + 1) * HOUR)
        return
    for day in await _starts(connection, by_day, days):
        for hour in await _starts(connection, by_hour, (day * 24, min(last // HOUR, day * 24 + 23))):
            yield _Span(hour * HOUR, (hour + 1) * HOUR)


async def _before(connection: AsyncConnection, name: str | None) -> float:
    """The instant of the last row of the page before; far ahead when there is none.

    Of one that was pruned meanwhile, with all that are older, it is the beginning: whoever goes from page to page must
    not find themselves at the newest again.
    """
    if name is None:
        return 1e10
    at = await connection.scalar(select(RequestRow.at).where(RequestRow.id == name))
    return 0.0 if at is None else at


class _Sought(NamedTuple):
    """Which sums may have them."""

    of: type[UsageHour] | type[UsageDay]
    facet: str
    where: Mapping[str, str]
    failed: bool


async def _starts(connection: AsyncConnection, sought: _Sought, span: tuple[int, int]) -> Sequence[int]:
    """The hours or days from one to another, newest first, that have any."""
    of = sought.of
    if span[0] > span[1]:
        return ()
    members = func.sum(of.errors + of.audits if sought.failed else of.requests + of.audits)
    wanted = matching(select(of.starts), of, sought.facet, sought.where)
    wanted = wanted.where(of.starts >= span[0], of.starts <= span[1])
    found = wanted.group_by(of.starts).having(members > 0).order_by(of.starts.desc())
    return (await connection.execute(found)).scalars().all()


async def _hours(connection: AsyncConnection, sought: _Sought, days: tuple[int, int]) -> Sequence[int]:
    """The hours of these days, newest first, that may have any of a user or tag."""
    of, found = UsageDay, set[int]()
    both: Any = select(of.starts, of.hours)
    wanted = matching(both.select_from(of), of, sought.facet, sought.where)
    wanted = wanted.where(of.starts >= days[0], of.starts <= days[1])
    if sought.failed:
        wanted = wanted.where(of.errors + of.audits > 0)
    for row in await connection.execute(wanted.distinct()):
        found.update(row.starts * 24 + hour for hour in range(24) if row.hours >> hour & 1)
    return sorted(found, reverse=True)


async def page(
    connection: AsyncConnection, dialect: Dialect, span: tuple[tuple[float, str], float], where: Mapping[str, str]
) -> Sequence[Any]:
    """The first rows after an instant and an id and before another instant, in order of both, as mappings."""
    (at, name), end = span
    row = RequestRow
    after = or_(row.at > at, and_(row.at == at, row.id > name))
    wanted: Select[Any] = select(row).where(row.at >= at, row.at < end, after, *conditions(dialect, where))
    return (await connection.execute(wanted.order_by(row.at, row.id).limit(PAGE))).mappings().all()
