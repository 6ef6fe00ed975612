"""`/ui/statements`: every month, what each team owes for one, closing it; the page of a month is made to be printed.

Knows: forms and links. Does not know: how a month is added up or closed (`gateway.ledger`), how costs are split.
"""

from litestar import Response, get, post
from litestar.params import FromPath
from litestar.types import ControllerRouterHandler

from gateway.auth import ORG_WIDE, may, require
from gateway.errors import GatewayError, InvalidRequest, NotAllowed
from gateway.ledger.closing import AlreadyClosed, Months, NotClosable
from gateway.ledger.grouping import TooMany
from gateway.ledger.statement import month, months, statement
from gateway.routes import months as month_routes
from gateway.routes.months import named, own_team, view
from gateway.routes.statements import statement_csv, statement_view
from gateway.routes.visitor import Visitor, VisitorDep, page_router

_LONGEST_REASON = 500


@get("/statements", opt={"role": "viewer"})
async def statements(visitor: VisitorDep) -> Response[bytes]:
    """The months, newest first."""
    services = visitor.services
    await services.ledger.catch_up()
    found = await months(services.database, services.now(), own_team(visitor.principal))
    return visitor.page("statements.html", months=[view(one) for one in found], may_share=_may_share(visitor))


@get("/statements/{name:str}", opt={"role": "viewer"})
async def month_page(visitor: VisitorDep, name: FromPath[str]) -> Response[bytes]:
    """One month's statements, and what keeps it from being closed."""
    return await _page(visitor, named(name))


async def _page(visitor: Visitor, name: str, *, problem: str = "") -> Response[bytes]:
    services, principal = visitor.services, visitor.principal
    await services.ledger.report()
    team = own_team(principal, visitor.request.query_params.get("team"))
    found = statement_view(await statement(services.database, name, services.now(), team))
    shown = view(await month(services.database, name, services.now(), team))
    may_close = may(principal, "finance") and principal.team == ORG_WIDE and shown.state != "sealed"
    return visitor.page(
        "statement.html",
        status=409 if problem else 200,
        month=shown,
        found=found,
        team=team,
        blockers=await Months(services.database, now=services.ledger.instant).blockers(name) if may_close else [],
        may_close=may_close,
        may_force=may_close and may(principal, "operator"),
        may_share=_may_share(visitor),
        problem=problem,
    )


def _may_share(visitor: Visitor) -> bool:
    return may(visitor.principal, "finance") and visitor.principal.team == ORG_WIDE


@get("/statements/{name:str}/sheet.csv", opt={"role": "viewer"})
async def month_csv(visitor: VisitorDep, name: FromPath[str]) -> Response[bytes]:
    """The statements of a month, line by line."""
    services = visitor.services
    team = own_team(visitor.principal, visitor.request.query_params.get("team"))
    await services.ledger.catch_up()
    found = statement_view(await statement(services.database, named(name), services.now(), team))
    headers = {"content-disposition": f'attachment; filename="nearhit-statement-{name}.csv"'}
    return Response(statement_csv(found), media_type="text/csv", headers=headers)


@post("/statements/{name:str}/close", opt={"role": "finance"}, status_code=200)
async def close(visitor: VisitorDep, name: FromPath[str]) -> Response[bytes]:
    """Seals the month. Raises NotAllowed; what keeps it open is told on the page."""
    fields = await visitor.form()
    if visitor.principal.team != ORG_WIDE:
        raise NotAllowed("Closing a month concerns every team; your key is bound to one.", code="beyond_team")
    reason = fields.get("reason", "")[:_LONGEST_REASON] or None
    if reason is not None:
        require(visitor.principal, "operator")
    try:
        await _close(visitor, named(name), reason)
    except GatewayError as error:
        return await _page(visitor, name, problem=error.message)
    return visitor.go(f"/ui/statements/{name}")


async def _close(visitor: Visitor, name: str, reason: str | None) -> None:
    await visitor.services.ledger.report()
    try:
        await month_routes.close(visitor, name, reason)
    except (NotClosable, AlreadyClosed, TooMany) as error:
        raise InvalidRequest(f"{name} cannot be closed: {error}.", code="month_not_closable") from error


def route_handlers() -> list[ControllerRouterHandler]:
    return [page_router("/ui", [statements, month_page, month_csv, close])]
