"""`/ui/live`, `/ui/engine`: what happens now, renewed every two seconds while a page is open.

Knows: which numbers each shows and who may see them. Does not know: SQL, arithmetic (`gateway.web.moment`), who counts.
A reader bound to a team sees its own requests only; figures of the whole machine are for those of every team.
"""

from typing import Any

import msgspec
from litestar import Response, get
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from gateway.auth import ORG_WIDE
from gateway.db.lately import MOST, lately
from gateway.routes.visitor import Visitor, VisitorDep, html, page_router
from gateway.services import Services
from gateway.web.moment import Moment, Target, moment
from gateway.web.pages import render

_WINDOW = 60.0
_FIGURES: dict[str, tuple[str, str]] = {
    "running": ("Running", "sequences in the batch of this step"),
    "waiting": ("Waiting", "requests in the queue"),
    "kv_used": ("KV blocks", "share of the paged KV cache in use"),
    "prefix_hit_rate": ("Prefix hits", "share of prompt tokens found in the prefix cache"),
    "tokens_per_s": ("Tokens per second", "generated, over all sequences"),
    "step_ms": ("Step", "one turn of the loop"),
    "preemptions": ("Preemptions", "sequences put back for want of KV blocks, since the start"),
    "acceptance": ("Acceptance", "share of the tokens guessed by speculation that were right"),
    "heartbeat_age_s": ("Last step", "since the loop last turned"),
    "restarts": ("Restarts", "of its process since the start"),
}
_SHARES = ("kv_used", "prefix_hit_rate", "acceptance")


class EngineLine(Struct, kw_only=True):
    """An engine and its figures: name, value as text, meaning."""

    name: str
    model: str
    note: str
    ready: bool
    loading: str
    figures: list[tuple[str, str, str]]
    kv_used: float


async def happening(visitor: Visitor, window: float = _WINDOW) -> Moment:
    """What ended in the last `window` seconds and may be seen by this reader."""
    services, principal = visitor.services, visitor.principal
    now = services.now()
    team = None if principal.team == ORG_WIDE else principal.team
    rows = await lately(services.database, now - window, team)
    goal = services.settings.telemetry
    target = Target(goal.ttft_target * 1e3, goal.tpot_target * 1e3)
    return moment(rows, now, window, target, cut=len(rows) == MOST)


async def _in_flight(visitor: Visitor) -> int | None:
    """Of every worker; None for readers of one team."""
    if visitor.services.gauges is None or visitor.principal.team != ORG_WIDE:
        return None
    return int(await visitor.services.gauges.total("nearhit_in_flight"))


def _engine_lines(services: Services) -> list[EngineLine]:
    lines: list[EngineLine] = []
    for name, engine in services.engines.items():
        stats, info = engine.stats(), engine.info()
        values: dict[str, object] = msgspec.structs.asdict(stats)
        figures = [
            (words, _written(figure, values[figure]), meaning)
            for figure, (words, meaning) in _FIGURES.items()
            if figure in values
        ]
        lines.append(
            EngineLine(
                name=name,
                model=info.id if info else "",
                note=f"{info.architecture}, {info.dtype}, context {info.context}" if info else "",
                ready=stats.ready,
                loading=stats.loading,
                figures=figures,
                kv_used=stats.kv_used,
            )
        )
    return lines


def _written(figure: str, value: object) -> str:
    if not isinstance(value, int | float):
        return str(value)
    if figure in _SHARES:
        return f"{value * 100:.1f} %"
    if figure == "step_ms":
        return f"{value:.1f} ms"
    if figure == "heartbeat_age_s":
        return f"{value:.1f} s"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


async def _live(visitor: Visitor) -> dict[str, Any]:
    seen = await happening(visitor)
    goal = visitor.services.settings.telemetry
    return {
        "seen": seen,
        "in_flight": await _in_flight(visitor),
        "target": goal,
        "states": {name: found.ready() for name, found in visitor.services.providers.items()},
    }


@get("/live", opt={"role": "viewer"})
async def live_page(visitor: VisitorDep) -> Response[bytes]:
    """The last minute."""
    return visitor.page("live.html", **await _live(visitor))


@get("/parts/live", opt={"role": "viewer"})
async def live_part(visitor: VisitorDep) -> Response[bytes]:
    """The same again, asked for by the open page."""
    return html(render("live_part.html", **await _live(visitor)))


@get("/engine", opt={"role": "viewer"})
async def engine_page(visitor: VisitorDep) -> Response[bytes]:
    """What the bundled engines are doing."""
    return visitor.page("engine.html", engines=_engine_lines(visitor.services))


@get("/parts/engine", opt={"role": "viewer"})
async def engine_part(visitor: VisitorDep) -> Response[bytes]:
    """The same again."""
    return html(render("engine_part.html", engines=_engine_lines(visitor.services)))


def route_handlers() -> list[ControllerRouterHandler]:
    pages: list[ControllerRouterHandler] = [
        live_page,
        live_part,
        engine_page,
        engine_part,
    ]
    return [page_router("/ui", pages)]
