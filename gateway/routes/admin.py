"""The control plane put together, what it says about itself, and its description at `/docs`.

Knows: every module of routes and that each handler must declare a role. Does not know: what they do.
"""

import re
from typing import Any

from litestar import Litestar, Request, Router, get
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin, OpenAPIRenderPlugin
from litestar.routes import HTTPRoute
from litestar.serialization import encode_json
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from gateway import __version__
from gateway.auth import ROLES
from gateway.call import Role
from gateway.db.migrate import current_of
from gateway.routes import (
    alerts,
    anomalies_page,
    audit,
    audit_page,
    budgets,
    budgets_page,
    cache_admin,
    cache_page,
    cache_tune,
    cache_warm,
    calculator_page,
    configuration,
    console,
    dashboard,
    exports,
    exports_page,
    invoices,
    keys,
    ledger,
    live_page,
    months,
    organization,
    policies_page,
    price_tools,
    prices,
    prices_page,
    recompute,
    request_export,
    requests,
    savings_page,
    shared_costs_page,
    sheets,
    spend_page,
    sso,
    statements,
    statements_page,
    upstreams_page,
    usage,
    whatif_page,
)
from gateway.routes.access import CallerDep, control_router
from gateway.web.described import described, together
from gateway.web.pages import HEADERS, render
from gateway.web.reference import sections

_KIND = re.compile(r":[a-z]+\}")

_PAGES = (
    dashboard,
    sso,
    live_page,
    upstreams_page,
    console,
    spend_page,
    savings_page,
    whatif_page,
    budgets_page,
    statements_page,
    shared_costs_page,
    anomalies_page,
    calculator_page,
    prices_page,
    exports_page,
    cache_page,
    policies_page,
    audit_page,
    sheets,
)


class Who(Struct, kw_only=True):
    """The caller as the gateway sees it. `team` is null for one that reaches every team."""

    key_id: str
    role: Role
    team: str | None
    project: str | None


class Part(Struct, kw_only=True):
    """`missing`: null when it serves, else what is still needed, in words."""

    name: str
    kind: str
    missing: str | None


class Status(Struct, kw_only=True):
    """What runs. Never an address, a key or a path."""

    version: str
    database: str
    revision: str | None
    cache: str
    parts: list[Part]
    models: list[str]


@get("/whoami", opt={"role": "viewer"}, summary="Who am I")
async def whoami(caller: CallerDep) -> Who:
    """The role and reach of the key this was asked with."""
    who = caller.principal
    return Who(key_id=who.key_id, role=who.role, team=who.team or None, project=who.project or None)


@get("/status", opt={"role": "viewer"}, summary="What runs")
async def status(caller: CallerDep) -> Status:
    """Versions and what is still missing. For load balancers there is `/health/ready`."""
    services = caller.services
    parts = [Part(name=name, kind="upstream", missing=found.ready()) for name, found in services.providers.items()]
    for name, engine in services.engines.items():
        now = engine.stats()
        parts.append(Part(name=name, kind="engine", missing=None if now.ready else now.loading or "loading"))
    if services.cache is not None:
        parts += [Part(name=name, kind="cache", missing=why) for name, why in services.cache.status().items()]
    return Status(
        version=__version__,
        database=services.database.dialect,
        revision=await current_of(services.database),
        cache=services.settings.cache.mode,
        parts=parts,
        models=services.models(),
    )


def route_handlers() -> list[ControllerRouterHandler]:
    return [control_router("/api/v1", [whoami, status], tags=["About"])]


def control_plane() -> list[ControllerRouterHandler]:
    """Every handler of the control plane and the dashboard, for `Litestar(route_handlers=…)`."""
    return [*programs_plane(), *(handler for page in _PAGES for handler in page.route_handlers())]


def programs_plane() -> list[ControllerRouterHandler]:
    """What programs ask, without the pages for people."""
    cache = (cache_admin, cache_tune, cache_warm)
    modules = (
        sys_module.route_handlers()
        for sys_module in (
            keys,
            alerts,
            audit,
            budgets,
            usage,
            requests,
            request_export,
            *cache,
            prices,
            price_tools,
            recompute,
            ledger,
            configuration,
            organization,
            months,
            statements,
            exports,
            invoices,
        )
    )
    return [*route_handlers(), *(handler for handlers in modules for handler in handlers)]


def undeclared(handlers: list[HTTPRouteHandler]) -> list[str]:
    """Names of handlers under `/api`, `/ui` or `/v1/organization` that declare no role.

    What Litestar itself answers to OPTIONS says only which methods there are.
    """
    known = {*ROLES, "anyone"}
    covered = ("/api/", "/ui", "/v1/organization")
    return sorted(
        {
            str(handler)
            for handler in handlers
            for path in handler.paths
            if path.startswith(covered) and handler.opt.get("role") not in known and handler.http_methods != {"OPTIONS"}
        }
    )


def _roles(app: Litestar) -> dict[tuple[str, str], str]:
    """What each (method, path as OpenAPI writes it) needs."""
    found: dict[tuple[str, str], str] = {}
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            path = _KIND.sub("}", route.path)
            for handler in route.route_handlers:
                found |= {(method.lower(), path): str(handler.opt.get("role", "")) for method in handler.http_methods}
    return found


def _whole(schema: dict[str, Any], beside: Litestar | None) -> dict[str, Any]:
    return described(schema if beside is None else together(schema, beside.openapi_schema.to_schema()))


class _Page(OpenAPIRenderPlugin):
    """The description as one page without scripts from elsewhere. `beside`: another application's routes are in it."""

    def __init__(self, beside: Litestar | None) -> None:
        super().__init__(path="/")
        self._beside = beside

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        roles = _roles(request.app) | (_roles(self._beside) if self._beside is not None else {})
        return render("docs.html", sections=sections(_whole(openapi_schema, self._beside), roles))


class _Json(JsonRenderPlugin):
    """The same as JSON."""

    def __init__(self, beside: Litestar | None) -> None:
        super().__init__(path="/openapi.json")
        self._beside = beside

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:  # noqa: ARG002 - its signature
        return encode_json(_whole(openapi_schema, self._beside))


def openapi_config(beside: Litestar | None = None) -> OpenAPIConfig:
    """`/docs` for people, `/docs/openapi.json` for machines, with what another application answers `beside`."""
    return OpenAPIConfig(
        title="nearhit",
        version=__version__,
        description="A semantic-caching LLM gateway: OpenAI's API in front, a control plane beside it.",
        path="/docs",
        openapi_router=Router(path="/docs", route_handlers=[], response_headers=dict(HEADERS)),
        render_plugins=[_Page(beside), _Json(beside)],
        use_handler_docstrings=True,
    )
