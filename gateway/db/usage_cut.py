"""Which of the stored sums answer a question, and from which of them each part of its span is read.

Knows: what sums are kept by, how far they are made and kept. Does not know: SQL, who may see what.

A span is put together of the longest whole pieces that are made: 64 and 8 days (`usage_days64`, `usage_days8`), days
(`usage_day`), hours (`usage_hour`), and the rows (`request`) of what is left at both ends. A piece that is a little too
long is taken, and what it has too much is taken away again. Days by owner, user and tag are there up to the last hour.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from gateway.db.models import UsageDay, UsageDays8, UsageDays64, UsageHour
from gateway.db.sums import DAY, FIRST, HOUR, MEASURES, OWNER, TAG, USER

SUMMED_BY = ("team", "project", "key", "model", "model_used", "provider", "operation", "source", "cache", "status")
LABELLED_BY = ("team", "project", "key", "model")
COST = ("cost_nano",)
_FIRST_BY = ("team", "model")
_TIMES = ("day", "month")
_MOST_SHAPES = 6  # each is a part of the statement; the days of a zone have two, four where clocks change

Stored = type[UsageHour] | type[UsageDay] | type[UsageDays8] | type[UsageDays64]


class Range(NamedTuple):
    """`[start, end)` of one bucket: in days, hours or seconds since the epoch. `less`: it is taken away, not added."""

    bucket: int
    start: float
    end: float
    less: bool = False


class Reach(Struct, frozen=True, kw_only=True):
    """How far sums reach. `days_to`, `labels_to`, `blocks_to`: the first day, hour by owner and label, and day of a
    block, that are not made yet; `hours_from`, `rows_from`, `blocks_from`: the instants from which on hours, rows and
    days in blocks are kept; `costs_from`: the first day that knows what each of its hours cost; `gathered`: whether
    days are there by owner, and of all users and values, and not still being added up since an upgrade.
    """

    days_to: int = 0
    labels_to: int = 0
    blocks_to: int = 0
    hours_from: int = 0
    rows_from: int = 0
    blocks_from: int = 0
    costs_from: int = 0
    gathered: bool = True


class Asked(Struct, frozen=True, kw_only=True):
    """What is wanted: totals per `group_by` in each `[start, end)` of `buckets`.

    `durations`: with their histogram; `first`: of the time to the first piece, and nothing else. `measures`: of
    `MEASURES` those that are wanted, for each costs time. `among`: values of the first of `group_by`, no others count.
    """

    group_by: tuple[str, ...]
    buckets: Sequence[tuple[float, float]]
    where: Mapping[str, str]
    durations: bool = True
    first: bool = False
    measures: tuple[str, ...] = MEASURES
    among: tuple[str, ...] | None = None
    reach: Reach = Reach()

    @property
    def label(self) -> str | None:
        """The one user or tag that is asked for, if it is one."""
        names = {name for name in self.names if name == USER or name.startswith(TAG)}
        return names.pop() if len(names) == 1 else None

    @property
    def names(self) -> set[str]:
        return {*self.group_by, *self.where}


class Cut(Struct, frozen=True, kw_only=True):
    """Where each part of the buckets is read. `stored`: ranges of whole days, hours and more; `costs`: from which hour
    of the day to which (not included), and the days; `rows`: seconds.
    """

    stored: dict[Stored, list[Range]]
    costs: dict[tuple[int, int], list[Range]]
    rows: list[Range]


def facet_of(asked: Asked) -> str | None:
    """The sums that know every dimension that is asked for; None when only rows do."""
    names = asked.names - {*_TIMES}
    if asked.first:
        return FIRST if names <= {*_FIRST_BY, "hour"} else None
    if names <= {*LABELLED_BY} and asked.reach.gathered:
        return OWNER
    if names <= {*SUMMED_BY, "hour"}:
        return ""
    return asked.label if asked.label is not None and names <= {*LABELLED_BY, asked.label} else None


def cut(asked: Asked, facet: str | None) -> Cut:
    """Parts that add up to the buckets: what one of them has too much another one takes away again."""
    reach = asked.reach
    stored: dict[Stored, list[Range]] = {}
    costs: dict[tuple[int, int], list[Range]] = {}
    rest = [Range(i, start, end) for i, (start, end) in enumerate(asked.buckets) if start < end]
    by_hour, to_the_hour = facet in ("", FIRST, OWNER), facet not in ("", FIRST)
    if facet is not None and "hour" not in asked.names:
        days, rest = _split(rest, DAY, reach.hours_from if by_hour else reach.rows_from, most=reach.days_to)
        if to_the_hour:
            today, rest = _so_far(rest, reach)
            days += today
        if not asked.names & {*_TIMES}:
            least = -(-reach.blocks_from // DAY)
            eights, days = _split(days, 8, least=-(-least // 8), most=reach.blocks_to // 8)
            longs, eights = _split(eights, 8, least=-(-least // 64), most=reach.blocks_to // 64)
            stored |= {UsageDays64: longs, UsageDays8: eights}
        stored[UsageDay] = days
        if asked.measures == COST and not asked.durations:
            costs, rest = _of_hours(rest, reach, reach.labels_to if to_the_hour else reach.days_to * 24)
    if by_hour:
        stored[UsageHour], rest = _split(rest, HOUR, reach.rows_from)
    return Cut(stored={of: ranges for of, ranges in stored.items() if ranges}, costs=costs, rows=rest)


def _split(
    ranges: Sequence[Range], width: int, floor: float = -math.inf, *, least: float = -math.inf, most: float = math.inf
) -> tuple[list[Range], list[Range]]:
    """The whole widths nearest to each range, from the `least`-th to the `most`-th, in numbers of them; and in what
    ranges are in, what that leaves over and takes too much at both ends, which is half a width at most.

    Before `floor` nothing finer is kept that could be taken away: there the widths lie inside.
    """
    whole: list[Range] = []
    rest: list[Range] = []
    for one in ranges:
        _, start, end, _ = one
        first = max(math.ceil(start / width) if start - width < floor else round(start / width), least)
        last = min(math.floor(end / width) if end - width < floor else round(end / width), most)
        if first < last:
            whole.append(one._replace(start=first, end=last))
            rest += _left(one, first * width, last * width)
        else:
            rest.append(one)
    return whole, rest


def _left(one: Range, first: float, last: float) -> list[Range]:
    """What is to be added and taken away where `[first, last)` is taken instead."""
    ends = ((one.start, first), (last, one.end))
    return [
        one._replace(start=min(a, b), end=max(a, b), less=one.less if a < b else not one.less)
        for a, b in ends
        if a != b
    ]


def _so_far(ranges: Sequence[Range], reach: Reach) -> tuple[list[Range], list[Range]]:
    """The day that is not over, as far as it is made, where that leaves less than reading all of a range."""
    first, last = reach.days_to * DAY, reach.labels_to * HOUR
    taken: list[Range] = []
    rest: list[Range] = []
    for one in ranges:
        left = _left(one, first, last)
        if first < last and sum(part.end - part.start for part in left) < one.end - one.start:
            taken.append(one._replace(start=reach.days_to, end=reach.days_to + 1))
            rest += left
        else:
            rest.append(one)
    return taken, rest


def _of_hours(
    ranges: Sequence[Range], reach: Reach, made_to: int
) -> tuple[dict[tuple[int, int], list[Range]], list[Range]]:
    """Whole hours inside of ranges whose days know them: by the hours of the day, from and to, the days."""
    hours, rest = _split(ranges, HOUR, reach.rows_from, least=reach.costs_from * 24, most=made_to)
    found: dict[tuple[int, int], list[Range]] = {}
    for one in hours:
        start = int(one.start)
        while start < one.end:
            day = start // 24
            end = int(min(one.end, day * 24 + 24))
            found.setdefault((start % 24, end - day * 24), []).append(one._replace(start=day, end=day + 1))
            start = end
    return (found, rest) if len(found) <= _MOST_SHAPES else ({}, list(ranges))
