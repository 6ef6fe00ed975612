"""`/ui/upstreams`: who answers what the cache cannot, how each does now and what its own limits leave.

Knows: which numbers the page shows, and who may see them: figures of the whole machine are for those of every team.
Does not know: SQL, arithmetic (`gateway.web.moment`), how places are chosen. Circuits, speeds and limits are those
that the worker knows which answers; requests and attempts are everyone's.
"""

from collections.abc import Mapping
from typing import Any

from litestar import Response, get
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from gateway.allowance import Account, Accounted
from gateway.auth import ORG_WIDE
from gateway.deployments import Doing
from gateway.model_settings import ModelSettings
from gateway.routes.live_page import happening
from gateway.routes.visitor import Visitor, VisitorDep, html, page_router
from gateway.services import Services
from gateway.web.moment import Moment, Upstream
from gateway.web.pages import render

_WINDOW = 900.0
_MOST_RESULTS = 12
_MOST_PLACES = 200  # shown; those with something wrong first


class UpstreamLine(Struct, kw_only=True):
    """A provider with what is known of it beside its requests. `missing`: None when it serves."""

    name: str
    kind: str
    missing: str | None
    lately: Upstream | None
    attempts: list[tuple[str, int]]
    routes: list[str]


class PlaceLine(Struct, kw_only=True):
    """One target at one server. `state` in words, `good` unless it is left alone; `routes`: its weight in each."""

    doing: Doing
    state: str
    good: bool
    routes: list[str]


class AccountLine(Struct, kw_only=True):
    """What one key at one server has left."""

    provider: str
    account: Account
    state: str
    good: bool


async def _attempts(visitor: Visitor) -> Mapping[str, list[tuple[str, int]]]:
    """Attempts by provider and result since the start, the most frequent first."""
    if visitor.services.gauges is None:
        return {}
    found: dict[str, list[tuple[str, int]]] = {}
    for labels, value in (await visitor.services.gauges.samples()).get("nearhit_upstream_attempts_total", ()):
        found.setdefault(labels["provider"], []).append((labels["result"], int(value)))
    return {name: sorted(own, key=lambda one: -one[1])[:_MOST_RESULTS] for name, own in found.items()}


def _routes(services: Services, provider: str) -> list[str]:
    """`name (strategy, place n of m)` for every configured model that leads there."""
    found: list[str] = []
    for name, model in services.settings.models.items():
        for place, entry in enumerate(model.route, 1):
            if entry.to.split("/", 1)[0] == provider:
                found.append(f"{name} ({model.strategy}, {place} of {len(model.route)}: {entry.to})")
    return found


def _upstream_lines(
    services: Services, seen: Moment, attempts: Mapping[str, list[tuple[str, int]]]
) -> list[UpstreamLine]:
    by_name = {one.name: one for one in seen.upstreams}
    return [
        UpstreamLine(
            name=name,
            kind=services.settings.providers[name].kind if name in services.settings.providers else "engine",
            missing=provider.ready(),
            lately=by_name.get(name),
            attempts=attempts.get(name, []),
            routes=_routes(services, name),
        )
        for name, provider in services.providers.items()
    ]


def _place_lines(services: Services) -> list[PlaceLine]:
    """Every place that was used or that a used route leads to."""
    doings = [] if services.deployments is None else services.deployments.told()
    lines = [
        PlaceLine(doing=doing, state=state, good=good, routes=_weights(services.settings.models, doing.target))
        for doing in doings
        for state, good in [_state_of(doing)]
    ]
    return sorted(lines, key=lambda line: (line.good, line.doing.target, line.doing.server))[:_MOST_PLACES]


def _state_of(doing: Doing) -> tuple[str, bool]:
    """In words, and whether requests go there."""
    if doing.patient_for_s:
        return f"asked for patience, {doing.patient_for_s:.0f} s left", False
    if doing.circuit == "open":
        return f"open, probed in {doing.open_for_s:.0f} s", False
    if doing.circuit == "half-open":
        return "half-open, a probe is under way" if doing.probing else "half-open, the next request probes", False
    if doing.failed_in_a_row:
        return f"closed, {doing.failed_in_a_row} failed in a row", True
    return "closed", True


def _weights(models: Mapping[str, ModelSettings], target: str) -> list[str]:
    """`name: weight 3 (75 %)` for each model that leads there, and its share as a canary or a shadow."""
    found: list[str] = []
    for name, model in models.items():
        whole = sum(entry.weight for entry in model.route)
        for entry in model.route:
            if entry.to == target:
                share = f" ({entry.weight / whole * 100:.0f} %)" if whole and model.strategy == "weighted" else ""
                found.append(f"{name}: weight {entry.weight:g}{share}")
        for role, extra in (("canary", model.canary), ("shadow", model.shadow)):
            if extra is not None and extra.to == target:
                found.append(f"{name}: {role} {extra.share * 100:g} %")
    return found


def _account_lines(services: Services) -> list[AccountLine]:
    """Those of whom there is something to tell: several keys or servers, or a limit the upstream has named."""
    return [
        AccountLine(
            provider=name,
            account=account,
            state=f"rests for {account.rests:.0f} s" if account.rests else "in use",
            good=not account.rests,
        )
        for name, provider in services.providers.items()
        if isinstance(provider, Accounted)
        for account in provider.accounts()
        if account.name or account.left
    ]


async def _told(visitor: Visitor) -> dict[str, Any]:
    services, of_all = visitor.services, visitor.principal.team == ORG_WIDE
    seen = await happening(visitor, _WINDOW)
    attempts: Mapping[str, list[tuple[str, int]]] = await _attempts(visitor) if of_all else {}
    return {
        "seen": seen,
        "lines": _upstream_lines(services, seen, attempts),
        "of_all": of_all,
        "places": _place_lines(services) if of_all else [],
        "accounts": _account_lines(services) if of_all else [],
        "workers": services.settings.server.workers,
    }


@get("/upstreams", opt={"role": "viewer"})
async def upstreams_page(visitor: VisitorDep) -> Response[bytes]:
    """Every provider: whether it serves, how fast, what failed, what its limits leave, which models lead there."""
    return visitor.page("upstreams.html", **await _told(visitor))


@get("/parts/upstreams", opt={"role": "viewer"})
async def upstreams_part(visitor: VisitorDep) -> Response[bytes]:
    """The same again."""
    return html(render("upstreams_part.html", **await _told(visitor)))


def route_handlers() -> list[ControllerRouterHandler]:
    pages: list[ControllerRouterHandler] = [upstreams_page, upstreams_part]
    return [page_router("/ui", pages)]
