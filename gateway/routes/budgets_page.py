"""`/ui/budgets`: where every limit stands and is headed, who was told, who was refused; setting and changing one.

Every change goes through the same functions as the JSON API, so both refuse and record the same things.
Knows: the form's fields. Does not know: SQL, how a limit is held, how a forecast is made.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import cast
from urllib.parse import urlencode

from litestar import Response, get, post
from litestar.types import ControllerRouterHandler
from msgspec import UNSET, Struct

from gateway.auth import ORG_WIDE, may
from gateway.db.queries import Queries
from gateway.db.rows import RequestLine
from gateway.errors import GatewayError, InvalidRequest
from gateway.routes.alerts import reached
from gateway.routes.budget_shapes import BudgetView
from gateway.routes.budgets import BudgetWanted, retire_limit, set_limit, views, wanted_budget
from gateway.routes.meanwhile import SEEN, changed, mark
from gateway.routes.usage import reach
from gateway.routes.visitor import Visitor, VisitorDep, page_router
from policies.budget import KINDS, Mode, WindowKind
from policies.money import nano

_NEW = {
    "scope": "",
    "limit_usd": "",
    "window": "month",
    "timezone": "UTC",
    "mode": "hard",
    "alerts": "50, 80, 95",
    "rpm": "",
    "tpm": "",
    "degrade_to": "",
    "degrade_at": "",
}
_TOLD = {
    "limit_usd": "limit in USD",
    "window": "window",
    "timezone": "time zone",
    "mode": "mode",
    "alerts": "alerts at",
    "rpm": "requests per minute",
    "tpm": "tokens per minute",
    "degrade_to": "when exhausted ask",
    "degrade_at": "from",
}
_LOOKED_THROUGH = 500
_SHOWN_ALERTS = 20
_WORDS = {"insufficient_quota": "a budget was exhausted", "rate_limit_exceeded": "a limit per minute was reached"}
_LONGEST_SCOPE = 300


class Standing(Struct, frozen=True, kw_only=True):
    """A limit with the amounts its bar is drawn from, nano-USD."""

    view: BudgetView
    limit: int
    spent: int
    held: int


class Refused(Struct, kw_only=True):
    """Requests of one key that were turned away for one reason. `last`: seconds since the epoch."""

    key: str
    team: str
    project: str
    reason: str
    count: int
    last: float


def standing(view: BudgetView) -> Standing:
    limit, spent, held = (nano(text or "0") for text in (view.limit_usd, view.spent_usd, view.held_usd))
    return Standing(view=view, limit=limit, spent=spent, held=held)


def refusals(rows: Sequence[RequestLine]) -> list[Refused]:
    """By key and reason, most first, of requests that our own limits turned away. `rows`: newest first."""
    found: dict[tuple[str, str], Refused] = {}
    for row in rows:
        if row.error not in _WORDS:  # an upstream's own 429
            continue
        one = found.setdefault(
            (row.key_id, row.error),
            Refused(key=row.key_id, team=row.team, project=row.project, reason=_WORDS[row.error], count=0, last=row.at),
        )
        one.count += 1
    return sorted(found.values(), key=lambda one: (-one.count, -one.last))


async def _page(visitor: Visitor, *, problem: str = "", form: Mapping[str, str] | None = None) -> Response[bytes]:
    services, principal, asked = visitor.services, visitor.principal, visitor.request.query_params
    await services.ledger.flush()  # as the API does: what is leased and not reserved is held by nobody
    found = await views(services, principal)
    editing = (asked.get("edit") or "")[:_LONGEST_SCOPE]
    shown = next((fields_of(one) for one in found if one.scope == editing), None)
    where = {**reach(principal), "status": "429"}
    turned_away = await Queries(services.database).recent_requests(_LOOKED_THROUGH, None, where, failed=True)
    done = (asked.get("done") or "")[:_LONGEST_SCOPE]
    return visitor.page(
        "budgets.html",
        status=400 if problem else 200,
        budgets=[standing(one) for one in found],
        alerts=(await reached(services, principal))[:_SHOWN_ALERTS],
        told=bool(services.settings.alerts.channels),
        refused=refusals(turned_away),
        looked_through=_LOOKED_THROUGH if len(turned_away) == _LOOKED_THROUGH else 0,
        may_change=may(principal, "admin"),
        of_all_teams=principal.team == ORG_WIDE,
        kinds=KINDS,
        models=services.models(),
        problem=problem,
        notice=f"The budget {done} is set." if done else "",
        editing=shown["scope"] if shown else "",
        form={**_NEW, SEEN: mark(shown), **(form or shown or {"scope": editing})},
    )


def fields_of(view: BudgetView) -> dict[str, str]:
    """The form as it must stand to change nothing."""
    money = view.limit_usd is not None
    degrade = view.on_exhausted.removeprefix("degrade:") if view.on_exhausted.startswith("degrade:") else ""
    return {
        "scope": view.scope,
        "limit_usd": view.limit_usd or "",
        "window": view.window or "month",
        "timezone": view.timezone or "UTC",
        "mode": view.mode or "hard",
        "alerts": ", ".join(_percent(share) for share in view.alerts) if money else _NEW["alerts"],
        "rpm": "" if view.rpm is None else str(view.rpm),
        "tpm": "" if view.tpm is None else str(view.tpm),
        "degrade_to": degrade,
        "degrade_at": "" if view.degrade_at is None or not degrade else _percent(view.degrade_at),
    }


def _percent(share: float) -> str:
    return f"{(Decimal(str(share)) * 100).normalize():f}"


def wanted(form: Mapping[str, str]) -> BudgetWanted:
    """The whole form as a change: an empty field takes that limit away. Raises InvalidRequest naming the field."""
    limit = form.get("limit_usd") or None
    rpm, tpm = _whole(form, "rpm"), _whole(form, "tpm")
    if limit is None and rpm is None and tpm is None:
        raise InvalidRequest("Give a limit in USD, requests or tokens per minute.", param="limit_usd")
    degrade = form.get("degrade_to") or None
    if limit is None:
        if degrade is not None:
            raise InvalidRequest("Another model can only be asked instead where there is a limit in USD.")
        return BudgetWanted(limit_usd=None, rpm=rpm, tpm=tpm)
    at = _shares(form.get("degrade_at", ""), "degrade_at") if degrade else []
    return BudgetWanted(
        limit_usd=limit,
        window=cast("WindowKind", form.get("window", "month")),
        timezone=form.get("timezone") or "UTC",
        mode=cast("Mode", form.get("mode", "hard")),
        alerts=_shares(form.get("alerts", ""), "alerts"),
        rpm=rpm,
        tpm=tpm,
        on_exhausted=f"degrade:{degrade}" if degrade else "refuse",
        degrade_at=at[0] if at else UNSET,
    )


def _whole(form: Mapping[str, str], name: str) -> int | None:
    text = form.get(name, "").replace(" ", "").replace("\u202f", "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise InvalidRequest(f"`{name}` must be a whole number, or empty for no limit.", param=name)
    return int(text)


def _shares(text: str, name: str) -> list[float]:
    """`50, 80` -> [0.5, 0.8]."""
    try:
        return [float(Decimal(part.strip().rstrip("%").strip()) / 100) for part in text.split(",") if part.strip()]
    except InvalidOperation as error:
        raise InvalidRequest(f"`{name}` must be percent, such as 80.", param=name) from error


@get("/budgets", opt={"role": "viewer"})
async def budgets_page(visitor: VisitorDep) -> Response[bytes]:
    """Every limit with its forecast, alerts and refusals, and the form that sets or changes one."""
    return await _page(visitor)


@post("/budgets", opt={"role": "admin"}, status_code=200)
async def set_budget(visitor: VisitorDep) -> Response[bytes]:
    """Set or change the limits of a scope."""
    form = await visitor.form()
    scope, entered = form.get("scope", ""), {name: form.get(name, "") for name in (*_NEW, SEEN)}
    found = await views(visitor.services, visitor.principal)
    current = next((fields_of(one) for one in found if one.scope == scope), None)
    if told := changed(form, current, _TOLD):
        if current == {name: entered[name] for name in _NEW}:  # the same form sent twice
            return visitor.go("/ui/budgets?" + urlencode({"done": scope}))
        return await _page(visitor, problem=f"{scope}: {told}", form={**entered, SEEN: mark(current)})
    try:
        await set_limit(visitor, wanted_budget(scope, wanted(form)))
    except GatewayError as error:
        return await _page(visitor, problem=error.message, form=entered)
    return visitor.go("/ui/budgets?" + urlencode({"done": scope}))


@post("/budgets/retire", opt={"role": "admin"}, status_code=200)
async def retire_budget(visitor: VisitorDep) -> Response[bytes]:
    """Take every limit of a scope out of force."""
    form = await visitor.form()
    await retire_limit(visitor, form.get("scope", ""))
    return visitor.go("/ui/budgets")


def route_handlers() -> list[ControllerRouterHandler]:
    return [page_router("/ui", [budgets_page, set_budget, retire_budget])]
