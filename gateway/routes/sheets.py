"""`/ui/csv/{table}`: every table of the dashboard as a spreadsheet, for whoever may see the page it stands on.

Knows: the columns of each. Does not know: how CSV is written (`gateway.web.sheet`), SQL.
"""

from decimal import Decimal

from litestar import Response, get
from litestar.params import FromPath
from litestar.types import ControllerRouterHandler

from gateway.auth import require
from gateway.db.queries import Queries
from gateway.errors import NotFound
from gateway.routes import budgets, keys
from gateway.routes.cache_stats import statistics
from gateway.routes.dashboard import ChosenPeriod, span_of
from gateway.routes.requests import as_csv as requests_csv
from gateway.routes.usage import as_csv as usage_csv
from gateway.routes.usage import reach, shown
from gateway.routes.visitor import Visitor, VisitorDep, page_router
from gateway.web.reads import series
from gateway.web.sheet import Cell, csv_bytes
from policies.money import NANO_PER_USD

_MOST_ROWS = 1_000
_FILTERS = ("model", "team", "key", "cache")


def _download(columns: list[str], rows: list[list[Cell]], name: str) -> Response[bytes]:
    headers = {"content-disposition": f'attachment; filename="nearhit-{name}.csv"', "x-content-type-options": "nosniff"}
    return Response(csv_bytes(columns, rows), media_type="text/csv", headers=headers)


def _usd(nano: int) -> Decimal:
    return Decimal(nano) / NANO_PER_USD


async def _requests(visitor: Visitor) -> Response[bytes]:
    asked = visitor.request.query_params
    where = {name: value for name in _FILTERS if (value := asked.get(name))}
    queries = Queries(visitor.services.database)
    failed = asked.get("failed") == "true"
    return requests_csv(await queries.recent_requests(_MOST_ROWS, None, {**where, **reach(visitor.principal)}, failed))


async def _keys(visitor: Visitor) -> Response[bytes]:
    require(visitor.principal, "operator")
    now = visitor.services.now()
    columns = ["id", "name", "prefix", "team", "project", "role", "state", "created", "expires", "last_used"]
    found = [keys.view(row, now) for row in await visitor.services.keyring.list(visitor.principal)]
    return _download(columns, [[getattr(row, name) for name in columns] for row in found], "keys")


async def _budgets(visitor: Visitor) -> Response[bytes]:
    columns = ["scope", "mode", "window", "timezone", "limit", "confirmed", "estimated", "held", "remaining"]
    rows: list[list[Cell]] = []
    for state in await budgets.visible(visitor.services, visitor.principal):
        amounts = (state.limit_nano, state.confirmed_nano, state.estimated_nano, state.held_nano, state.remaining_nano)
        rows.append([state.scope, state.mode, state.window, state.timezone, *map(_usd, amounts)])
    return _download([*columns[:4], *(f"{name}_usd" for name in columns[4:])], rows, "budgets")


async def _cache(visitor: Visitor) -> Response[bytes]:
    columns = ["team", "project", "model", "entries", "lookups", "hits_exact", "hits_semantic", "hit_rate", "kept"]
    found = (await statistics(visitor.services, visitor.principal)).data
    return _download(columns, [[getattr(row, name) for name in columns] for row in found], "cache")


async def _usage(visitor: Visitor, period: ChosenPeriod, dimension: str) -> Response[bytes]:
    span = span_of(period, visitor.services.now())
    queries = Queries(visitor.services.database)
    rows = await queries.usage([dimension], span.start, span.end, reach(visitor.principal))
    return usage_csv([shown(row) for row in rows], [dimension], f"nearhit-{dimension}")


async def _series(visitor: Visitor, period: ChosenPeriod) -> Response[bytes]:
    span = span_of(period, visitor.services.now())
    buckets = await series(Queries(visitor.services.database), span.start, span.end, reach(visitor.principal))
    columns = ["start", "exact", "semantic", "shared", "fresh", "refused", "cost_usd", "saved_usd"]
    rows: list[list[Cell]] = [
        [b.label, b.exact, b.semantic, b.shared, b.fresh, b.refused, _usd(b.cost_nano), _usd(b.saved_nano)]
        for b in buckets
    ]
    return _download(columns, rows, "series")


@get("/csv/{table:str}", opt={"role": "viewer"})
async def sheet(visitor: VisitorDep, table: FromPath[str], period: ChosenPeriod = "month") -> Response[bytes]:
    """One table. Raises NotFound for a name that is none."""
    plain = {"requests": _requests, "keys": _keys, "budgets": _budgets, "cache": _cache}
    if table in plain:
        return await plain[table](visitor)
    if table in ("model", "team"):
        return await _usage(visitor, period, table)
    if table == "series":
        return await _series(visitor, period)
    raise NotFound(f"There is no table {table[:40]!r}.", code="not_found")


def route_handlers() -> list[ControllerRouterHandler]:
    return [page_router("/ui", [sheet])]
