"""`/api/v1/cache/plant` and `/asked`: answers kept before anybody asks, and what is worth asking again.

Knows: on whose behalf (the key's scope, models and team), and which kept answers were served how often. Does not know:
files, progress, spending caps (`nearhit cache warm` does), how a request becomes a query (`gateway.planting`).
"""

from collections import Counter
from typing import Annotated, Any

import msgspec
from litestar import post
from litestar.params import JSONBody
from litestar.types import ControllerRouterHandler
from msgspec import Meta, Struct

from cache.store import Selection
from cache.types import Entry
from gateway.audit import Change, note
from gateway.auth import require, within
from gateway.call import Body, Principal
from gateway.db.decisions import decisions
from gateway.errors import InvalidRequest, NotAllowed, NotFound
from gateway.planting import Planter
from gateway.routes.access import Caller, CallerDep, control_router
from gateway.routes.cache_admin import cache_of
from gateway.routes.usage import start_of
from policies.money import usd

_SCANNED = 10_000


class PlantWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """`key`: the API key whose requests may be answered with it; `prompt`, or `messages` for more than one turn."""

    key: str
    model: str
    answer: Annotated[str, Meta(min_length=1, max_length=1 << 20)]
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None


class Planted(Struct, kw_only=True):
    """`entry`: the kept answer; null when the cache could not keep it now."""

    entry: int | None


class AskedWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """What was asked since `since` that `key` could ask again in one plain user message."""

    key: str
    since: str = "7d"
    limit: Annotated[int, Meta(ge=1, le=_SCANNED)] = 1_000


class Asked(Struct, kw_only=True):
    """One question, how often it was asked since its answer was fetched, and what that cost."""

    model: str
    prompt: str
    times: int
    cost_usd: str


class AskedAnswer(Struct, kw_only=True):
    """Most asked first. `left_out`: kept answers used in the span but not asked for so plainly, or not by `key`.

    Only what is kept can be named: the request log holds no prompts.
    """

    data: list[Asked]
    left_out: int


@post("/plant", opt={"role": "operator"}, status_code=200, summary="Keep an answer before it is asked for")
async def plant(caller: CallerDep, data: JSONBody[PlantWanted]) -> Planted:
    """The answer serves requests of `key`'s scope like any kept one: exactly, and by meaning as the policy allows."""
    planter, principal = await _behalf(caller, data.key)
    planted = Planted(entry=await planter.plant(principal, _body(data), data.answer))
    if planted.entry is not None:
        after: dict[str, object] = {"model": data.model, "team": principal.team, "project": principal.project}
        change = Change("cache.plant", str(planted.entry), after=after)
        await note(caller.services, caller.principal, change, ip=caller.ip)
    return planted


@post("/asked", opt={"role": "operator"}, status_code=200, summary="What is worth asking again")
async def asked(caller: CallerDep, data: JSONBody[AskedWanted]) -> AskedAnswer:
    """Kept answers by how often they were asked for. Shows prompts, so it takes an operator's key."""
    planter, principal = await _behalf(caller, data.key)
    services = caller.services
    await services.ledger.catch_up()
    start = start_of(data.since, services.now())
    log = await decisions(services.database, start, team=principal.team or None)
    served = Counter(one.entry for one in log.decisions if one.entry is not None)
    theirs = Selection(team=principal.team or None)
    kept = {entry.id: entry for entry in await cache_of(services).entries(_SCANNED, theirs)}
    times: Counter[int] = Counter()
    for entry in kept.values():
        count = served[entry.id] + (entry.created >= start)
        if count and entry.origin:  # a planted answer is somebody's own words: not to be replaced by a model's
            times[entry.root] += count
    names = planter.names()
    found: list[Asked] = []
    for entry_id, count in times.most_common():
        entry = kept.get(entry_id)
        if entry is not None and len(found) < data.limit and (name := _name(planter, principal, entry, names)):
            found.append(Asked(model=name, prompt=entry.text, times=count, cost_usd=usd(entry.cost_nano)))
    return AskedAnswer(data=found, left_out=len(times) - len(found))


async def _behalf(caller: Caller, key: str) -> tuple[Planter, Principal]:
    """Whose scope is meant. Raises Unauthorized for a key that is none, NotAllowed for another team's."""
    planter = caller.services.planter
    if planter is None:
        raise InvalidRequest("This needs the running gateway: start one with nearhit serve.", code="not_running")
    cache_of(caller.services)
    require(caller.principal, "operator")
    principal = await caller.services.keyring.identify_key(key)
    if not within(caller.principal, principal.team):
        raise NotAllowed("That key belongs to another team.", code="beyond_team", param="key")
    return planter, principal


def _body(data: PlantWanted) -> Body:
    if (data.prompt is None) == (data.messages is None):
        raise InvalidRequest("Give either `prompt` or `messages`.", param="prompt")
    messages = data.messages or [{"role": "user", "content": data.prompt}]
    return {"model": data.model, "messages": messages}


def _name(planter: Planter, principal: Principal, entry: Entry, names: dict[str, str]) -> str | None:
    """The model to ask by, if the plain question is the very request that `entry` answers for this principal."""
    name = names.get(entry.model, entry.model)  # a provider that passes names on lists none
    if principal.models is not None and name not in principal.models:
        return None
    try:
        query = planter.query(principal, {"model": name, "messages": [{"role": "user", "content": entry.text}]})
    except (InvalidRequest, NotFound, msgspec.ValidationError):
        return None
    return name if query is not None and query.exact == entry.exact else None


def route_handlers() -> list[ControllerRouterHandler]:
    return [control_router("/api/v1/cache", [plant, asked], tags=["Cache"])]
