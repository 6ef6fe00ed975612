"""What of a question about usage its statement depends on, and what is only filled in: one statement is for all of a
shape. To put it together takes ten times as long as SQLite takes to answer it.

Knows: how ranges are named in a statement, what is sent for each name. Does not know: SQL, which sums there are.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from gateway.db.clean import clean
from gateway.db.sums import DAY, HOUR
from gateway.db.usage_cut import Asked, Cut, Range, Stored, cut, facet_of

SPANS = {"minute": 60, "hour": HOUR, "day": DAY}
AMONG, MOST = "among", "most"  # values of the first of `group_by`; groups at most
_MOST_EACH = 2_000
_encode = msgspec.json.Encoder().encode


class Ranges(NamedTuple):
    """Some ranges, and what their values begin with. Of one bucket `less`: of each whether it is taken away. Of many
    `few`: whether what is whole in them can be named one by one; `shared`: whether a piece is used twice or taken
    away, of ranges and of what is named.
    """

    name: str
    less: tuple[bool, ...] = ()
    few: bool = False
    shared: tuple[bool, bool] = (False, False)

    def ends(self, number: int) -> tuple[str, str]:
        """What the ends of one of them are called."""
        return f"{self.name}_{number}_from", f"{self.name}_{number}_to"

    def pieces(self, each: bool) -> str:
        """The pieces to read, and `uses`: which bucket has them, and how often."""
        return f"{self.name}_each" if each else f"{self.name}_all"

    def uses(self, each: bool) -> str:
        return f"{self.pieces(each)}_used"


class Shape(Struct, frozen=True, kw_only=True):
    """All that a statement depends on. `where`: names, and whether a value is asked for or requests without one.

    `among`: None for all; otherwise whether requests without a value are among those asked for. The rest as `Asked`.
    """

    group_by: tuple[str, ...]
    where: tuple[tuple[str, bool], ...]
    durations: bool
    first: bool
    measures: tuple[str, ...]
    among: bool | None
    gathered: bool
    bucketed: bool
    facet: str | None
    label: str | None
    stored: tuple[tuple[Stored, Ranges], ...]
    costs: tuple[tuple[tuple[int, int], Ranges], ...]
    rows: Ranges
    reads_rows: bool


class _Told(NamedTuple):
    """The values of a question."""

    asked: Asked
    cut: Cut


def shaped(asked: Asked) -> tuple[Shape, _Told]:
    """The shape of a question, and what `values` needs to fill it in."""
    facet = facet_of(asked)
    found = cut(asked, facet)
    laid = partial(_laid, bucketed=len(asked.buckets) > 1)
    shape = Shape(
        group_by=asked.group_by,
        where=tuple((name, bool(value)) for name, value in asked.where.items()),
        durations=asked.durations,
        first=asked.first,
        measures=asked.measures,
        among=None if asked.among is None else "" in asked.among,
        gathered=asked.reach.gathered,
        bucketed=len(asked.buckets) > 1,
        facet=facet,
        label=asked.label,
        stored=tuple((of, laid(_name_of(of), ranges)) for of, ranges in found.stored.items()),
        costs=tuple((hours, laid(_name_of(hours), ranges)) for hours, ranges in found.costs.items()),
        rows=laid("rows", found.rows),
        reads_rows=bool(found.rows),
    )
    return shape, _Told(asked, found)


def _name_of(those: Stored | tuple[int, int]) -> str:
    return "costs_{}_{}".format(*those) if isinstance(those, tuple) else those.__tablename__


def _laid(name: str, ranges: Sequence[Range], *, bucketed: bool) -> Ranges:
    if not bucketed:
        return Ranges(name, less=tuple(one.less for one in ranges))
    few = sum(one.end - one.start for one in ranges) <= _MOST_EACH
    return Ranges(name, few=few, shared=(_used(ranges, each=False)[2], few and _used(ranges, each=True)[2]))


def wanted_of(name: str, value: str) -> int | str:
    """A value as it was stored."""
    if name in ("status", *SPANS):
        return int(value) if value.isascii() and value.isdigit() and len(value) < 12 else -1
    return clean(value)


def condition(number: int) -> str:
    """What the value of one of `where` is called."""
    return f"is_{number}"


def values(told: _Told, most: int, names: Iterable[str]) -> dict[str, Any]:
    """Of what a statement needs, by the names that it has for it."""
    asked, found = told
    known: dict[str, Any] = {MOST: most}
    if asked.among is not None:
        known[AMONG] = asked.among
    for number, (name, value) in enumerate(asked.where.items()):
        known[condition(number)] = wanted_of(name, value)
    those = {_name_of(of): ranges for of, ranges in (*found.stored.items(), *found.costs.items())}
    for name, ranges in (*those.items(), ("rows", found.rows)):
        if len(asked.buckets) > 1:
            known |= _of_many(Ranges(name), ranges, names)
        else:
            for number, one in enumerate(ranges):
                known |= zip(Ranges(name).ends(number), (one.start, one.end), strict=True)
    return {name: known[name] for name in names}


def _of_many(called: Ranges, ranges: Sequence[Range], names: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in (False, True):
        if called.pieces(each) in names:
            pieces, uses, shared = _used(ranges, each)
            numbers: Iterable[int] = range(len(pieces)) if shared else [bucket for _, bucket, _ in uses]
            those = [(number, *piece) for number, piece in zip(numbers, pieces, strict=True)]
            found[called.pieces(each)], found[called.uses(each)] = _encode(those).decode(), _encode(uses).decode()
    return found


def _used(ranges: Sequence[Range], each: bool) -> tuple[list[tuple[float, float]], list[tuple[int, int, int]], bool]:
    """The pieces; which of them is in which bucket, and 1 or -1 where it is taken away; whether that is to be told."""
    pieces: dict[tuple[float, float], int] = {}
    uses = [
        (pieces.setdefault(span, len(pieces)), one.bucket, -1 if one.less else 1)
        for one in ranges
        for span in (_each(one) if each else [(one.start, one.end)])
    ]
    return list(pieces), uses, len(pieces) < len(uses) or any(times < 0 for _, _, times in uses)


def _each(one: Range) -> list[tuple[float, float]]:
    """The whole hours, days or blocks of a range, one by one: each is a step in the key, and not a search."""
    return [(number, number + 1) for number in range(int(one.start), int(one.end))]
