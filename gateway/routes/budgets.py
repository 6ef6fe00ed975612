"""`/api/v1/budgets`: set, read and retire limits.

Knows: JSON in and out, who may set which scope. Does not know: how a limit is held (`gateway.ledger`).
"""

from litestar import delete, get, put
from litestar.params import FromPath, JSONBody
from litestar.types import ControllerRouterHandler
from msgspec import Struct, field

from gateway.audit import Change, note
from gateway.auth import ORG_WIDE, within
from gateway.call import Principal
from gateway.db import budgets
from gateway.db.queries import Queries
from gateway.db.rows import BudgetState
from gateway.errors import InvalidRequest, NotAllowed, NotFound
from gateway.keyrows import KeyRows
from gateway.routes import shapes
from gateway.routes.access import CallerDep, control_router
from gateway.services import Services
from policies.budget import Budget, Mode, WindowKind
from policies.money import nano, usd


class BudgetWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """`limit_usd` as a decimal (a string keeps every digit). `alerts`: fractions of the limit."""

    limit_usd: str | int | float
    window: WindowKind = "month"
    timezone: str = "UTC"
    mode: Mode = "hard"
    alerts: list[float] = field(default_factory=lambda: [0.5, 0.8, 0.95])


class BudgetView(Struct, kw_only=True):
    """A limit and where it stands in the window that is running. Amounts in USD as decimal strings.

    `spent_usd` = confirmed + estimated; `held_usd` is set aside for requests that are under way. `runs_out`: when the
    limit is reached at the pace so far, null if the window ends first.
    """

    scope: str
    limit_usd: str
    window: str
    timezone: str
    mode: str
    alerts: list[float]
    alerted: list[float]
    spent_usd: str
    spent_confirmed_usd: str
    spent_estimated_usd: str
    held_usd: str
    remaining_usd: str
    window_start: str | None
    window_end: str | None
    runs_out: str | None
    version: int
    updated: str | None
    updated_by: str


class BudgetList(Struct):
    """In order of scope."""

    data: list[BudgetView]


_FAR = 32_503_680_000  # the year 3000: a window that never ends is shown without an end


def view(state: BudgetState) -> BudgetView:
    return BudgetView(
        scope=state.scope,
        limit_usd=usd(state.limit_nano),
        window=state.window,
        timezone=state.timezone,
        mode=state.mode,
        alerts=state.alerts,
        alerted=state.alerted,
        spent_usd=usd(state.spent_nano),
        spent_confirmed_usd=usd(state.confirmed_nano),
        spent_estimated_usd=usd(state.estimated_nano),
        held_usd=usd(state.held_nano),
        remaining_usd=usd(state.remaining_nano),
        window_start=None if state.window == "total" else shapes.moment(float(state.starts)),
        window_end=None if state.ends >= _FAR else shapes.moment(float(state.ends)),
        runs_out=shapes.moment(state.runs_out),
        version=state.version,
        updated=shapes.moment(state.updated),
        updated_by=state.actor,
    )


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


def wanted_budget(scope: str, data: BudgetWanted) -> Budget:
    """The request in the ledger's terms. Raises InvalidRequest naming the field."""
    try:
        limit = nano(str(data.limit_usd).strip())
    except ValueError as error:
        raise InvalidRequest(f"`limit_usd`: {error}", param="limit_usd") from error
    wanted = Budget(
        scope=scope,
        limit_nano=limit,
        window=data.window,
        timezone=data.timezone,
        mode=data.mode,
        alerts=tuple(sorted(data.alerts)),
    )
    try:
        return budgets.check(wanted)
    except ValueError as error:
        raise InvalidRequest(str(error), param=_field_of(str(error))) from error


def _field_of(words: str) -> str:
    """The field that `gateway.db.budgets.check` complains about, by how its sentences begin."""
    named = {"alerts": "alerts", "unknown window": "window", "unknown mode": "mode", "unknown time zone": "timezone"}
    found = [field for beginning, field in named.items() if words.startswith(beginning)]
    return found[0] if found else "limit_usd" if words.startswith("a limit") else "scope"


