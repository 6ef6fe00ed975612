"""`/api/v1/cache`: what is kept, feedback on a hit, purge.

Knows: who may see what, how a person's verdict is recorded. Does not know: how an entry is found or judged (`cache`),
how often hits are right (`gateway.routes.cache_stats`).
"""

from typing import Annotated

from litestar import delete, get, post
from litestar.params import JSONBody, QueryParameter
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from cache.semantic import SemanticCache
from cache.store import Selection
from cache.types import Entry
from gateway.audit import Change, note
from gateway.auth import ORG_WIDE
from gateway.call import Principal
from gateway.errors import InvalidRequest, NotAllowed
from gateway.feedback import Verdict, judged
from gateway.routes import shapes
from gateway.routes.access import CallerDep, control_router
from gateway.routes.cache_stats import DAYS, StatsAnswer, statistics
from gateway.routes.requests import detail
from gateway.services import Services
from policies.money import usd

_LONGEST_SHOWN = 2_000
_HITS = ("exact", "semantic")
_FILTERS = ("team", "project", "model", "contains")


class FeedbackWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """`wrong` takes the kept answer out at once; `right` confirms it. `request_id`: of `x-request-id`, or the id that
    the answer's body carries."""

    request_id: str
    verdict: Verdict


class FeedbackAnswer(Struct, kw_only=True):
    """`evicted`: the entry is gone (false when it had gone before). `entry`: the kept answer that was served."""

    request_id: str
    verdict: Verdict
    entry: int
    evicted: bool


class EntryView(Struct, kw_only=True):
    """One kept answer. `text` is the part of the prompt that is matched by meaning, at most 2,000 characters of it."""

    id: int
    team: str
    project: str
    model: str
    text: str
    prompt_tokens: int
    completion_tokens: int
    cost_usd: str
    latency_ms: float
    created: str | None
    expires: str | None
    origin: str


class EntryList(Struct):
    """Newest first."""

    data: list[EntryView]


class Purged(Struct):
    """`purged`: how many kept answers are gone."""

    purged: int


def cache_of(services: Services) -> SemanticCache:
    """Raises InvalidRequest when caching is switched off."""
    if services.cache is None:
        raise InvalidRequest("Nothing is cached: cache.mode is off.", code="cache_off")
    return services.cache


async def judge(services: Services, principal: Principal, wanted: FeedbackWanted, ip: str | None) -> FeedbackAnswer:
    """Record a person's verdict on a hit, learn it, take a wrong answer out. Also used by the pages.

    Raises NotFound for a request that is not the caller's, InvalidRequest for one that no kept answer served.
    """
    found = await detail(services, principal, wanted.request_id)
    row, entry = found.request, (found.explain or {}).get("entry")
    if row is None or row.source not in _HITS:
        raise InvalidRequest("No kept answer served this request.", param="request_id", code="not_a_hit")
    if not isinstance(entry, int):
        gone = "Which kept answer served this request is not known any more (telemetry.explain_days). Purge it instead."
        raise InvalidRequest(gone, param="request_id", code="explanation_gone")
    cache_of(services)
    evicted = await judged(services, principal, found, wanted.verdict, ip)
    return FeedbackAnswer(request_id=row.id, verdict=wanted.verdict, entry=entry, evicted=evicted)


@post("/feedback", opt={"role": "operator"}, summary="Say whether a hit was right", status_code=200)
async def feedback(caller: CallerDep, data: JSONBody[FeedbackWanted]) -> FeedbackAnswer:
    """`wrong` takes the answer out with all its keys, shuts what is near until a fresh answer shows that it may be
    served again, and takes back what the hit seemed to save; `right` confirms it. The last one on a request counts."""
    return await judge(caller.services, caller.principal, data, caller.ip)


Text = Annotated[str | None, QueryParameter(max_length=200)]


@delete("/", opt={"role": "operator", "reads_query": True}, summary="Purge kept answers", status_code=200)
async def purge(
    caller: CallerDep,
    team: Text = None,
    project: Text = None,
    model: Text = None,
    contains: Text = None,
) -> Purged:
    """All that match every filter given; without filters, all that the caller may reach. A filter that is empty or
    that there is none of is refused: left out of account it would take everything out. `model`: as clients ask for it;
    all that was kept of the same places goes. `contains`: words in the last text of the request, ignoring case; not in
    what stood before it (of which only a digest is kept), nor in the answer."""
    for name, value in caller.request.query_params.items():
        if name not in _FILTERS or not value:
            why = "is empty" if name in _FILTERS else f"is no filter; known are {', '.join(_FILTERS)}"
            raise InvalidRequest(f"`{name[:60]}` {why}. Nothing was purged.", param=name[:60], code="invalid_value")
    model = model and caller.services.kept_as(model)
    if caller.principal.team != ORG_WIDE:
        if team not in (None, caller.principal.team):
            raise NotAllowed("Another team's answers are beyond your team.", code="beyond_team", param="team")
        team = caller.principal.team
    count = await cache_of(caller.services).purge(team=team, project=project, model=model, contains=contains)
    after: dict[str, object] = {"team": team, "project": project, "model": model, "purged": count}
    after |= {"contains": contains is not None}  # which words is a prompt's business
    await note(caller.services, caller.principal, Change("cache.purge", "cache", after=after), ip=caller.ip)
    return Purged(count)


@get("/stats", opt={"role": "viewer"}, summary="How the cache does")
async def stats(caller: CallerDep, days: Annotated[float, QueryParameter(gt=0, le=366)] = DAYS) -> StatsAnswer:
    """Per tenant and model: entries, hit rates, why misses were misses, and the measured wrong-hit rate with its 95 %
    interval beside the budget; whether serving is braked; audits, feedback and what was learned; and over `days` what
    hits saved, less corrections and audits, and what could have been saved where the cache only watches.
    """
    await caller.services.ledger.catch_up()
    return await statistics(caller.services, caller.principal, days)


@get("/entries", opt={"role": "operator"}, summary="Look into the cache")
async def entries(
    caller: CallerDep,
    contains: Text = None,
    limit: Annotated[int, QueryParameter(ge=1, le=500)] = 50,
) -> EntryList:
    """Kept answers, newest first. Shows prompts, so it takes an operator's key."""
    return EntryList(
        [entry_view(entry) for entry in await found_entries(caller.services, caller.principal, contains, limit)]
    )


async def found_entries(services: Services, principal: Principal, contains: str | None, limit: int) -> list[Entry]:
    """The newest kept answers within the caller's reach whose prompt contains the words, ignoring case."""
    team = None if principal.team == ORG_WIDE else principal.team
    return await cache_of(services).entries(limit, Selection(team=team, contains=contains or None))


def entry_view(entry: Entry) -> EntryView:
    return EntryView(
        id=entry.id,
        team=entry.team,
        project=entry.project,
        model=entry.model,
        text=entry.text[:_LONGEST_SHOWN],
        prompt_tokens=entry.prompt_tokens,
        completion_tokens=entry.completion_tokens,
        cost_usd=usd(entry.cost_nano),
        latency_ms=entry.latency_ms,
        created=shapes.moment(entry.created),
        expires=shapes.moment(entry.expires),
        origin=entry.origin,
    )


def route_handlers() -> list[ControllerRouterHandler]:
    return [control_router("/api/v1/cache", [feedback, purge, stats, entries], tags=["Cache"])]
