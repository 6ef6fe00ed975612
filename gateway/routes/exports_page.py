"""`/ui/exports`: files for finance, made now, and what is exported by itself with how that went.

Knows: which files there are. Does not know: how they are written (`gateway.exports`).
"""

from typing import Annotated, Any, Literal

from litestar import Response, get
from litestar.params import FromPath, QueryParameter
from litestar.response import Stream
from litestar.types import ControllerRouterHandler

from gateway.auth import ORG_WIDE
from gateway.exports.columns import Version
from gateway.exports.focus_file import Wanted
from gateway.ledger.statement import months
from gateway.routes.exports import entries_answer, focus_answer, scheduled
from gateway.routes.months import named, own_team
from gateway.routes.visitor import VisitorDep, page_router


@get("/exports", opt={"role": "finance"})
async def exports_page(visitor: VisitorDep) -> Response[bytes]:
    """One row per month with its files, and the scheduled exports of the configuration."""
    services = visitor.services
    await services.ledger.catch_up()
    found = await months(services.database, services.now(), own_team(visitor.principal))
    return visitor.page(
        "exports.html",
        months=[(one.name, one.state, one.sums.entries) for one in found],
        scheduled=await scheduled(services) if visitor.principal.team == ORG_WIDE else None,
    )


@get("/exports/focus/{month:str}", opt={"role": "finance"})
async def focus_file(
    visitor: VisitorDep,
    month: FromPath[str],
    form: Annotated[Literal["csv", "parquet"], QueryParameter(name="format")] = "csv",
    version: Annotated[Version, QueryParameter()] = "1.2",
) -> Response[Any]:
    """The FOCUS file of a month."""
    wanted = Wanted(month=named(month), form=form, version=version, team=own_team(visitor.principal), tags=True)
    return await focus_answer(visitor.services, wanted)


@get("/exports/entries/{month:str}", opt={"role": "finance"})
async def entries_file(
    visitor: VisitorDep,
    month: FromPath[str],
    form: Annotated[Literal["csv", "jsonl"], QueryParameter(name="format")] = "csv",
) -> Stream:
    """Every entry booked in a month."""
    return await entries_answer(visitor.services, named(month), own_team(visitor.principal), form)


def route_handlers() -> list[ControllerRouterHandler]:
    return [page_router("/ui", [exports_page, focus_file, entries_file])]