async def set_limit(services: Services, principal: Principal, wanted: Budget, ip: str | None) -> BudgetView:
    """Write the budget, make the ledger know it, note who did it; answers its state. Also used by the pages."""
    if not await reachable(services, principal, wanted.scope):
        raise NotAllowed("This budget is beyond your team.", code="beyond_team", param="scope")
    before = await find(services, wanted.scope)
    await services.ledger.set_budget(wanted, principal.key_id)
    state = await find(services, wanted.scope)
    if state is None:
        raise NotFound(f"The budget {wanted.scope!r} was retired at the same moment.", code="budget_not_found")
    await note(
        services,
        principal,
        Change("budget.set", wanted.scope, before=_noted(before), after=_noted(state)),
        ip=ip,
    )
    return view(state)


async def retire_limit(services: Services, principal: Principal, scope: str, ip: str | None) -> None:
    """Take a budget out of force. Raises NotFound, also for one beyond the caller's team."""
    before = await find(services, scope) if await reachable(services, principal, scope) else None
    if before is None:
        raise NotFound(f"There is no budget {scope[:80]!r}.", code="budget_not_found")
    await services.ledger.remove_budget(scope, principal.key_id)
    await note(services, principal, Change("budget.retire", scope, before=_noted(before)), ip=ip)


async def visible(services: Services, principal: Principal) -> list[BudgetState]:
    """The budgets in force that are the caller's business, in order of scope."""
    found = await Queries(services.database).budgets(services.now())
    return [state for state in found if await reachable(services, principal, state.scope)]


async def find(services: Services, scope: str) -> BudgetState | None:
    found = await Queries(services.database).budgets(services.now())
    return next((state for state in found if state.scope == scope), None)


def _noted(state: BudgetState | None) -> dict[str, object] | None:
    if state is None:
        return None
    return {
        "limit_usd": usd(state.limit_nano),
        "window": state.window,
        "timezone": state.timezone,
        "mode": state.mode,
        "alerts": state.alerts,
    }


@put("/{budget:path}", opt={"role": "admin"}, summary="Set a budget")
async def set_budget(caller: CallerDep, budget: FromPath[str], data: JSONBody[BudgetWanted]) -> BudgetView:
    """A scope is `org`, `team:acme`, `project:acme/app`, `key:<id>`, `user:<id>`, `model:<name>` or `tag:<k>=<v>`.

    Setting one again makes a new version of it; what was spent in the window that is running stays.
    """
    wanted = wanted_budget(budget.removeprefix("/"), data)
    return await set_limit(caller.services, caller.principal, wanted, caller.ip)


@get("/", opt={"role": "viewer"}, summary="List budgets")
async def list_budgets(caller: CallerDep) -> BudgetList:
    """Every budget in force with the balance of the window that is running."""
    await caller.services.ledger.flush()
    return BudgetList([view(state) for state in await visible(caller.services, caller.principal)])


@get("/{budget:path}", opt={"role": "viewer"}, summary="Read a budget")
async def read_budget(caller: CallerDep, budget: FromPath[str]) -> BudgetView:
    """One budget with the balance of the window that is running."""
    await caller.services.ledger.flush()
    wanted = budget.removeprefix("/")
    found = [state for state in await visible(caller.services, caller.principal) if state.scope == wanted]
    if not found:
        raise NotFound(f"There is no budget {wanted[:80]!r}.", code="budget_not_found")
    return view(found[0])


@delete("/{budget:path}", opt={"role": "admin"}, summary="Retire a budget", status_code=204)
async def retire_budget(caller: CallerDep, budget: FromPath[str]) -> None:
    """It no longer limits anything; its history stays."""
    await retire_limit(caller.services, caller.principal, budget.removeprefix("/"), caller.ip)


def route_handlers() -> list[ControllerRouterHandler]:
    return [control_router("/api/v1/budgets", [set_budget, list_budgets, read_budget, retire_budget], tags=["Budgets"])]
