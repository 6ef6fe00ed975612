"""Which part of the spending somebody looks at, read from an address and written back into one.

Knows: dimensions, dates in a time zone, the period before, filters. Does not know: SQL, pages, who may see what.
"""

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import TypeVar
from urllib.parse import urlencode
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct
from msgspec.structs import replace

from gateway.db.queries import Pruned, Queries
from gateway.db.rows import UsageRow
from gateway.db.sums import MEASURES
from gateway.db.usage import MOST_GROUPS
from gateway.errors import InvalidRequest
from policies.budget import period

Otherwise = TypeVar("Otherwise", date, date | None)
DIMENSIONS = ("team", "project", "key", "user", "model", "provider", "model_used", "operation", "source")
_TAG = "tag:"
_LONGEST_DAYS = 400
_YEARS = range(2000, 2201)
_CHARTED = 7
_LONGEST_VALUE = 200
REST = "all others"
_SHOWN = (
    *("requests", "hits", "prompt", "completion", "cost_nano", "estimated_nano"),
    *("audit_nano", "saved_nano", "corrected_nano", "embed_nano"),
)


class View(Struct, frozen=True, kw_only=True):
    """`first` and `last` are dates in `zone`, both included. `then` may be "". `where`: dimension -> value."""

    by: str
    then: str
    first: date
    last: date
    zone: str
    where: dict[str, str]

    @property
    def days(self) -> int:
        return (self.last - self.first).days + 1

    @property
    def before(self) -> "View":
        """As many days, ending the day before; whole months are compared with the whole month before."""
        last = self.first - timedelta(days=1)
        whole_month = self.first.day == 1 and (self.last + timedelta(days=1)).day == 1 and self.days <= 31
        first = last.replace(day=1) if whole_month else self.first - timedelta(days=self.days)
        return replace(self, first=first, last=last)

    @property
    def month(self) -> str | None:
        """`2026-11` when the view lies within that month."""
        within = (self.first.year, self.first.month) == (self.last.year, self.last.month)
        return self.first.isoformat()[:7] if within else None

    @property
    def groups(self) -> list[str]:
        return [self.by, self.then] if self.then else [self.by]

    def span(self) -> tuple[float, float]:
        """`[start, end)` in seconds since the epoch."""
        zone = ZoneInfo(self.zone)
        return midnight(self.first, zone), midnight(self.last + timedelta(days=1), zone)

    def address(self, **changes: str) -> str:
        """The query string of this view with some of it replaced. A filter may be empty: requests without a user."""
        values = {
            "by": self.by,
            "then": self.then,
            "from": self.first.isoformat(),
            "to": self.last.isoformat(),
            "zone": self.zone,
            **self.where,
            **changes,
        }
        return urlencode({name: value for name, value in values.items() if value or name in self.where})

    def without(self, name: str) -> str:
        """The query string of this view with one filter taken away."""
        return replace(self, where={other: value for other, value in self.where.items() if other != name}).address()

    def drill(self, row: Mapping[str, str]) -> str:
        """The view of one row: its values become filters, and the next dimension that is not one is shown."""
        taken = {**self.where, **row}
        rest = [name for name in DIMENSIONS if name not in taken]
        return self.address(by=rest[0] if rest else self.by, then="", **row)


def read_view(asked: Mapping[str, str], now: float, kept_from: float = 0.0) -> View:
    """Without dates this month up to today, or what is kept of it from the instant `kept_from` on.

    Raises InvalidRequest that names what is wrong with the address.
    """
    zone = asked.get("zone") or "UTC"
    this_day = today(zone, now)
    first = day_of(asked.get("from"), max(this_day.replace(day=1), min(first_kept(kept_from, zone), this_day)), "from")
    last = day_of(asked.get("to"), this_day, "to")
    if first > last:
        raise InvalidRequest("`from` must not lie after `to`.", param="from")
    if (last - first).days >= _LONGEST_DAYS:
        raise InvalidRequest(f"A view covers at most {_LONGEST_DAYS} days.", param="from")
    by, then = _dimension(asked.get("by") or "team", "by"), asked.get("then") or ""
    then = "" if then == by else _dimension(then, "then") if then else ""
    where = {name: value[:_LONGEST_VALUE] for name, value in asked.items() if is_dimension(name)}
    if only := asked.get("only"):  # as the form asks: a dimension, and what it must be
        where[_dimension(only.strip(), "only")] = (asked.get("is") or "").strip()[:_LONGEST_VALUE]
    return View(by=by, then=then, first=first, last=last, zone=zone, where=where)


def is_dimension(name: str) -> bool:
    """One of `DIMENSIONS`, or a tag."""
    return name in DIMENSIONS or (name.startswith(_TAG) and len(name) > len(_TAG))


def _dimension(name: str, param: str) -> str:
    if is_dimension(name):
        return name
    raise InvalidRequest(
        f"Spending cannot be shown by {name[:60]!r}: {', '.join(DIMENSIONS)} or tag:NAME.", param=param
    )


def today(zone: str, now: float) -> date:
    """The date there. Raises InvalidRequest for what is no time zone."""
    try:
        return datetime.fromtimestamp(now, ZoneInfo(zone)).date()
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidRequest(
            f"There is no time zone {zone[:60]!r}; use a name like Europe/Berlin.", param="zone"
        ) from error


