"""`/ui/spend`: what was spent, by whom and on what, beside the period before; every view is an address with its CSV.

Knows: which links and columns the page has. Does not know: SQL, how a view is read (`gateway.routes.spend_view`).
"""

from datetime import date, datetime, timedelta
from functools import partial
from zoneinfo import ZoneInfo

from litestar import Response, get
from litestar.types import ControllerRouterHandler

from gateway.auth import ORG_WIDE, may
from gateway.db.kept import kept_from
from gateway.db.queries import Queries
from gateway.db.tag_names import tag_names
from gateway.errors import InvalidRequest
from gateway.routes.requests_view import listed
from gateway.routes.spend_view import DIMENSIONS, Spending, View, first_kept, read_view, spending
from gateway.routes.usage import reach
from gateway.routes.visitor import Visitor, VisitorDep, page_router, spreadsheet
from gateway.web.sheet import Cell
from policies.money import dollars

_SHOWN = 200


async def _seen(visitor: Visitor) -> tuple[View, Spending, float]:
    """The view that was asked for, within the reader's own team, and from when on sums are kept."""
    services = visitor.services
    await services.ledger.catch_up()
    asked = {str(name): str(value) for name, value in visitor.request.query_params.items()}
    since = await kept_from(services.database)
    view = read_view(asked, services.now(), since)
    mine = reach(visitor.principal)
    if "team" in mine and view.where.get("team", mine["team"]) != mine["team"]:
        raise InvalidRequest("Your key sees its own team's spending only.", param="team")
    try:
        return view, await spending(Queries(services.database), view, {**view.where, **mine}, since), since
    except ValueError as error:  # of dimensions that are kept no more so far back
        raise InvalidRequest(str(error)) from error


def presets(view: View, now: float, since: float) -> list[tuple[str, str, bool]]:
    """(name, address, chosen) of the usual periods, as far as all of them is kept (from the instant `since` on)."""
    today = datetime.fromtimestamp(now, ZoneInfo(view.zone)).date()
    kept = first_kept(since, view.zone)
    last_month = today.replace(day=1) - timedelta(days=1)
    spans: list[tuple[str, date, date]] = [
        ("7 days", today - timedelta(days=6), today),
        ("30 days", today - timedelta(days=29), today),
        ("This month", today.replace(day=1), today),
        ("Last month", last_month.replace(day=1), last_month),
        ("90 days", today - timedelta(days=89), today),
    ]
    return [
        (
            name,
            view.address(**{"from": first.isoformat(), "to": last.isoformat()}),
            (first, last) == (view.first, view.last),
        )
        for name, first, last in spans
        if first >= kept
    ]


def _requests_address(view: View, group: dict[str, str]) -> str:
    """The list of the requests of a row."""
    return listed({**view.where, **group}, (view.first, view.last), view.zone)


@get("/spend", opt={"role": "viewer"})
async def spend(visitor: VisitorDep) -> Response[bytes]:
    """Spending by one or two dimensions, per day, beside the period before."""
    view, found, since = await _seen(visitor)
    of_everybody = visitor.principal.team == ORG_WIDE  # the names of other teams' tags are theirs
    tags = await tag_names(visitor.services.database) if of_everybody else []
    return visitor.page(
        "spend.html",
        view=view,
        found=found,
        lines=found.lines[:_SHOWN],
        more=max(0, len(found.lines) - _SHOWN),
        presets=presets(view, visitor.services.now(), since),
        dimensions=DIMENSIONS,
        tags=[f"tag:{name}" for name in tags],
        filters=[(name, value, view.without(name)) for name, value in view.where.items()],
        focus=view.month if may(visitor.principal, "finance") else None,
        requests_of=partial(_requests_address, view),
    )


@get("/spend.csv", opt={"role": "viewer"})
async def spend_csv(visitor: VisitorDep) -> Response[bytes]:
    """All rows of exactly this view."""
    view, found, _ = await _seen(visitor)
    columns = [*view.groups, "requests", "hits", "prompt_tokens", "completion_tokens", "cost_usd", "estimated_usd"]
    columns += ["saved_usd", "net_saved_usd", "cost_before_usd"]
    rows: list[list[Cell]] = [
        [
            *line.row.group.values(),
            line.row.requests,
            line.row.hits,
            line.row.prompt,
            line.row.completion,
            dollars(line.row.cost_nano),
            dollars(line.row.estimated_nano),
            dollars(line.row.saved_nano),
            dollars(line.row.net_saved_nano),
            None if found.before is None else dollars(line.before or 0),
        ]
        for line in found.lines
    ]
    return spreadsheet(columns, rows, f"spend-{view.first}-{view.last}")


def route_handlers() -> list[ControllerRouterHandler]:
    return [page_router("/ui", [spend, spend_csv])]
