"""`/ui/anomalies`: days on which spending was out of line, and which keys, models and teams made the difference.

Knows: how many days are looked at. Does not know: what is out of line (`policies.anomalies`), SQL.
"""

from statistics import median

from litestar import Response, get
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from gateway.db.queries import Queries
from gateway.db.rows import UsageRow
from gateway.routes.spend_view import View, read_view, starts_of
from gateway.routes.usage import reach
from gateway.routes.visitor import Visitor, VisitorDep, page_router, spreadsheet
from gateway.web.sheet import Cell
from policies.anomalies import LEAST, THRESHOLD, Flag, causes, flags
from policies.money import NANO_PER_USD, dollars

_DAYS = 90
_FLOOR = NANO_PER_USD // 100  # a cent more or less is nothing to look at
_CAUSES = ("key", "model", "team")
_MOST_FLAGS = 30
_USUAL_DAYS = 28
_SECONDS = 86_400.0


class Found(Struct, frozen=True, kw_only=True):
    """`causes`: (dimension, name, nano-USD more or less than usual)."""

    label: str
    flag: Flag
    causes: list[tuple[str, str, int]]


async def anomalies(queries: Queries, view: View, where: dict[str, str]) -> tuple[list[tuple[str, int]], list[Found]]:
    """(label, nano-USD) of every day, and the days out of line, newest first. The last day still runs: what it has not
    spent yet says nothing."""
    starts = starts_of(view)
    bounds = [*(at for _, at in starts), view.span()[1]]
    amounts = [sum(row.cost_nano for row in groups) for groups in await queries.series(bounds, (), where)]
    begun = next((day for day, amount in enumerate(amounts) if amount), len(amounts))  # before it nothing was usual
    starts, bounds, amounts = starts[begun:], bounds[begun:], amounts[begun:]
    found: list[Found] = []
    told = [flag for flag in flags(amounts, _FLOOR) if flag.score > 0 or flag.day < len(amounts) - 1]
    for flag in reversed(told[-_MOST_FLAGS:]):
        since = max(0, flag.day - _USUAL_DAYS)
        reasons: list[tuple[str, str, int]] = []
        for dimension in _CAUSES:
            history = await queries.series(bounds[since : flag.day + 2], [dimension], where)
            moved = causes(_spent(history[-1], dimension), _usual(history[:-1], dimension), most=2)
            reasons += [(dimension, name, change) for name, change in moved]
        found.append(Found(label=starts[flag.day][0], flag=flag, causes=reasons))
    return [(label, amount) for (label, _), amount in zip(starts, amounts, strict=True)], found


def _spent(rows: list[UsageRow], dimension: str) -> dict[str, int]:
    return {row.group[dimension]: row.cost_nano for row in rows}


def _usual(history: list[list[UsageRow]], dimension: str) -> dict[str, int]:
    """The median day of each group, days without it included."""
    days = [_spent(rows, dimension) for rows in history]
    names = {name for day in days for name in day}
    return {name: round(median(day.get(name, 0) for day in days)) for name in names}


async def _seen(visitor: Visitor) -> tuple[View, list[tuple[str, int]], list[Found]]:
    services = visitor.services
    await services.ledger.catch_up()
    now = services.now()
    first = read_view({}, now - (_DAYS - 1) * _SECONDS).last
    view = read_view({"from": first.isoformat()}, now)
    return view, *await anomalies(Queries(services.database), view, reach(visitor.principal))


@get("/anomalies", opt={"role": "viewer"})
async def anomalies_page(visitor: VisitorDep) -> Response[bytes]:
    """The last ninety days, those out of line, and what made the difference."""
    view, days, found = await _seen(visitor)
    flagged = {item.label: item.flag for item in found}
    return visitor.page(
        "anomalies.html", days=days, found=found, flagged=flagged, threshold=THRESHOLD, least=LEAST, view=view
    )


@get("/anomalies.csv", opt={"role": "viewer"})
async def anomalies_csv(visitor: VisitorDep) -> Response[bytes]:
    """Every day; what was expected and the score only of those out of line."""
    view, days, found = await _seen(visitor)
    flagged = {item.label: item.flag for item in found}
    rows: list[list[Cell]] = []
    for label, amount in days:
        flag = flagged.get(label)
        told: list[Cell] = [None, None] if flag is None else [dollars(flag.expected), flag.score]
        rows.append([label, dollars(amount), flag is not None, *told])
    columns = ["day", "cost_usd", "out_of_line", "expected_usd", "score"]
    return spreadsheet(columns, rows, f"anomalies-{view.first}-{view.last}")


def route_handlers() -> list[ControllerRouterHandler]:
    return [page_router("/ui", [anomalies_page, anomalies_csv])]
