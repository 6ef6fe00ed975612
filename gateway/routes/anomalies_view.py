"""What is out of line on `/ui/anomalies`: days as a whole, and the dearest keys and models on each.

Knows: how many days, keys and models are looked at, and which questions that takes. Does not know: what is out of line
(`policies.anomalies`), pages, SQL.
"""

from collections.abc import Iterable, Mapping, Sequence
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
_MOST_CAUSES = 2  # of each dimension
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
    """Of UTC, of which there are sums: their names, where they begin (and the last one ends), what each cost."""

    labels: list[str]
    bounds: list[float]
    amounts: list[int]


async def anomalies(queries: Queries, view: View, where: Mapping[str, str]) -> Judged:
    """Of a view of days in UTC. The last day still runs: what it has not spent yet says nothing."""
    days = await _days(queries, view, where)
    told = [flag for flag in flags(days.amounts, _FLOOR) if flag.score > 0 or flag.day < len(days.amounts) - 1]
    told = told[-_MOST_FLAGS:]
    spent: dict[str, dict[str, list[int]]] = {}
    judged: dict[tuple[str, str], list[int]] = {}
    for dimension in _CAUSES if days.amounts else ():
        groups = await queries.usage(
            [dimension], days.bounds[0], days.bounds[-1], where, latencies=False, measures=COST
        )
        dearest = [row.group[dimension] for row in groups[:MOST_PARTS] if row.cost_nano]
        names = {*dearest, *(await _dear_on(queries, days, told, dimension, where) if len(groups) > MOST_PARTS else ())}
        spent[dimension] = await _spent(queries, days, dimension, names, where)
        if dimension in _PARTS:
            judged |= {(dimension, name): spent[dimension][name] for name in dearest}
    return Judged(
        days=list(zip(days.labels, days.amounts, strict=True)),
        found=[Found(label=days.labels[flag.day], flag=flag, causes=_causes(spent, flag.day)) for flag in told[::-1]],
        parts=[
            _found_part(view, days, part, flag) for part, flag in reversed(part_flags(judged, days.amounts, _FLOOR))
        ],
    )


async def _days(queries: Queries, view: View, where: Mapping[str, str]) -> _Days:
    """From the first one on that cost anything: before it nothing was usual."""
    starts = starts_of(view)
    bounds = [*(at for _, at in starts), view.span()[1]]
    (costs,) = await queries.costs((bounds[0], bounds[-1]), ["day"], where)
    amounts = [costs.get((label,), 0) for label, _ in starts]
    begun = next((day for day, amount in enumerate(amounts) if amount), len(amounts))
    return _Days([label for label, _ in starts[begun:]], bounds[begun:], amounts[begun:])


async def _dear_on(
    queries: Queries, days: _Days, told: Sequence[Flag], dimension: str, where: Mapping[str, str]
) -> list[str]:
    """The dearest groups of the days out of line, which need not be among the dearest of all days."""
    found: list[str] = []
    for flag in told:
        (costs,) = await queries.costs(days.bounds[flag.day : flag.day + 2], [dimension], where)
        found += [name for (name,) in list(costs)[:_MOST_CAUSES]]
    return found


async def _spent(
    queries: Queries, days: _Days, dimension: str, names: Iterable[str], where: Mapping[str, str]
) -> dict[str, list[int]]:
    """What each of the groups cost on each day."""
    (costs,) = await queries.costs((days.bounds[0], days.bounds[-1]), [dimension, "day"], where, among=sorted(names))
    return {name: [costs.get((name, label), 0) for label in days.labels] for name in names}


def _found_part(view: View, days: _Days, part: tuple[str, str], flag: Flag) -> FoundPart:
    """With that day of the part alone, by what its spending was for, or whose it was."""
    dimension, name = part
    label = days.labels[flag.day]
    alone = replace(view, where={**view.where, dimension: name})
    drill = alone.address(**{"by": "model" if dimension == "key" else "key", "from": label, "to": label})
    return FoundPart(label=label, dimension=dimension, name=name, flag=flag, drill=drill)


def _causes(spent: Mapping[str, Mapping[str, Sequence[int]]], day: int) -> list[tuple[str, str, int]]:
    """What moved most against the median of the days before."""
    reasons: list[tuple[str, str, int]] = []
    for dimension in _CAUSES:
        today = {name: amounts[day] for name, amounts in spent[dimension].items()}
        usual = {
            name: round(median(amounts[max(0, day - _USUAL_DAYS) : day])) for name, amounts in spent[dimension].items()
        }
        reasons += [(dimension, name, change) for name, change in causes(today, usual, most=_MOST_CAUSES)]
    return reasons
