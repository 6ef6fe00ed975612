"""`/ui/anomalies`: days on which spending was out of line, of all together, of a key and of a model.

Knows: the page and its sheets. Does not know: which days are looked at (`gateway.routes.anomalies_view`), what is out
of line (`policies.anomalies`), SQL.
"""

from litestar import Response, get
from litestar.types import ControllerRouterHandler

from gateway.db.queries import Queries
from gateway.routes.anomalies_view import DAYS, MOST_PARTS, Judged, anomalies
from gateway.routes.spend_view import View, read_view
from gateway.routes.usage import reach
from gateway.routes.visitor import Visitor, VisitorDep, page_router, spreadsheet
from gateway.web.sheet import Cell
from policies.anomalies import LEAST, PART_LEAST, PART_TIMES, THRESHOLD
from policies.money import dollars

_MOST_SHOWN = 50
_SECONDS = 86_400.0


async def _seen(visitor: Visitor) -> tuple[View, Judged]:
    services = visitor.services
    await services.ledger.catch_up()
    now = services.now()
    first = read_view({}, now - (DAYS - 1) * _SECONDS).last
    view = read_view({"from": first.isoformat()}, now)
    return view, await anomalies(Queries(services.database), view, reach(visitor.principal))


@get("/anomalies", opt={"role": "viewer"})
async def anomalies_page(visitor: VisitorDep) -> Response[bytes]:
    """The last ninety days, those out of line, what made the difference, and keys and models that were on their own."""
    view, judged = await _seen(visitor)
    return visitor.page(
        "anomalies.html",
        days=judged.days,
        found=judged.found,
        flagged={item.label: item.flag for item in judged.found},
        parts=judged.parts[:_MOST_SHOWN],
        more=max(0, len(judged.parts) - _MOST_SHOWN),
        threshold=THRESHOLD,
        least=LEAST,
        most_parts=MOST_PARTS,
        part_least=PART_LEAST,
        part_times=PART_TIMES,
        view=view,
    )


@get("/anomalies.csv", opt={"role": "viewer"})
async def anomalies_csv(visitor: VisitorDep) -> Response[bytes]:
    """Every day; what was expected and the score only of those out of line."""
    view, judged = await _seen(visitor)
    flagged = {item.label: item.flag for item in judged.found}
    rows: list[list[Cell]] = []
    for label, amount in judged.days:
        flag = flagged.get(label)
        told: list[Cell] = [None, None] if flag is None else [dollars(flag.expected), flag.score]
        rows.append([label, dollars(amount), flag is not None, *told])
    columns = ["day", "cost_usd", "out_of_line", "expected_usd", "score"]
    return spreadsheet(columns, rows, f"anomalies-{view.first}-{view.last}")


@get("/anomalies/parts.csv", opt={"role": "viewer"})
async def anomalies_parts_csv(visitor: VisitorDep) -> Response[bytes]:
    """Every day on which a key or a model was out of line, newest first: no sums, a request has both."""
    view, judged = await _seen(visitor)
    rows: list[list[Cell]] = [
        [item.label, item.dimension, item.name, dollars(item.flag.amount), dollars(item.flag.expected), item.flag.score]
        for item in judged.parts
    ]
    columns = ["day", "dimension", "name", "cost_usd", "expected_usd", "score"]
    return spreadsheet(columns, rows, f"anomalies-parts-{view.first}-{view.last}")


def route_handlers() -> list[ControllerRouterHandler]:
    return [page_router("/ui", [anomalies_page, anomalies_csv, anomalies_parts_csv])]
