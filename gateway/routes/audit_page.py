"""`/ui/audit`: who changed what, page by page, and the button that checks the chain.

Knows: filters and the page. Does not know: how rows are chained (`gateway.audit`).
"""

from typing import Annotated
from urllib.parse import urlencode

from litestar import Response, get, post
from litestar.params import QueryParameter
from litestar.types import ControllerRouterHandler

from gateway.audit import Verdict, verify
from gateway.routes.audit import LineId, newest, of_every_team
from gateway.routes.visitor import Visitor, VisitorDep, page_router

_PAGE = 50
Text = Annotated[str, QueryParameter(max_length=200)]


async def _page(
    visitor: Visitor, asked: dict[str, str], before: int | None, verdict: Verdict | None
) -> Response[bytes]:
    lines = await newest(visitor.services, _PAGE + 1, before=before, **asked)
    older = None
    if len(lines) > _PAGE:
        older = "/ui/audit?" + urlencode({**{k: v for k, v in asked.items() if v}, "before": lines[_PAGE - 1].id})
    return visitor.page("audit.html", lines=lines[:_PAGE], asked=asked, older=older, verdict=verdict)


@get("/audit", opt={"role": "admin"})
async def audit_page(
    visitor: VisitorDep, action: Text = "", actor: Text = "", target: Text = "", before: LineId = None
) -> Response[bytes]:
    """Changes by filter, newest first."""
    of_every_team(visitor.principal)
    return await _page(visitor, {"action": action, "actor": actor, "target": target}, before, None)


@post("/audit/verify", opt={"role": "admin"}, status_code=200)
async def verify_page(visitor: VisitorDep) -> Response[bytes]:
    """The first page again, with the verdict above it."""
    of_every_team(visitor.principal)
    await visitor.form()
    verdict = await verify(visitor.services)
    return await _page(visitor, {"action": "", "actor": "", "target": ""}, None, verdict)


def route_handlers() -> list[ControllerRouterHandler]:
    return [page_router("/ui", [audit_page, verify_page])]
