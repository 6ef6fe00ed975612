"""`POST /api/v1/config/reload`: the configuration file read again, without a stream being dropped.

Knows: the request and its answer. Does not know: what is put in force and how (`gateway.reloading`).
"""

from litestar import post
from litestar.types import ControllerRouterHandler
from msgspec.structs import asdict

from gateway.audit import Change, note
from gateway.auth import ORG_WIDE
from gateway.errors import Conflict, NotAllowed
from gateway.reloading import Reloaded
from gateway.routes.access import CallerDep, control_router


@post("/reload", opt={"role": "admin"}, summary="Read the configuration file again", status_code=200)
async def reload(caller: CallerDep) -> Reloaded:
    """Puts changed providers, models and budgets in force in every worker; names what needs a restart.

    A file that cannot be used is a 400 that says why, and changes nothing.
    """
    if caller.principal.team != ORG_WIDE:
        raise NotAllowed("This concerns everyone; this key is bound to one team.", code="beyond_team")
    reloader = caller.services.reloader
    if reloader is None:
        raise Conflict("No gateway runs here that could read its configuration again.", code="no_configuration")
    told = await reloader.reload(spread=True)
    if told.changed or told.needs_restart:
        change = Change("config.reload", "configuration", after=asdict(told))
        await note(caller.services, caller.principal, change, ip=caller.ip)
    return told


def route_handlers() -> list[ControllerRouterHandler]:
    return [control_router("/api/v1/config", [reload], tags=["About"])]
