"""`/ui/savings/whatif`: a month under another model, price or cache, replayed from the ledger; nothing is changed.

Knows: the form's fields. Does not know: the rules of a replay (`gateway.routes.recompute`, `policies.whatif`).
"""

from decimal import Decimal, InvalidOperation
from typing import cast
from urllib.parse import urlencode

from litestar import Response, get
from litestar.types import ControllerRouterHandler

from gateway.errors import GatewayError, InvalidRequest
from gateway.ledger.statement import months
from gateway.price_terms import Terms
from gateway.routes.months import own_team
from gateway.routes.prices import in_use
from gateway.routes.recompute import CacheChange, WhatIf, replayed
from gateway.routes.visitor import Visitor, VisitorDep, page_router, spreadsheet
from gateway.web.sheet import Cell
from policies.months import month_of
from policies.whatif import CacheMode

_FIELDS = ("month", "model", "instead", "input_usd", "output_usd", "cache", "hits")
_LONGEST = 200
_RATE = "rate"
CACHES = (
    ("as-it-was", "as it was"),
    ("exact", "only the very same request is reused"),
    ("off", "switched off"),
    (_RATE, "answering this share of requests:"),
)


def wanted(form: dict[str, str]) -> WhatIf:
    """The form as the API takes it: the price is of the model that would be asked. Raises InvalidRequest."""
    model, instead = form["model"], form["instead"]
    prices: dict[str, Terms] = {}
    if form["input_usd"] or form["output_usd"]:
        if not (model or instead):
            raise InvalidRequest("Say which model the price is for.", param="model")
        prices[instead or model] = Terms(input_usd=form["input_usd"], output_usd=form["output_usd"])
    if instead and not model:
        raise InvalidRequest("Say which model it would have replaced.", param="model")
    models = {model: instead} if instead else {}
    return WhatIf(month=form["month"], prices=prices, models=models, cache=_cache(form))


def _cache(form: dict[str, str]) -> CacheChange:
    mode = form["cache"] or "as-it-was"
    if mode not in [name for name, _ in CACHES]:
        raise InvalidRequest("The cache is as-it-was, exact, off or rate.", param="cache")
    if mode != _RATE:
        return CacheChange(mode=cast("CacheMode", mode))
    try:
        return CacheChange(hit_rate=str(Decimal(form["hits"] or "0") / 100))
    except InvalidOperation as error:
        raise InvalidRequest("The share of hits is a number of percent.", param="hits") from error


def _form(visitor: Visitor) -> dict[str, str]:
    asked = visitor.request.query_params
    return {name: (asked.get(name) or "").strip()[:_LONGEST] for name in _FIELDS}


@get("/savings/whatif", opt={"role": "viewer"})
async def whatif_page(visitor: VisitorDep) -> Response[bytes]:
    """The form, and what it asked for; the address keeps the question."""
    services, form = visitor.services, _form(visitor)
    found, problem = None, ""
    if form["month"]:
        try:
            found = await replayed(services, visitor.principal, wanted(form))
        except GatewayError as error:
            problem = error.message
    known = await months(services.database, services.now(), own_team(visitor.principal))
    return visitor.page(
        "whatif.html",
        status=400 if problem else 200,
        form={**form, "month": form["month"] or month_of(services.now()), "cache": form["cache"] or "as-it-was"},
        months=[one.name for one in known],
        models=await in_use(services, visitor.principal),
        caches=CACHES,
        query=urlencode({name: value for name, value in form.items() if value}),
        found=found,
        problem=problem,
    )


@get("/savings/whatif.csv", opt={"role": "viewer"})
async def whatif_csv(visitor: VisitorDep) -> Response[bytes]:
    """The models of the same question. Raises InvalidRequest for one that cannot be asked."""
    form = _form(visitor)
    found = await replayed(visitor.services, visitor.principal, wanted(form))
    columns = ["model", "target", "requests", "hits", "actual_usd", "would_usd", "difference_usd"]
    rows: list[list[Cell]] = [
        [
            *(line.model, line.target, line.requests, line.hits),
            *(Decimal(amount) for amount in (line.actual_usd, line.would_usd, line.difference_usd)),
        ]
        for line in found.data
    ]
    return spreadsheet(columns, rows, f"whatif-{form['month']}")


def route_handlers() -> list[ControllerRouterHandler]:
    return [page_router("/ui", [whatif_page, whatif_csv])]
