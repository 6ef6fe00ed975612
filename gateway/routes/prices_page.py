"""`/ui/prices`: what has no price first, then every price in force with where it comes from; setting one.

Knows: the form's fields. Does not know: where prices come from (`gateway.prices`), what they mean (`policies.money`).
"""

from urllib.parse import quote

from litestar import Response, get, post
from litestar.types import ControllerRouterHandler

from gateway.auth import ORG_WIDE, may
from gateway.errors import GatewayError
from gateway.price_terms import Terms
from gateway.prices import PriceSetting
from gateway.routes import shapes
from gateway.routes.price_shapes import PriceLine
from gateway.routes.prices import doubtful, in_use, priced, put_price
from gateway.routes.visitor import Visitor, VisitorDep, page_router, spreadsheet
from gateway.web.sheet import Cell

_EMPTY = {"model": "", "input_usd": "", "output_usd": "", "cached_usd": "", "effective_from": ""}


async def _page(visitor: Visitor, *, problem: str = "", form: dict[str, str] | None = None) -> Response[bytes]:
    services = visitor.services
    lines = [priced(services, name) for name in await in_use(services, visitor.principal)]
    return visitor.page(
        "prices.html",
        status=400 if problem else 200,
        found=await doubtful(services, visitor.principal),
        lines=[(line, _until(line)) for line in lines if line.status is not None],
        may_change=may(visitor.principal, "admin") and visitor.principal.team == ORG_WIDE,
        problem=problem,
        notice=visitor.request.query_params.get("set", "")[:200],
        until=visitor.request.query_params.get("until", "")[:40],
        form={**_EMPTY, **(form or {"model": visitor.request.query_params.get("model", "")[:200]})},
    )


def _until(line: PriceLine) -> str | None:
    """From when on another price counts, or none of the operator's own: its end, or the next one's begin."""
    return min((at for at in (line.replaced_from, line.effective_until) if at), default=None)


@get("/prices", opt={"role": "viewer"})
async def prices_page(visitor: VisitorDep) -> Response[bytes]:
    """The price book."""
    return await _page(visitor)


@get("/prices.csv", opt={"role": "viewer"})
async def prices_csv(visitor: VisitorDep) -> Response[bytes]:
    """Every price in force, USD per million tokens."""
    services = visitor.services
    columns = ["model", "source", "status", "input_usd", "output_usd", "cached_usd", "effective_from", "version"]
    rows: list[list[Cell]] = [
        [*(getattr(line, name) for name in columns), _until(line)]
        for line in (priced(services, name) for name in await in_use(services, visitor.principal))
    ]
    return spreadsheet([*columns, "until"], rows, "prices")


@post("/prices", opt={"role": "admin"}, status_code=200)
async def set_price(visitor: VisitorDep) -> Response[bytes]:
    """A price per million tokens, from now on or from a date; tiers and hours are set by the API or the CLI."""
    fields = await visitor.form()
    try:
        made = await _put(visitor, fields)
    except GatewayError as error:
        return await _page(visitor, problem=error.message, form={name: fields.get(name, "") for name in _EMPTY})
    until = f"&until={quote(made.replaced_from, safe='')}" if made.replaced_from else ""
    return visitor.go(f"/ui/prices?set={quote(fields['model'], safe='')}{until}")


async def _put(visitor: Visitor, fields: dict[str, str]) -> PriceLine:
    services, name = visitor.services, fields.get("model", "")
    begins = fields.get("effective_from") or None
    setting = PriceSetting(
        actor=visitor.principal.key_id,
        effective_from=None if begins is None else shapes.instant(begins, now=services.now(), param="effective_from"),
    )
    terms = Terms(
        input_usd=fields.get("input_usd", ""),
        output_usd=fields.get("output_usd", ""),
        cached_usd=fields.get("cached_usd") or None,
    )
    return await put_price(visitor, name, terms, setting)


def route_handlers() -> list[ControllerRouterHandler]:
    return [page_router("/ui", [prices_page, prices_csv, set_price])]
