"""`/api/v1/budgets`: set, read and retire limits, in money and per minute.

Knows: who may set which scope, what is left as it is. Does not know: how a limit is held (`gateway.ledger`,
`gateway.rates`), the JSON (`gateway.routes.budget_shapes`).
"""

from typing import Any, NamedTuple, cast
from urllib.parse import unquote

from litestar import delete, get, put
from litestar.params import FromPath, JSONBody
from litestar.types import ControllerRouterHandler
from msgspec import UNSET, Struct, UnsetType, convert, structs
from sqlalchemy.engine import Connection

from gateway.audit import Asking, Change, noted
from gateway.auth import ORG_WIDE, within
from gateway.call import Principal
from gateway.db import rates
from gateway.db.queries import Queries
from gateway.db.rows import BudgetState
from gateway.errors import InvalidRequest, NotAllowed, NotFound
from gateway.keyrows import KeyRows
from gateway.limits_told import told
from gateway.routes.access import Caller, CallerDep, control_router
from gateway.routes.budget_forecasts import forecasts
from gateway.routes.budget_shapes import (
    BudgetView,
    BudgetWanted,
    Wanted,
    checked,
    rate_view,
    view,
    wanted_budget,
)
from gateway.services import Services
from policies.budget import Budget
from policies.rate import Rate

__all__ = ["BudgetWanted", "retire_limit", "route_handlers", "set_limit", "visible", "wanted_budget"]


_HERE = b"/api/v1/budgets/"


class BudgetList(Struct):
    """In order of scope."""

    data: list[BudgetView]


async def reachable(services: Services, principal: Principal, scope: str) -> bool:
    """Whether this budget is the caller's business: any for the whole installation, else the team's own scopes."""
    if principal.team == ORG_WIDE:
        return True
    kind, _, rest = scope.partition(":")
    if kind == "team":
        return rest == principal.team
    if kind == "project":
        return rest.partition("/")[0] == principal.team
    if kind == "key":
        row = await KeyRows(services.database).find(rest)
        return row is not None and within(principal, row.team)
    return False


def _beyond(principal: Principal, scope: str) -> str | None:
    """Why this caller may read a limit and not change it: who is limited does not say by how much."""
    if principal.team == ORG_WIDE or not scope.startswith("team:"):
        return None
    return "What a team may spend in all is set by keys of no team; yours sets the limits of its projects and keys."


async def set_limit(asking: Asking, wanted: Wanted) -> BudgetView:
    """Write the limits, put them in force, note who did it; answers where they stand. Also used by the pages."""
    services, principal = asking.services, asking.principal
    if not await reachable(services, principal, wanted.scope):
        raise NotAllowed("This budget is beyond your team.", code="beyond_team", param="scope")
    if why := _beyond(principal, wanted.scope):
        raise NotAllowed(why, code="beyond_team", param="scope")
    before, rate_before = await find(services, wanted.scope), await _rate(services, wanted.scope)
    budget = _next_budget(services, wanted, before)
    rate = wanted.rate(rate_before)
    after = told(before if budget is UNSET else budget, rate_before if rate is None else rate)
    change = Change("budget.set", wanted.scope, before=told(before, rate_before), after=after)
    there = budget is not None or before is not None
    await _put(asking, _Changes(wanted.scope, budget if there else UNSET, rate), change)
    await services.ledger.flush()
    state, rate_now = await find(services, wanted.scope), await _rate(services, wanted.scope)
    if state is not None:
        return view(state, rate_now, (await forecasts(services, [state])).get(wanted.scope))
    return rate_view(rate_now or Rate(scope=wanted.scope), services.now(), principal.key_id)


def _next_budget(services: Services, wanted: Wanted, before: BudgetState | None) -> Budget | UnsetType | None:
    """The limit in money there will be: what is asked for, with what is left out as it was."""
    limit = wanted.limit
    if limit is None:
        return None
    if limit is UNSET and wanted.degrade is UNSET and not wanted.terms:
        return UNSET
    if limit is UNSET and before is None:
        named = next(iter(wanted.terms), "on_exhausted")
        raise InvalidRequest(f"`{named}` needs a limit in money: give `limit_usd` too.", param=named)
    budget = Budget(scope=wanted.scope, limit_nano=0) if before is None else _budget_of(before)
    amount = {} if limit is UNSET else {"limit_nano": limit}
    budget = structs.replace(budget, **amount, **wanted.terms)
    degrade = wanted.degrade
    if degrade is UNSET:
        degrade = (before.degrade_to, before.degrade_at) if before is not None else (None, None)
    elif degrade[0] is not None and not _is_served(services, degrade[0]):
        raise InvalidRequest(
            f"`on_exhausted`: the model `{degrade[0][:100]}` is not served here; GET /v1/models lists what is.",
            param="on_exhausted",
        )
    return checked(structs.replace(budget, degrade_to=degrade[0], degrade_at=degrade[1]))


def _is_served(services: Services, model: str) -> bool:
    """Whether the name leads somewhere: a listed one, or any of a provider that passes names on.

    Without a running gateway nobody knows; a name that leads nowhere then refuses, as if there were none.
    """
    known = services.models()
    return not known or model in known or model.partition("/")[0] in services.providers


def _budget_of(state: BudgetState) -> Budget:
    return convert(
        {
            "scope": state.scope,
            "limit_nano": state.limit_nano,
            "window": state.window,
            "timezone": state.timezone,
            "mode": state.mode,
            "alerts": state.alerts,
        },
        Budget,
    )