def first_kept(kept_from: float, zone: str) -> date:
    """The first date there of which nothing lies before `kept_from`."""
    day = today(zone, kept_from)
    return day if midnight(day, ZoneInfo(zone)) >= kept_from else day + timedelta(days=1)


def day_of(text: str | None, otherwise: Otherwise, param: str) -> date | Otherwise:
    """The date that was written, if one was. Raises InvalidRequest."""
    if not text:
        return otherwise
    try:
        day = date.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequest(f"`{param}` must be a date like 2026-11-01.", param=param) from error
    if day.year not in _YEARS:
        raise InvalidRequest(f"`{param}` must lie between {_YEARS[0]} and {_YEARS[-1]}.", param=param)
    return day


def midnight(day: date, zone: ZoneInfo) -> float:
    """The first instant of a date, in seconds since the epoch."""
    noon = datetime(day.year, day.month, day.day, 12, tzinfo=zone).timestamp()
    return float(period("day", zone, noon).start)


class Line(Struct, frozen=True, kw_only=True):
    """One group of the table. `before`: its spending in the period before, None when it was not there."""

    row: UsageRow
    before: int | None
    drill: str

    @property
    def change(self) -> float | None:
        """Relative to the period before: 0.5 is half as much again."""
        return None if not self.before else (self.row.cost_nano - self.before) / self.before


class Bucket(Struct, frozen=True, kw_only=True):
    """One day, or several of a long period, of the chart: nano-USD per charted group."""

    label: str
    amounts: list[int]


class Spending(Struct, frozen=True, kw_only=True):
    """What the page shows. `charted`: names of the groups in the chart, the last one may be all others.

    `before`: nano-USD of the period before, None where that is not kept any more.
    """

    total: UsageRow
    before: int | None
    lines: list[Line]
    charted: list[str]
    buckets: list[Bucket]


async def spending(queries: Queries, view: View, where: Mapping[str, str], since: float | None = None) -> Spending:
    """`where` are the view's filters within what the reader may see. Raises ValueError for what is kept no more.

    `since`: from when on sums are kept, where that is known.
    """
    start, end = view.span()
    await queries.require_kept(start, since)
    rows = await queries.usage(view.groups, start, end, where, latencies=False, measures=_SHOWN)
    total = _sum(rows)
    if len(rows) >= MOST_GROUPS:  # the others are not among the rows
        total = (await queries.usage((), start, end, where, latencies=False, measures=_SHOWN))[0]
    known, before = await _before(queries, view, where, since)
    rows.sort(key=lambda row: (-row.cost_nano, -row.saved_nano, tuple(row.group.values())))
    charted, buckets = await _chart(queries, view, where, rows)
    return Spending(
        total=total,
        before=before,
        lines=[Line(row=row, before=known.get(tuple(row.group.values())), drill=view.drill(row.group)) for row in rows],
        charted=charted,
        buckets=buckets,
    )


async def _before(
    queries: Queries, view: View, where: Mapping[str, str], since: float | None
) -> tuple[dict[tuple[str, ...], int], int | None]:
    """What each group, and all together, spent in the period before; None where that is not kept any more."""
    earlier = view.before.span()
    try:
        await queries.require_kept(earlier[0], since)
        (known,), (whole,) = await queries.costs(earlier, view.groups, where), await queries.costs(earlier, (), where)
    except Pruned:
        return {}, None
    return known, whole.get((), 0)


def _sum(rows: Sequence[UsageRow]) -> UsageRow:
    """Every request is in one of the rows."""
    return UsageRow(group={}, **{name: sum(getattr(row, name) for row in rows) for name in MEASURES})


async def _chart(
    queries: Queries, view: View, where: Mapping[str, str], rows: Sequence[UsageRow]
) -> tuple[list[str], list[Bucket]]:
    totals: dict[str, int] = {}
    for row in rows:
        name = row.group[view.by]
        totals[name] = totals.get(name, 0) + row.cost_nano
    largest = sorted(totals, key=lambda name: -totals[name])
    shown = largest if len(largest) <= _CHARTED else largest[: _CHARTED - 1]
    starts = starts_of(view)
    bounds = [*(at for _, at in starts), view.span()[1]]
    found = await queries.costs(bounds, [view.by], where, among=[name for name in shown if name])
    # Those without a name are what the others leave of the whole; of those not shown only the sum is wanted.
    unnamed = await queries.costs(bounds if "" in shown else (), (), {**where, view.by: ""})
    wholes = await queries.costs(bounds if len(shown) < len(largest) else (), (), where)
    buckets: list[Bucket] = []
    for number, (label, _) in enumerate(starts):
        amounts = [found[number].get((name,), 0) if name else unnamed[number].get((), 0) for name in shown]
        rest = [wholes[number].get((), 0) - sum(amounts)] if wholes else []
        buckets.append(Bucket(label=label, amounts=[*amounts, *rest]))
    return ([*shown] if len(shown) == len(largest) else [*shown, REST]), buckets


def starts_of(view: View) -> list[tuple[str, float]]:
    """The first instant of each day, of each week above a quarter of a year."""
    zone, step = ZoneInfo(view.zone), 1 if view.days <= 100 else 7
    days = [view.first + timedelta(days=n) for n in range(0, view.days, step)]
    return [(day.isoformat(), midnight(day, zone)) for day in days]
