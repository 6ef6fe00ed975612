"""`/ui/cache`: how far the cache can be trusted, what it is worth, and for operators what is in it.

Knows: which numbers the page shows and when one is an alarm. Does not know: SQL, how numbers come about
(`gateway.routes.cache_stats`), how they are written.
"""

from typing import Annotated

from litestar import Response, get, post
from litestar.params import QueryParameter
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from gateway.audit import Change, note
from gateway.auth import ORG_WIDE, may
from gateway.db.decisions import AuditDay, audits_by_day
from gateway.db.nearness import nearness
from gateway.db.queries import Queries
from gateway.errors import GatewayError
from gateway.routes.cache_admin import cache_of, found_entries
from gateway.routes.cache_stats import DAYS, ScopeView, statistics
from gateway.routes.cache_tune import tuned
from gateway.routes.usage import reach, since_of
from gateway.routes.visitor import Visitor, VisitorDep, page_router
from gateway.web.moment import histogram
from gateway.web.pages import HEADERS
from gateway.web.reads import series

_ENTRIES = 50
_CHARTED = 12
_SIMILARITIES = (0.0, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.94, 0.96, 0.98, 0.99, 1.0)
_CONFIDENCES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 1.0)
Text = Annotated[str, QueryParameter(max_length=200)]


class Alarm(Struct, frozen=True, kw_only=True):
    """A scope that serves, or served, more wrong answers than allowed beyond doubt."""

    scope: ScopeView
    braked: bool


def alarms(scopes: list[ScopeView]) -> list[Alarm]:
    """Those whose brake is on, or whose interval lies above the budget as a whole."""
    return [
        Alarm(scope=scope, braked=scope.braked)
        for scope in scopes
        if scope.braked or (scope.wrong_hits.low is not None and scope.wrong_hits.low > scope.max_wrong_hit_rate)
    ]


@get("/cache", opt={"role": "viewer"})
async def cache_page(visitor: VisitorDep, contains: Text = "", purged: Text = "") -> Response[bytes]:
    """How the cache does, and for operators what is in it."""
    services, principal = visitor.services, visitor.principal
    told = await statistics(services, principal)
    may_look = services.cache is not None and may(principal, "operator")
    now, since = services.now(), since_of(services, DAYS)
    days = await series(Queries(services.database), since, now + 1, reach(principal))
    return visitor.page(
        "cache.html",
        told=told,
        total=told.total,
        scopes=told.data,
        charted=sorted(told.data, key=lambda scope: -scope.wrong_hits.judged)[:_CHARTED],
        alarms=alarms(told.data),
        days=int(DAYS),
        series=days,
        near=await _near(visitor, since),
        audits=await _audits(visitor, since, [day.label for day in days]),
        may_look=may_look,
        contains=contains,
        entries=await found_entries(services, principal, contains, _ENTRIES) if may_look else [],
        notice=f"{purged} kept answers are gone." if purged.isdigit() else "",
    )


class NearColumn(Struct, frozen=True):
    """Look-ups whose nearest answer lay in `[low, high)`: served by meaning, and not."""

    low: float
    high: float
    served: int
    passed: int


async def _near(visitor: Visitor, since: float) -> dict[str, list[NearColumn]]:
    """How near, and how sure; empty where nothing was compared."""
    found = await nearness(visitor.services.database, since, reach(visitor.principal).get("team"))
    return {
        "similarity": _columns([(one.served, one.similarity) for one in found], _SIMILARITIES),
        "confidence": _columns([(one.served, one.confidence) for one in found], _CONFIDENCES),
    }


def _columns(values: list[tuple[bool, float | None]], edges: tuple[float, ...]) -> list[NearColumn]:
    if all(value is None for _, value in values):
        return []
    served = histogram((value for hit, value in values if hit), edges)
    passed = histogram((value for hit, value in values if not hit), edges)
    return [NearColumn(one.low, one.high, one.count, other.count) for one, other in zip(served, passed, strict=True)]


@get("/cache/tune", opt={"role": "viewer"})
async def tune_page(
    visitor: VisitorDep, budget: Text = "0.005,0.01,0.02,0.05", wrong: Text = "", since: Text = "7d"
) -> Response[bytes]:
    """The logged traffic under other error budgets; changes nothing."""
    problem, found = "", None
    try:
        per_hit = float(wrong) if wrong.strip() else None
        found = await tuned(visitor.services, visitor.principal, budget, per_hit, since)
    except (GatewayError, ValueError) as error:
        problem = error.message if isinstance(error, GatewayError) else "A share is a number from 0 to 1."
    asked = {"budget": budget, "wrong": wrong, "since": since}
    return visitor.page("tune.html", found=found, asked=asked, problem=problem, status=400 if problem else 200)


async def _audits(visitor: Visitor, start: float, days: list[str]) -> list[AuditDay]:
    """One for each of these days, those without any too."""
    found = await audits_by_day(
        visitor.services.database, start, visitor.services.now() + 1, reach(visitor.principal).get("team")
    )
    return [found.get(day, AuditDay(day=day, audits=0, cost_nano=0)) for day in days]


@post("/cache/purge", opt={"role": "operator"}, status_code=200)
async def purge(visitor: VisitorDep) -> Response[bytes]:
    """Take kept answers out: those that contain the words, or all within reach."""
    contains = (await visitor.form()).get("contains") or None
    team = None if visitor.principal.team == ORG_WIDE else visitor.principal.team
    count = await cache_of(visitor.services).purge(team=team, contains=contains)
    after: dict[str, object] = {"team": team, "contains": contains is not None, "purged": count}
    await note(visitor.services, visitor.principal, Change("cache.purge", "cache", after=after), ip=visitor.ip)
    headers = {**HEADERS, "location": f"/ui/cache?purged={count}"}
    return Response(b"", status_code=303, headers=headers)


def route_handlers() -> list[ControllerRouterHandler]:
    return [page_router("/ui", [cache_page, tune_page, purge])]
