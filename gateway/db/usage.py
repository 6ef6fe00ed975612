"""The SQL of usage: totals per group over any span, from sums as far as they reach, from rows where they do not.

Knows: which of the tables can answer what, and how their parts are put together without counting anything twice.
Does not know: who may see what, connections, what the totals are called outside.

A span is cut into whole days (`usage_day`), whole hours before and after them (`usage_hour`) and what is left at both
ends (`request`). All parts have the same columns and are added up by one statement, so they are of one moment.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import Struct
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    FromClause,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    case,
    false,
    func,
    literal,
    or_,
    select,
    union_all,
)
from sqlalchemy import cast as sql_cast

from gateway.db.clean import clean
from gateway.db.models import Base, RequestRow, SavingCorrection, UsageDay, UsageHour, UsageWho
from gateway.db.session import Dialect
from gateway.db.sums import BUCKETS, DAY, EDGES, FIRST, HITS, HOUR, MEASURES, TAG, USER

_COLUMNS: dict[str, Any] = {
    "team": RequestRow.team,
    "project": RequestRow.project,
    "key": RequestRow.key_id,
    "user": RequestRow.user,
    "model": RequestRow.model,
    "model_used": RequestRow.model_used,
    "provider": RequestRow.provider,
    "operation": RequestRow.operation,
    "source": RequestRow.source,
    "cache": RequestRow.cache,
    "status": RequestRow.status,
}
SPANS = {"minute": 60, "hour": HOUR, "day": DAY}
DIMENSIONS = (*_COLUMNS, *SPANS, "month", "tag:<name>")
MOST_GROUPS = 10_000
_SUMMED_BY = ("team", "project", "key", "model", "model_used", "provider", "operation", "source", "cache", "status")
_WHO = {"key": "key_id"}
LABELLED_BY = ("team", "project", "key", "model")
_FIRST_BY = ("team", "model")
_encode = msgspec.json.Encoder().encode


class Range(NamedTuple):
    """`[start, end)` of one bucket: in days, hours or seconds since the epoch. `less`: it is taken away, not added."""

    bucket: int
    start: float
    end: float
    less: bool = False


class Asked(Struct, frozen=True, kw_only=True):
    """What is wanted: totals per `group_by` in each `[start, end)` of `buckets`.

    `durations`: with their histogram; `first`: of the time to the first piece, and nothing else. `measures`: of
    `MEASURES` those that are wanted, for each costs time. `among`: values of the first of `group_by`, no others count.
    `days_to`: the first day whose sums are not made yet; `hours_from`, `rows_from`: the instants from which on hours
    and rows are kept.
    """

    group_by: tuple[str, ...]
    buckets: Sequence[tuple[float, float]]
    where: Mapping[str, str]
    durations: bool = True
    first: bool = False
    measures: tuple[str, ...] = MEASURES
    among: tuple[str, ...] | None = None
    days_to: int = 0
    hours_from: int = 0
    rows_from: int = 0

    @property
    def label(self) -> str | None:
        """The one user or tag that is asked for, if it is one."""
        names = {name for name in (*self.group_by, *self.where) if name == USER or name.startswith(TAG)}
        return names.pop() if len(names) == 1 else None


class Cut(Struct, frozen=True, kw_only=True):
    """Where each part of the buckets is read: whole days, whole hours, and seconds of rows."""

    days: list[Range]
    hours: list[Range]
    rows: list[Range]


def table(model: type[Base]) -> Table:
    return cast("Table", model.__table__)


def facet_of(asked: Asked) -> str | None:
    """The sums that know every dimension that is asked for; None when only rows do."""
    names = {*asked.group_by, *asked.where} - {"day", "month"}
    if asked.first:
        return FIRST if names <= {*_FIRST_BY, "hour"} else None
    if names <= {*_SUMMED_BY, "hour"}:
        return ""
    return asked.label if asked.label is not None and names <= {*LABELLED_BY, asked.label} else None


def cut(asked: Asked, facet: str | None) -> Cut:
    """Parts that add up to the buckets: what one of them has too much another one takes away again."""
    days: list[Range] = []
    hours: list[Range] = []
    rest = [Range(i, start, end) for i, (start, end) in enumerate(asked.buckets) if start < end]
    floors = (asked.hours_from if facet in ("", FIRST) else asked.rows_from, asked.rows_from)
    if facet is not None and "hour" not in (*asked.group_by, *asked.where):
        days, rest = _split(rest, DAY, floors[0], asked.days_to)
    if facet in ("", FIRST):
        hours, rest = _split(rest, HOUR, floors[1])
    return Cut(days=days, hours=hours, rows=rest)


def _split(
    ranges: Sequence[Range], width: int, floor: float, most: float = math.inf
) -> tuple[list[Range], list[Range]]:
    """The whole widths nearest to each range, up to the `most`-th, in numbers of them; and in seconds what that leaves
    over and takes too much at both ends, which is half a width at most.

    Before `floor` nothing finer is kept that could be taken away: there the widths lie inside.
    """
    whole: list[Range] = []
    rest: list[Range] = []
    for bucket, start, end, less in ranges:
        first = math.ceil(start / width) if start - width < floor else round(start / width)
        last = min(math.floor(end / width) if end - width < floor else round(end / width), most)
        if first >= last:
            rest.append(Range(bucket, start, end, less))
            continue
        whole.append(Range(bucket, first, last, less))
        for a, b in ((start, first * width), (last * width, end)):
            if a != b:
                rest.append(Range(bucket, min(a, b), max(a, b), less if a < b else not less))
    return whole, rest


def statement(dialect: Dialect, asked: Asked) -> Select[Any]:
    """Columns `bucket`, `g0` … in the order of `group_by`, the measures and, if wanted, `BUCKETS`; dearest first.

    Raises ValueError for an unknown dimension.
    """
    facet = facet_of(asked)
    parts = _Parts(dialect, asked)
    found = cut(asked, facet)
    chosen: list[Select[Any]] = []
    if found.days:
        chosen += parts.days(facet or "", found.days)
    for less in (False, True):
        hours, rows = ([one for one in some if one.less is less] for some in (found.hours, found.rows))
        if hours:
            chosen.append(parts.sums(UsageHour, facet or "", hours))
        if rows or not (chosen or less):
            chosen += parts.rows(rows)
    together = union_all(*chosen).subquery()
    keys = [together.c[name] for name in ("bucket", *parts.names)]
    sums = {name: func.coalesce(_total(together.c[name]), 0).label(name) for name in parts.summed}
    wanted = (
        select(*keys, *sums.values())
        if parts.bucketed or asked.group_by
        else select(literal(0).label("bucket"), *sums.values())
    )
    if parts.bucketed or asked.group_by:
        wanted = wanted.group_by(*keys)
    if asked.among is not None:
        wanted = wanted.where(together.c.g0.in_(asked.among))
    return wanted.order_by(sums["cost_nano"].desc(), *keys[1:]).limit(MOST_GROUPS)


class _Parts:
    """The parts of one statement; all have the same columns."""

    def __init__(self, dialect: Dialect, asked: Asked) -> None:
        self._dialect: Dialect = dialect
        self._asked = asked
        self.bucketed = len(asked.buckets) > 1
        self.names = [f"g{i}" for i in range(len(asked.group_by))]
        self.summed = (*asked.measures, *BUCKETS) if asked.durations else asked.measures

    def days(self, facet: str, ranges: Sequence[Range]) -> list[Select[Any]]:
        """Requests without a label are all but those with one: only what has one is kept by it."""
        label = self._asked.label
        with_label = self.sums(UsageDay, facet, ranges)
        if label is None or self._asked.where.get(label):
            return [with_label]
        labelled = with_label.cte("labelled")
        keys = [
            literal("", Text).label(name) if of == label else labelled.c[name]
            for name, of in zip(self.names, self._asked.group_by, strict=True)
        ]
        less = select(labelled.c.bucket, *keys, *((-labelled.c[name]).label(name) for name in self.summed))
        without = [self.sums(UsageDay, "", ranges), less]
        return without if label in self._asked.where else [select(labelled), *without]

    def sums(self, of: type[UsageHour] | type[UsageDay], facet: str, ranges: Sequence[Range]) -> Select[Any]:
        """Of stored sums, added up per group."""
        day = of.starts if of is UsageDay else of.starts // 24
        keys = [self._of_sums(of, facet, name, day).label(key) for key, name in self._named()]
        sums = [_summed(getattr(of, name), ranges).label(name) for name in self.summed]
        whole = table(of).join(table(UsageWho), UsageWho.id == of.who)
        within = [of.facet == facet]
        for name, value in self._asked.where.items():
            if value or name != self._asked.label:
                within.append(_equals(self._of_sums(of, facet, name, day), name, value))
        if self._narrowed(facet):
            within.append(self._of_sums(of, facet, self._asked.group_by[0], day).in_(self._asked.among or ()))
        return self._grouped(whole, of.starts, ranges, keys, sums).where(*within)

    def _narrowed(self, facet: str) -> bool:
        """Whether only sums `among` those wanted are read: not where others are taken off a whole afterwards."""
        among = self._asked.among
        return among is not None and (self._asked.group_by[0] != self._asked.label or (facet != "" and "" not in among))

    def rows(self, ranges: Sequence[Range]) -> list[Select[Any]]:
        """Of rows: the numbers, and apart from them the histogram, which groups by bucket before it spreads them."""
        numbers = [] if self._asked.first else [self._numbers(ranges)]
        return [*numbers, self._histogram(ranges)] if self._asked.durations else numbers

    def _numbers(self, ranges: Sequence[Range]) -> Select[Any]:
        row, counted = RequestRow, RequestRow.cache != "audit"
        taken_back = (
            select(SavingCorrection.request_id, func.sum(SavingCorrection.amount_nano).label("amount"))
            .group_by(SavingCorrection.request_id)
            .subquery()
        )
        guessed = row.cost_status == "estimated"
        measures: dict[str, Any] = {
            "requests": case((counted, 1), else_=0),
            "hits": case((row.source.in_(HITS), 1), else_=0),
            "errors": case((and_(row.status >= 400, counted), 1), else_=0),
            "audits": case((counted, 0), else_=1),
            "estimated": case((and_(guessed, counted), 1), else_=0),
            "estimated_nano": case((guessed, row.cost_nano), else_=0),
            "audit_nano": case((counted, 0), else_=row.cost_nano),
            "corrected_nano": func.coalesce(taken_back.c.amount, 0),
        }
        wanted = self._asked.measures
        sums = [_summed(measures.get(name, getattr(row, name, None)), ranges).label(name) for name in wanted]
        zeros = [literal(0).label(name) for name in self.summed[len(wanted) :]]
        whole: FromClause = table(row)
        if "corrected_nano" in wanted:
            whole = whole.outerjoin(taken_back, taken_back.c.request_id == row.id)
        return self._grouped(whole, row.at, ranges, self._row_keys(), [*sums, *zeros]).where(*self._row_conditions())

    def _histogram(self, ranges: Sequence[Range]) -> Select[Any]:
        timed = RequestRow.ttft_ms if self._asked.first else RequestRow.total_ms
        place = case(*((timed < edge, i) for i, edge in enumerate(EDGES)), else_=len(EDGES)).label("place")
        keys = [*self._row_keys(), place]
        wanted = self._grouped(table(RequestRow), RequestRow.at, ranges, keys, [func.count().label("members")])
        wanted = wanted.where(RequestRow.cache != "audit", *self._row_conditions())
        if self._asked.first:
            wanted = wanted.where(RequestRow.ttft_ms.is_not(None), RequestRow.status < 400)
        found = wanted.subquery()
        again = [found.c.bucket, *(found.c[name] for name in self.names)]
        spread = [
            _summed(case((found.c.place == i, found.c.members), else_=0), ranges).label(name)
            for i, name in enumerate(BUCKETS)
        ]
        return select(*again, *(literal(0).label(name) for name in self._asked.measures), *spread).group_by(*again)

    def _grouped(
        self,
        whole: FromClause,
        column: Any,
        ranges: Sequence[Range],
        keys: Sequence[ColumnElement[Any]],
        sums: Sequence[ColumnElement[Any]],
    ) -> Select[Any]:
        """`sums` of what lies in the ranges, per bucket and key. Many buckets are joined as a table of their own."""
        if not self.bucketed:
            inside = or_(false(), *(and_(column >= one.start, column < one.end) for one in ranges))
            found = select(literal(0).label("bucket"), *keys, *sums).select_from(whole).where(inside)
            return found.group_by(*keys) if keys else found
        spans = _spans(self._dialect, ranges, "float8" if column is RequestRow.at else "int8")
        found = select(spans.c.bucket, *keys, *sums).select_from(spans).select_from(whole)
        return found.where(column >= spans.c.lo, column < spans.c.hi).group_by(spans.c.bucket, *keys)

    def _named(self) -> list[tuple[str, str]]:
        return list(zip(self.names, self._asked.group_by, strict=True))

    def _row_keys(self) -> list[ColumnElement[Any]]:
        return [_of_rows(self._dialect, name).label(key) for key, name in self._named()]

    def _row_conditions(self) -> list[ColumnElement[bool]]:
        found = conditions(self._dialect, self._asked.where)
        if self._asked.among is not None:
            found.append(_of_rows(self._dialect, self._asked.group_by[0]).in_(self._asked.among))
        return found

    def _of_sums(self, of: type[UsageHour] | type[UsageDay], facet: str, name: str, day: Any) -> ColumnElement[Any]:
        if name in ("hour", "day"):
            return cast("ColumnElement[Any]", of.starts if name == "hour" else day)
        if name == "month":
            return _month(self._dialect, day * DAY)
        if name == self._asked.label:
            return cast("ColumnElement[Any]", UsageWho.label if facet else literal("", Text))
        return cast("ColumnElement[Any]", getattr(UsageWho, _WHO.get(name, name)))


def _summed(value: Any, ranges: Sequence[Range]) -> ColumnElement[Any]:
    """All of `ranges` are added, or all are taken away."""
    found = _total(value)
    return -found if ranges and ranges[0].less else found


def _total(value: Any) -> ColumnElement[Any]:
    """PostgreSQL sums whole numbers to a decimal, which is dear to add up again and to send."""
    return sql_cast(func.sum(value), BigInteger)


def matching(
    wanted: Select[Any], of: type[UsageHour] | type[UsageDay], facet: str, where: Mapping[str, str]
) -> Select[Any]:
    """`wanted`, of the sums of a facet that match `where`."""
    found = wanted.join(UsageWho, UsageWho.id == of.who).where(of.facet == facet)
    for name, value in where.items():
        column: Any = UsageWho.label if name == facet else getattr(UsageWho, _WHO.get(name, name))
        found = found.where(_equals(column, name, value))
    return found


def conditions(dialect: Dialect, where: Mapping[str, str]) -> list[ColumnElement[bool]]:
    """Of rows. Raises ValueError for an unknown dimension."""
    return [_equals(_of_rows(dialect, name), name, value) for name, value in where.items()]


def _equals(column: ColumnElement[Any], name: str, value: str) -> ColumnElement[bool]:
    if name in ("status", *SPANS):
        return column == (int(value) if value.isascii() and value.isdigit() and len(value) < 12 else -1)
    return column == clean(value)  # as it was stored


def _of_rows(dialect: Dialect, name: str) -> ColumnElement[Any]:
    if name == "user":
        return func.coalesce(RequestRow.user, "")
    if name in _COLUMNS:
        return cast("ColumnElement[Any]", _COLUMNS[name])
    second = sql_cast(RequestRow.at if dialect == "sqlite" else func.floor(RequestRow.at), BigInteger)
    if name in SPANS:
        return second // SPANS[name]
    if name == "month":
        return _month(dialect, second)
    if name.startswith(TAG):
        tags = cast("Any", RequestRow.tags)
        return func.coalesce(sql_cast(tags[clean(name.removeprefix(TAG))].as_string(), Text), "")
    raise ValueError(f"unknown dimension {name[:60]!r}. Known: {', '.join(DIMENSIONS)}")


def _month(dialect: Dialect, second: Any) -> ColumnElement[str]:
    if dialect == "sqlite":
        return func.strftime("%Y-%m", second, "unixepoch")
    return func.to_char(func.timezone("UTC", func.to_timestamp(second)), "YYYY-MM")


def _spans(dialect: Dialect, those: Sequence[Range], kind: str) -> FromClause:
    """Buckets as a table that both databases can join; one parameter, however many there are."""
    sent = bindparam(f"ranges_{kind}_{len(those)}", _encode(those).decode(), Text, unique=True)
    if dialect == "sqlite":
        each = func.json_each(sent).table_valued("value")
        fields = [func.json_extract(each.c.value, f"$[{i}]") for i in range(3)]
    else:
        from sqlalchemy.dialects.postgresql import JSONB  # who is on SQLite does without the other dialect's 2.5 MB

        each = func.jsonb_array_elements(sql_cast(sent, JSONB)).table_valued("value")
        kinds = (BigInteger, *((Double, Double) if kind == "float8" else (BigInteger, BigInteger)))
        texts = [func.jsonb_extract_path_text(each.c.value, str(i)) for i in range(3)]
        fields = [sql_cast(one, of) for one, of in zip(texts, kinds, strict=True)]
    return (
        select(*(one.label(name) for one, name in zip(fields, ("bucket", "lo", "hi"), strict=True)))
        .cte()
        .prefix_with(
            "MATERIALIZED",
            dialect="postgresql",  # read once, not once per line that it is compared with
        )
    )
