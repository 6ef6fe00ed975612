"""`/ui/csv/{table}`: every table of the dashboard as a spreadsheet, for whoever may see the page it stands on.

Knows: the columns of each. Does not know: how CSV is written (`gateway.web.sheet`), SQL.
"""

from decimal import Decimal
from typing import Any

from litestar import Response, get
from litestar.params import FromPath
from litestar.response import Stream
from litestar.types import ControllerRouterHandler

from gateway.auth import require
from gateway.db.queries import Queries
from gateway.errors import NotFound
from gateway.routes import budgets, keys
from gateway.routes.cache_stats import statistics
from gateway.routes.console import asked_for
from gateway.routes.dashboard import ChosenPeriod, span_of
from gateway.routes.request_export import download, newest_first
from gateway.routes.usage import as_csv as usage_csv
from gateway.routes.usage import reach, shown
from gateway.routes.visitor import Visitor, VisitorDep, page_router, spreadsheet
from gateway.web.reads import series
from gateway.web.sheet import Cell
from policies.money import dollars


async def _requests(visitor: Visitor) -> Stream:
    """Everything the view has, however many pages of it there are."""
    chosen = asked_for(visitor, failed=visitor.request.query_params.get("failed") == "true")
    queries = Queries(visitor.services.database)
    return download(newest_first(queries, chosen, reach(visitor.principal)))


async def _keys(visitor: Visitor) -> Response[bytes]:
    require(visitor.principal, "operator")
    now = visitor.services.now()
    columns = ["id", "name", "prefix", "team", "project", "role", "state", "created", "expires", "last_used"]
    found = [keys.view(row, now) for row in await visitor.services.keyring.list(visitor.principal)]
    return spreadsheet(columns, [[getattr(row, name) for name in columns] for row in found], "keys")


_BUDGET_COLUMNS = (
    *("scope", "mode", "window", "timezone", "limit_usd", "spent_confirmed_usd", "spent_estimated_usd", "opening_usd"),
    *("held_usd", "remaining_usd", "window_end", "rpm", "tpm", "on_exhausted", "degrade_at", "version", "updated_by"),
)
_FORECAST_COLUMNS = ("at_end_usd", "low_usd", "high_usd", "runs_out", "runs_out_earliest", "runs_out_latest")


async def _budgets(visitor: Visitor) -> Response[bytes]:
    rows: list[list[Cell]] = [
        [_number(name, getattr(found, name)) for name in _BUDGET_COLUMNS]
        + [_number(name, getattr(found.forecast, name, None)) for name in _FORECAST_COLUMNS]
        for found in await budgets.views(visitor.services, visitor.principal)
    ]
    return spreadsheet([*_BUDGET_COLUMNS, *(f"forecast_{name}" for name in _FORECAST_COLUMNS)], rows, "budgets")


def _number(name: str, value: Cell) -> Cell:
    """Amounts are text in JSON and numbers in a sheet."""
    return Decimal(value) if name.endswith("_usd") and isinstance(value, str) else value


async def _cache(visitor: Visitor) -> Response[bytes]:
    columns = ["team", "project", "model", "entries", "lookups", "hits_exact", "hits_semantic"]
    columns += ["hits_shared", "hit_rate", "kept"]
    found = (await statistics(visitor.services, visitor.principal)).data
    return spreadsheet(columns, [[getattr(row, name) for name in columns] for row in found], "cache")


async def _usage(visitor: Visitor, period: ChosenPeriod, dimension: str) -> Response[bytes]:
    span = span_of(visitor.services, period)
    queries = Queries(visitor.services.database)
    rows = await queries.usage([dimension], span.start, span.end, reach(visitor.principal))
    return usage_csv([shown(row) for row in rows], [dimension], f"nearhit-{dimension}")


async def _series(visitor: Visitor, period: ChosenPeriod) -> Response[bytes]:
    span = span_of(visitor.services, period)
    buckets = await series(Queries(visitor.services.database), span.start, span.end, reach(visitor.principal))
    columns = ["start", "exact", "semantic", "shared", "fresh", "refused", "cost_usd", "saved_usd"]
    rows: list[list[Cell]] = [
        [b.label, b.exact, b.semantic, b.shared, b.fresh, b.refused, dollars(b.cost_nano), dollars(b.saved_nano)]
        for b in buckets
    ]
    return spreadsheet(columns, rows, "series")


@get("/csv/{table:str}", opt={"role": "viewer"})
async def sheet(visitor: VisitorDep, table: FromPath[str], period: ChosenPeriod = "month") -> Response[Any]:
    """One table. Raises NotFound for a name that is none."""
    await visitor.services.ledger.flush()  # a sheet is of the same moment as its page
    if table == "requests":
        return await _requests(visitor)
    plain = {"keys": _keys, "budgets": _budgets, "cache": _cache}
    if table in plain:
        return await plain[table](visitor)
    if table in ("model", "team"):
        return await _usage(visitor, period, table)
    if table == "series":
        return await _series(visitor, period)
    raise NotFound(f"There is no table {table[:40]!r}.", code="not_found")


def route_handlers() -> list[ControllerRouterHandler]:
    return [page_router("/ui", [sheet])]
