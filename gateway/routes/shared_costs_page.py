"""`/ui/statements/shared`: what teams share and how it is split; setting, changing and taking out a shared cost.

Every change goes through the same functions as the JSON API, so both refuse and record the same things.
Knows: the form's fields. Does not know: how a cost is split (`policies.statements`), the database.
"""

from decimal import Decimal
from typing import cast, get_args
from urllib.parse import urlencode

from litestar import Response, get, post
from litestar.types import ControllerRouterHandler

from gateway.errors import GatewayError, InvalidRequest
from gateway.routes.meanwhile import SEEN, changed, mark
from gateway.routes.statements import SharedCostView, SharedCostWanted, set_shared, shared_costs, take_out_shared
from gateway.routes.visitor import Visitor, VisitorDep, page_router, spreadsheet
from gateway.web.sheet import Cell
from policies.months import month_of
from policies.statements import Split

SPLITS: tuple[tuple[Split, str], ...] = (
    ("even", "evenly"),
    ("spend", "by what each spent"),
    ("requests", "by requests"),
    ("fixed", "by fixed weights"),
)
_FIELDS = ("name", "amount_usd", "team", "split", "shares", "from_month", "until_month")
_TOLD = {
    "amount_usd": "amount in USD",
    "team": "what is spent by",
    "split": "split",
    "shares": "weights",
    "from_month": "from",
    "until_month": "until",
}
_LONGEST = 200


def wanted(form: dict[str, str]) -> SharedCostWanted:
    """The form as the API takes it. Raises InvalidRequest naming the field."""
    split = form.get("split") or "even"
    if split not in get_args(Split):
        raise InvalidRequest("`split` is even, spend, requests or fixed.", param="split")
    return SharedCostWanted(
        split=cast("Split", split),
        from_month=form.get("from_month", ""),
        amount_usd=form.get("amount_usd") or None,
        team=form.get("team") or None,
        shares=_weights(form.get("shares", "")) if split == "fixed" else {},
        until_month=form.get("until_month") or None,
    )


def _weights(text: str) -> dict[str, int]:
    """`search=3, support=1` -> {"search": 3, "support": 1}."""
    found: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        team, sign, weight = (one.strip() for one in part.rpartition("="))
        if not (team and sign and weight.isascii() and weight.isdigit() and len(weight) <= 10):
            raise InvalidRequest("`shares` are written team=3, other=1, with whole numbers.", param="shares")
        found[team] = int(weight)
    return found


def _fields_of(view: SharedCostView) -> dict[str, str]:
    return {
        "name": view.name,
        "amount_usd": view.amount_usd or "",
        "team": view.team or "",
        "split": view.split,
        "shares": ", ".join(f"{team}={weight}" for team, weight in view.shares.items()),
        "from_month": view.from_month,
        "until_month": view.until_month or "",
    }


async def _page(visitor: Visitor, *, problem: str = "", form: dict[str, str] | None = None) -> Response[bytes]:
    found = await shared_costs(visitor.services, visitor.principal)
    asked = visitor.request.query_params
    shown = next((_fields_of(one) for one in found if one.name == asked.get("edit")), None)
    empty = {**dict.fromkeys(_FIELDS, ""), "split": "even", "from_month": month_of(visitor.services.now())}
    done = (asked.get("done") or "")[:_LONGEST]
    return visitor.page(
        "shared_costs.html",
        status=400 if problem else 200,
        costs=found,
        splits=SPLITS,
        words=dict(SPLITS),
        editing=shown["name"] if shown else "",
        form={**empty, SEEN: mark(shown), **(form or shown or {})},
        problem=problem,
        notice=f"{done} is set, for every open month from its first on." if done else "",
    )


@get("/statements/shared", opt={"role": "finance"})
async def shared_costs_page(visitor: VisitorDep) -> Response[bytes]:
    """Every shared cost, and the form that sets one."""
    return await _page(visitor)


@get("/statements/shared.csv", opt={"role": "finance"})
async def shared_costs_csv(visitor: VisitorDep) -> Response[bytes]:
    """The table of this view, with the names of the form's fields."""
    rows: list[list[Cell]] = []
    for one in await shared_costs(visitor.services, visitor.principal):
        fields = _fields_of(one)
        amount = None if one.amount_usd is None else Decimal(one.amount_usd)
        rows.append([amount if name == "amount_usd" else fields[name] for name in _FIELDS])
    return spreadsheet(list(_FIELDS), rows, "shared-costs")


@post("/statements/shared", opt={"role": "finance"}, status_code=200)
async def set_cost(visitor: VisitorDep) -> Response[bytes]:
    """Set or change a shared cost."""
    form = await visitor.form()
    entered, name = {field: form.get(field, "") for field in (*_FIELDS, SEEN)}, form.get("name", "")
    found = await shared_costs(visitor.services, visitor.principal)
    current = next((_fields_of(one) for one in found if one.name == name), None)
    if told := changed(form, current, _TOLD):
        if current == {field: entered[field] for field in _FIELDS}:  # the same form sent twice
            return visitor.go("/ui/statements/shared?" + urlencode({"done": name}))
        return await _page(visitor, problem=f"{name}: {told}", form={**entered, SEEN: mark(current)})
    try:
        await set_shared(visitor, name, wanted(form))
    except GatewayError as error:
        return await _page(visitor, problem=error.message, form=entered)
    return visitor.go("/ui/statements/shared?" + urlencode({"done": name}))


@post("/statements/shared/out", opt={"role": "finance"}, status_code=200)
async def take_out(visitor: VisitorDep) -> Response[bytes]:
    """Take a shared cost out of every open month."""
    form = await visitor.form()
    await take_out_shared(visitor, form.get("name", ""))
    return visitor.go("/ui/statements/shared")


def route_handlers() -> list[ControllerRouterHandler]:
    return [page_router("/ui", [shared_costs_page, shared_costs_csv, set_cost, take_out])]
