"""`/ui/policies`: what this gateway was told to do: routes, reuse, limits, roles, and every setting with its source.

Knows: which settings are policies, and the words for them. Does not know: how any of them is carried out.
"""

from litestar import Response, get
from litestar.types import ControllerRouterHandler

from gateway.auth import ORG_WIDE
from gateway.errors import NotAllowed
from gateway.routes.budgets import visible
from gateway.routes.visitor import VisitorDep, page_router
from gateway.settings_shown import every


@get("/policies", opt={"role": "operator"})
async def policies_page(visitor: VisitorDep) -> Response[bytes]:
    """The configuration in force."""
    if visitor.principal.team != ORG_WIDE:
        raise NotAllowed("The configuration covers every team; this key is bound to one.", code="beyond_team")
    services = visitor.services
    settings = services.settings
    return visitor.page(
        "policies.html",
        settings=settings,
        models=settings.models,
        budgets=await visible(services, visitor.principal),
        shown=every(settings, settings.file),
    )


def route_handlers() -> list[ControllerRouterHandler]:
    return [page_router("/ui", [policies_page])]
