"""What is out of line on `/ui/anomalies`: days as a whole, and the dearest keys and models on each.

Knows: how many days, keys and models are looked at, and which questions that takes. Does not know: what is out of line
(`policies.anomalies`), pages, SQL.
"""

from collections.abc import Mapping, Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from gateway.db.queries import Queries
from gateway.db.usage_cut import COST
from gateway.routes.spend_view import View, starts_of
from policies.anomalies import Flag, causes, flags, part_flags
from policies.money import NANO_PER_USD

DAYS = 90
MOST_PARTS = 50  # of each dimension: the dearest of the ninety days
_FLOOR = NANO_PER_USD // 100  # a cent more or less is nothing to look at
_PARTS = ("key", "model")
_CAUSES = ("key", "model", "team")
_MOST_FLAGS = 30
_USUAL_DAYS = 28


class Found(Struct, frozen=True, kw_only=True):
    """`causes`: (dimension, name, nano-USD more or less than usual)."""

    label: str
    flag: Flag
    causes: list[tuple[str, str, int]]


class FoundPart(Struct, frozen=True, kw_only=True):
    """A key or model that was dearer on a day than was to be expected of it. `drill`: the query of that view."""

    label: str
    dimension: str
    name: str
    flag: Flag
    drill: str


class Judged(Struct, frozen=True, kw_only=True):
    """`days`: (label, nano-USD) of each since the first that cost anything; what is out of line, newest first."""

    days: list[tuple[str, int]]
    found: list[Found]
    parts: list[FoundPart]


class _Days(Struct, frozen=True):
    labels: list[str]
    bounds: list[float]
    amounts: list[int]


async def anomalies(queries: Queries, view: View, where: Mapping[str, str]) -> Judged:
    """The last day still runs: what it has not spent yet says nothing."""
    starts = starts_of(view)
    bounds = [*(at for _, at in starts), view.span()[1]]
    amounts = [costs.get((), 0) for costs in await queries.costs(bounds, (), where)]
    begun = next((day for day, amount in enumerate(amounts) if amount), len(amounts))  # before it nothing was usual
    days = _Days([label for label, _ in starts[begun:]], bounds[begun:], amounts[begun:])
    told = [flag for flag in flags(days.amounts, _FLOOR) if flag.score > 0 or flag.day < len(days.amounts) - 1]
    found = [
        Found(label=days.labels[flag.day], flag=flag, causes=await _causes(queries, days, flag, where))
        for flag in reversed(told[-_MOST_FLAGS:])
    ]
    parts = await _parts(queries, view, days, where)
    return Judged(days=list(zip(days.labels, days.amounts, strict=True)), found=found, parts=parts)


async def _parts(queries: Queries, view: View, days: _Days, where: Mapping[str, str]) -> list[FoundPart]:
    spent: dict[tuple[str, str], list[int]] = {}
    for dimension in _PARTS if days.amounts else ():
        first, last = days.bounds[0], days.bounds[-1]
        groups = await queries.usage([dimension], first, last, where, latencies=False, measures=COST)
        names = [row.group[dimension] for row in groups[:MOST_PARTS] if row.cost_nano]
        series = await queries.costs(days.bounds, [dimension], where, among=names)
        spent |= {(dimension, name): [costs.get((name,), 0) for costs in series] for name in names}
    return [
        FoundPart(
            label=days.labels[flag.day],
            dimension=dimension,
            name=name,
            flag=flag,
            drill=_drill(view, days.labels[flag.day], dimension, name),
        )
        for (dimension, name), flag in reversed(part_flags(spent, days.amounts, _FLOOR))
    ]


def _drill(view: View, label: str, dimension: str, name: str) -> str:
    """That day of the part alone, by what its spending was for, or whose it was."""
    alone = replace(view, where={**view.where, dimension: name})
    return alone.address(**{"by": "model" if dimension == "key" else "key", "from": label, "to": label})


async def _causes(queries: Queries, days: _Days, flag: Flag, where: Mapping[str, str]) -> list[tuple[str, str, int]]:
    bounds = days.bounds[max(0, flag.day - _USUAL_DAYS) : flag.day + 2]
    reasons: list[tuple[str, str, int]] = []
    for dimension in _CAUSES:
        history = [
            {name: cost for (name,), cost in costs.items()} for costs in await queries.costs(bounds, [dimension], where)
        ]
        moved = causes(history[-1], _usual(history[:-1]), most=2)
        reasons += [(dimension, name, change) for name, change in moved]
    return reasons


def _usual(history: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The median day of each group, days without it included."""
    names = {name for day in history for name in day}
    return {name: round(median(day.get(name, 0) for day in history)) for name in names}
