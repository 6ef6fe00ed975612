"""The SQL of usage: totals per group over any span, from sums as far as they reach, from rows where they do not.

Knows: the statement that adds up what `gateway.db.usage_cut` says is to be read. Does not know: who may see what,
connections, what the totals are called outside. It is made of a question's shape alone (`gateway.db.usage_shape`).

All parts have the same columns and are added up by one statement, so they are of one moment. What two buckets share,
one of them adding and the other taking it away, is read once.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    FromClause,
    Integer,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    case,
    false,
    func,
    literal,
    literal_column,
    or_,
    select,
    true,
    union_all,
)
from sqlalchemy import cast as sql_cast

from gateway.db.clean import clean
from gateway.db.models import Base, RequestRow, SavingCorrection, UsageDay, UsageHour, UsageWho
from gateway.db.session import Dialect
from gateway.db.sums import ANY, BUCKETS, COSTS, DAY, EDGES, HITS, OWNER, TAG
from gateway.db.usage_cut import Asked, Stored
from gateway.db.usage_shape import AMONG, MOST, SPANS, Ranges, Shape, condition, shaped, values, wanted_of

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
DIMENSIONS = (*_COLUMNS, *SPANS, "month", "tag:<name>")
MOST_GROUPS = 10_000
_MOST_SHAPES = 400  # SQLAlchemy keeps what it compiled, and with it the statement, of more
_WHO = {"key": "key_id"}


def table(model: type[Base]) -> Table:
    return cast("Table", model.__table__)


class Stated(NamedTuple):
    """A statement, and the values of one question in it: what `execute` takes."""

    select: Select[Any]
    values: dict[str, Any]


def statement(dialect: Dialect, asked: Asked) -> Stated:
    """Columns `bucket`, `g0` … in the order of `group_by`, the measures and, if wanted, `BUCKETS`; dearest first.

    Raises ValueError for an unknown dimension.
    """
    shape, told = shaped(asked)
    select, names = _stated(dialect, shape)
    return Stated(select, values(told, MOST_GROUPS, names))


@lru_cache(_MOST_SHAPES)
def _stated(dialect: Dialect, shape: Shape) -> tuple[Select[Any], frozenset[str]]:
    """And the names of its values."""
    parts = _Parts(dialect, shape)
    together = union_all(*parts.all()).subquery("parts")
    keys = [together.c[name] for name in ("bucket", *parts.names)]
    sums = {name: _words(f"coalesce({_sum_of(f'parts.{name}')}, 0)").label(name) for name in parts.summed}
    told: list[Any] = keys if shape.bucketed or shape.group_by else [_words("0").label("bucket")]
    wanted = _select([*told, *sums.values()]).select_from(together)
    if shape.bucketed or shape.group_by:
        wanted = wanted.group_by(*keys)
    if shape.among is not None:
        wanted = wanted.where(parts.among(together.c.g0))
    wanted = wanted.order_by(sums["cost_nano"].desc(), *keys[1:]).limit(parts.value(MOST, Integer))
    return wanted, frozenset(parts.asked_for)


class _Part(NamedTuple):
    """Stored sums of one facet in some ranges; `times` -1: they are taken off; `labelled`: the label tells."""

    of: Stored
    facet: str
    ranges: Ranges
    times: int = 1
    labelled: bool = False


class _Parts:
    """The parts of one statement; all have the same columns."""

    def __init__(self, dialect: Dialect, asked: Shape) -> None:
        self._dialect: Dialect = dialect
        self._asked = asked
        self._where = dict(asked.where)
        self.names = [f"g{i}" for i in range(len(asked.group_by))]
        self.summed = (*asked.measures, *BUCKETS) if asked.durations else asked.measures
        self.asked_for: set[str] = set()

    def value(self, name: str, kind: Any = None, *, several: bool = False) -> Any:
        """What is sent with each question."""
        self.asked_for.add(name)
        return bindparam(name, type_=kind, expanding=several)

    def among(self, column: ColumnElement[Any]) -> ColumnElement[bool]:
        return column.in_(self.value(AMONG, several=True))

    def all(self) -> list[Select[Any]]:
        """At least one, should there be nothing to read."""
        found: list[Select[Any]] = []
        for of, ranges in self._asked.stored:
            for part in self._facets(of, ranges):
                found += self._sums(part, {name: f"{of.__tablename__}.{name}" for name in self.summed})
        for (start, end), ranges in self._asked.costs:
            hours = " + ".join(f"{UsageDay.__tablename__}.{name}" for name in COSTS[start:end])
            for part in self._facets(UsageDay, ranges):
                found += self._sums(part, {"cost_nano": hours})
        return found + self._rows(self._asked.rows) if self._asked.reads_rows or not found else found

    def _facets(self, of: Stored, ranges: Ranges) -> list[_Part]:
        """Requests without a label are all but those with one: only what has one is kept by it."""
        facet, label, among = self._asked.facet or "", self._asked.label, self._asked.among
        if label is None:
            return [_Part(of, "" if of is UsageHour and facet == OWNER else facet, ranges)]
        with_label = _Part(of, label, ranges, labelled=True)
        every, any_label = (OWNER, ANY + label) if self._asked.gathered else ("", label)
        rest = [_Part(of, every, ranges), _Part(of, any_label, ranges, -1)]
        if self._where.get(label):
            return [with_label]
        if label in self._where:
            return rest
        if among is False and self._asked.group_by[0] == label:
            return [with_label]
        return [with_label, *rest]

    def _sums(self, part: _Part, columns: Mapping[str, str]) -> list[Select[Any]]:
        """Of stored sums, added up per group."""
        of, label = part.of, self._asked.label
        day = of.starts if of is UsageDay else of.starts // 24
        keys = [self._of_sums(part, name, day).label(key) for key, name in self._named()]
        off = "-1 * " if part.times < 0 else ""
        sums = {name: _words(f"({off}{_sum_of(column)})") for name, column in columns.items()}
        within = [of.facet == part.facet]
        for number, name in enumerate(self._where):
            if name != label or part.labelled:
                within.append(self._of_sums(part, name, day) == self.value(condition(number)))
        among = self._asked.among is not None
        if among and (self._asked.group_by[0] != label or part.labelled):
            within.append(self.among(self._of_sums(part, self._asked.group_by[0], day)))
        whole = table(of).join(table(UsageWho), UsageWho.id == of.who)
        first = self._asked.group_by[:1] if among else ()
        few = part.labelled and (self._where.get(label or "", False) or label in first)
        return self._grouped(_Read(whole, of.starts, within, few), part.ranges, keys, sums)

    def _rows(self, ranges: Ranges) -> list[Select[Any]]:
        """Of rows: the numbers, and apart from them the histogram, which groups by bucket before it spreads them."""
        numbers = [] if self._asked.first else self._numbers(ranges)
        return [*numbers, self._histogram(ranges)] if self._asked.durations else numbers

    def _numbers(self, ranges: Ranges) -> list[Select[Any]]:
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
        sums: dict[str, Any] = {
            name: _total(measures[name]) if name in measures else _words(_sum_of(f"{row.__tablename__}.{name}"))
            for name in wanted
        }
        sums |= {name: _words("0") for name in self.summed[len(wanted) :]}
        whole: FromClause = table(row)
        if "corrected_nano" in wanted:
            whole = whole.outerjoin(taken_back, taken_back.c.request_id == row.id)
        return self._grouped(_Read(whole, row.at, self._row_conditions()), ranges, self._row_keys(), sums)

    def _histogram(self, ranges: Ranges) -> Select[Any]:
        timed = RequestRow.ttft_ms if self._asked.first else RequestRow.total_ms
        place = case(*((timed < edge, i) for i, edge in enumerate(EDGES)), else_=len(EDGES)).label("place")
        within = [RequestRow.cache != "audit", *self._row_conditions()]
        if self._asked.first:
            within += [RequestRow.ttft_ms.is_not(None), RequestRow.status < 400]
        read, keys = _Read(table(RequestRow), RequestRow.at, within), [*self._row_keys(), place]
        found = union_all(*self._grouped(read, ranges, keys, {"members": func.count()})).subquery("timed")
        again = [found.c.bucket, *(found.c[name] for name in self.names)]
        members = [_sum_of(f"CASE WHEN timed.place = {i} THEN timed.members ELSE 0 END") for i in range(len(BUCKETS))]
        spread = [_words(one).label(name) for name, one in zip(BUCKETS, members, strict=True)]
        return select(*again, *(_words("0").label(name) for name in self._asked.measures), *spread).group_by(*again)

    def _grouped(
        self, read: "_Read", ranges: Ranges, keys: Sequence[ColumnElement[Any]], sums: Mapping[str, Any]
    ) -> list[Select[Any]]:
        """`sums` of what lies in the ranges, per bucket and key. Many buckets are joined as a table of their own."""
        if self._asked.bucketed:
            return [self._bucketed(read, ranges, keys, sums)]
        found: list[Select[Any]] = []
        for less in (False, True):
            those = [ranges.ends(number) for number, one in enumerate(ranges.less) if one is less]
            if those or (not ranges.less and not less):
                numbers: list[Any] = [(-value if less else value).label(name) for name, value in sums.items()]
                ends = [(self.value(start), self.value(end)) for start, end in those]
                inside = or_(false(), *(and_(read.time >= start, read.time < end) for start, end in ends))
                some = _select([literal(0).label("bucket"), *keys, *numbers]).select_from(read.whole)
                some = some.where(inside, *read.within)
                found.append(some.group_by(*keys) if keys else some)
        return found

    def _bucketed(
        self, read: "_Read", ranges: Ranges, keys: Sequence[ColumnElement[Any]], sums: Mapping[str, Any]
    ) -> Select[Any]:
        # SQLite would go through all combinations for each of them, unless they are few.
        each = ranges.few and read.time is not RequestRow.at and (read.few or self._dialect != "sqlite")
        spans = _spans(self._dialect, self.value(ranges.pieces(each), Text), read.kind)
        inside = [read.time == spans.c.lo] if each else [read.time >= spans.c.lo, read.time < spans.c.hi]
        numbers = [value.label(name) for name, value in sums.items()]
        found = self._per_span(spans, read._replace(within=[*inside, *read.within]), keys, numbers)
        if not ranges.shared[each]:
            return found
        used = _spans(self._dialect, self.value(ranges.uses(each), Text), "int8")
        once = found.cte().prefix_with("MATERIALIZED", dialect="postgresql")
        told: list[Any] = [used.c.lo.label("bucket"), *(once.c[key.name] for key in keys)]
        told += [(once.c[name] * used.c.hi).label(name) for name in sums]
        return _select(told).where(once.c.bucket == used.c.bucket)

    def _per_span(
        self, spans: FromClause, read: "_Read", keys: Sequence[ColumnElement[Any]], numbers: Sequence[Any]
    ) -> Select[Any]:
        """What is summed in each span. PostgreSQL is told to look span by span: it knows neither how many there are nor
        how little lies in one, and would compare each row of the table with each span.
        """
        if self._dialect == "sqlite":
            wanted: list[Any] = [spans.c.bucket, *keys, *numbers]
            found = _select(wanted).select_from(spans).select_from(read.whole)
            return found.where(*read.within).group_by(spans.c.bucket, *keys)
        one = select(*keys, *numbers).select_from(read.whole).where(*read.within)
        each = (one.group_by(*keys) if keys else one).lateral()
        told: list[Any] = [spans.c.bucket, *each.c]
        return _select(told).select_from(spans.join(each, true()))

    def _named(self) -> list[tuple[str, str]]:
        return list(zip(self.names, self._asked.group_by, strict=True))

    def _row_keys(self) -> list[ColumnElement[Any]]:
        return [_of_rows(self._dialect, name).label(key) for key, name in self._named()]

    def _row_conditions(self) -> list[ColumnElement[bool]]:
        named = [_of_rows(self._dialect, name) for name in self._where]
        found = [column == self.value(condition(number)) for number, column in enumerate(named)]
        if self._asked.among is not None:
            found.append(self.among(_of_rows(self._dialect, self._asked.group_by[0])))
        return found

    def _of_sums(self, part: _Part, name: str, day: Any) -> ColumnElement[Any]:
        if name in ("hour", "day"):
            return cast("ColumnElement[Any]", part.of.starts if name == "hour" else day)
        if name == "month":
            return _month(self._dialect, day * DAY)
        if name == self._asked.label:
            return cast("ColumnElement[Any]", UsageWho.label if part.labelled else literal("", Text))
        return cast("ColumnElement[Any]", getattr(UsageWho, _WHO.get(name, name)))


class _Read(NamedTuple):
    """What rows or sums are read of, which column ranges are of, and what must hold. `few`: combinations are named."""

    whole: FromClause
    time: Any
    within: Sequence[ColumnElement[bool]]
    few: bool = False

    @property
    def kind(self) -> str:
        return "float8" if self.time is RequestRow.at else "int8"


def _select(columns: Sequence[Any]) -> Select[Any]:
    """Of any number of columns: the library's types are of ten at most."""
    return cast("Select[Any]", select(*columns))


def _words(of: str) -> ColumnElement[int]:
    """Of our own columns: there are forty in each part, and put together of expressions they took half of the time."""
    return literal_column(of, BigInteger)


def _sum_of(words: str) -> str:
    return f"CAST(sum({words}) AS BIGINT)"


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
    return column == wanted_of(name, value)


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


def _spans(dialect: Dialect, sent: Any, kind: str) -> FromClause:
    """Buckets as a table that both databases can join; one parameter, `sent`, however many there are."""
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