class _Changes(NamedTuple):
    """What is written of a scope: a limit in money, None to take it out, UNSET to leave it; limits per minute."""

    scope: str
    budget: Budget | UnsetType | None
    rate: Rate | None


async def _put(asking: Asking, changes: _Changes, change: Change) -> None:
    """Both kinds of limit and the row of the audit log in one transaction, then in force."""
    services, actor, rate = asking.services, asking.principal.key_id, changes.rate
    said = noted(asking, change)

    def last(connection: Connection) -> None:
        if rate is not None:
            rates.write(connection, rate, actor, services.now())
        said(connection)

    if changes.budget is UNSET:
        await services.database.transact(last)
    elif changes.budget is None:
        if not await services.ledger.remove_budget(changes.scope, actor, last):  # somebody was faster
            await services.database.transact(last)
    else:
        await services.ledger.set_budget(changes.budget, actor, last)
    if rate is not None and services.rates is not None:
        await services.rates.refresh()


async def retire_limit(asking: Asking, scope: str) -> None:
    """Take every limit of a scope out of force. Raises NotFound, also for one beyond the caller's team."""
    services, principal = asking.services, asking.principal
    mine = await reachable(services, principal, scope)
    before = await find(services, scope) if mine else None
    rate = await _rate(services, scope) if mine else None
    if before is None and rate is None:
        raise NotFound(f"There is no budget {scope[:80]!r}.", code="budget_not_found")
    if why := _beyond(principal, scope):
        raise NotAllowed(why, code="beyond_team", param="scope")
    changes = _Changes(scope, UNSET if before is None else None, None if rate is None else Rate(scope=scope))
    await _put(asking, changes, Change("budget.retire", scope, before=told(before, rate)))


async def visible(services: Services, principal: Principal) -> list[BudgetState]:
    """The budgets in force that are the caller's business, in order of scope."""
    found = await Queries(services.database).budgets(services.now())
    return [state for state in found if await reachable(services, principal, state.scope)]


async def views(services: Services, principal: Principal) -> list[BudgetView]:
    """Every limit in force that is the caller's business, in money and per minute, in order of scope."""
    limits = {rate.scope: rate for rate in await rates.load(services.database)}
    states = await visible(services, principal)
    foreseen = await forecasts(services, states)
    found = [view(state, limits.pop(state.scope, None), foreseen.get(state.scope)) for state in states]
    mine = [rate for rate in limits.values() if await reachable(services, principal, rate.scope)]
    found += [rate_view(rate, rate.updated, rate.actor) for rate in mine]
    return sorted(found, key=lambda one: one.scope)


async def find(services: Services, scope: str) -> BudgetState | None:
    found = await Queries(services.database).budgets(services.now())
    return next((state for state in found if state.scope == scope), None)


async def _rate(services: Services, scope: str) -> Rate | None:
    return next((rate for rate in await rates.load(services.database) if rate.scope == scope), None)


def _scope(caller: Caller, budget: str) -> str:
    """As the address has it: the path that routes are found by puts slashes together and leaves the last one out."""
    raw = cast("dict[str, Any]", caller.request.scope).get("raw_path") or b""
    written: bytes = raw.partition(_HERE)[2].partition(b"?")[0]
    return unquote(written.decode("ascii", "replace")) or budget.removeprefix("/")


@put("/{budget:path}", opt={"role": "admin"}, summary="Set a budget")
async def set_budget(caller: CallerDep, budget: FromPath[str], data: JSONBody[BudgetWanted]) -> BudgetView:
    """A scope is `org`, `team:acme`, `project:acme/app`, `key:<id>`, `user:<id>`, `model:<name>` or `tag:<k>=<v>`.

    Setting one again makes a new version of it; what was spent in the window that is running counts, also what was
    spent before there was a budget.
    """
    wanted = wanted_budget(_scope(caller, budget), data)
    return await set_limit(caller, wanted)


@get("/", opt={"role": "viewer"}, summary="List budgets")
async def list_budgets(caller: CallerDep) -> BudgetList:
    """Every budget in force with the balance of the window that is running."""
    await caller.services.ledger.flush()
    return BudgetList(await views(caller.services, caller.principal))


@get("/{budget:path}", opt={"role": "viewer"}, summary="Read a budget")
async def read_budget(caller: CallerDep, budget: FromPath[str]) -> BudgetView:
    """One budget with the balance of the window that is running."""
    await caller.services.ledger.flush()
    services, wanted = caller.services, _scope(caller, budget)
    mine = await reachable(services, caller.principal, wanted)
    state, rate = (await find(services, wanted), await _rate(services, wanted)) if mine else (None, None)
    if state is not None:
        return view(state, rate, (await forecasts(services, [state])).get(wanted))
    if rate is None:
        raise NotFound(f"There is no budget {wanted[:80]!r}.", code="budget_not_found")
    return rate_view(rate, rate.updated, rate.actor)


@delete("/{budget:path}", opt={"role": "admin"}, summary="Retire a budget", status_code=204)
async def retire_budget(caller: CallerDep, budget: FromPath[str]) -> None:
    """It no longer limits anything; its history stays."""
    await retire_limit(caller, _scope(caller, budget))


def route_handlers() -> list[ControllerRouterHandler]:
    return [control_router("/api/v1/budgets", [set_budget, list_budgets, read_budget, retire_budget], tags=["Budgets"])]
