"""`/api/v1/prices`: what tokens cost, where a price comes from, what has none, and setting one.

Knows: JSON in and out. Does not know: where bundled prices come from (`gateway.prices`).
"""

from typing import Annotated

from litestar import get, put
from litestar.params import FromPath, JSONBody, QueryParameter
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from gateway.audit import Change, note
from gateway.auth import ORG_WIDE
from gateway.db.queries import Queries
from gateway.errors import InvalidRequest, NotAllowed
from gateway.prices import ANY
from gateway.routes import shapes
from gateway.routes.access import CallerDep, control_router
from gateway.routes.requests import per_million
from gateway.services import Services
from policies.money import Price

_LOOKED_BACK = 30 * 86_400.0
_LOCAL = ("local/demo", "local/minilm")


class PriceWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """USD per million tokens as decimals (strings keep every digit). Both 0 marks the model as free."""

    input_usd: str | int | float
    output_usd: str | int | float
    cached_usd: str | int | float | None = None
    effective_from: str | int | float | None = None


class PriceLine(Struct, kw_only=True):
    """The price in force now, USD per million tokens; null without one, and then requests for it are refused.

    `source`: `set` by an operator, `engine` (an hour of hardware over its tokens), `bundled` table, or `none`.
    `status`: exact, assumed or free.
    """

    model: str
    source: str
    status: str | None
    input_usd: str | None
    output_usd: str | None
    cached_usd: str | None
    version: str | None
    effective_from: str | None = None


class PriceList(Struct, kw_only=True):
    """`unpriced`: names that were asked for and have no price."""

    data: list[PriceLine]
    unpriced: list[str]


def _line(model: str, source: str, price: Price | None, effective_from: float | None = None) -> PriceLine:
    return PriceLine(
        model=model,
        source=source if price is not None else "none",
        status=None if price is None else price.status,
        input_usd=None if price is None else per_million(price.input),
        output_usd=None if price is None else per_million(price.output),
        cached_usd=None if price is None else per_million(price.cached_input),
        version=None if price is None else price.id,
        effective_from=shapes.moment(effective_from),
    )


def priced(services: Services, name: str) -> PriceLine:
    """The price of `provider/model` now."""
    provider, _, model = name.partition("/")
    configured = services.settings.providers.get(provider)
    kind = configured.kind if configured is not None else "local"
    now = services.now()
    for row in reversed(services.prices.overrides()):
        if row.provider in (provider, ANY) and row.model == model and row.effective_from <= now:
            return _line(name, "set", services.prices.price(provider, kind, model, now), row.effective_from)
    known = configured is not None or provider == "local" or provider in services.settings.engines
    source = "engine" if kind == "local" else "bundled"
    return _line(name, source, services.prices.price(provider, kind, model, now) if known else None)


async def in_use(services: Services) -> list[str]:
    """`provider/model` names of the configured routes and of what answered in the last 30 days."""
    now = services.now()
    used = await Queries(services.database).usage(
        ["provider", "model_used"], now - _LOOKED_BACK, now + 1, latencies=False
    )
    answered = [f"{row.group['provider']}/{row.group['model_used']}" for row in used if row.group["provider"]]
    routed = [target for model in services.settings.models.values() for target in model.route]
    overridden = [f"{row.provider}/{row.model}" for row in services.prices.overrides() if row.provider != ANY]
    return sorted({*_LOCAL, *answered, *routed, *overridden})


@get("/", opt={"role": "viewer"}, summary="Prices in force")
async def list_prices(
    caller: CallerDep, model: Annotated[str | None, QueryParameter(max_length=200)] = None
) -> PriceList:
    """Of every model in use, or of one (`model=provider/model`), with what has no price."""
    names = [model] if model else await in_use(caller.services)
    lines = [priced(caller.services, name) for name in names]
    missing = {*caller.services.prices.unpriced(), *(line.model for line in lines if line.status is None)}
    return PriceList(data=lines, unpriced=sorted(missing) if model is None else [])


@put("/{model:path}", opt={"role": "admin"}, summary="Set a price")
async def set_price(caller: CallerDep, model: FromPath[str], data: JSONBody[PriceWanted]) -> PriceLine:
    """`model` is `provider/model`, or `*/model` for every provider. Charges already made keep their price."""
    if caller.principal.team != ORG_WIDE:
        raise NotAllowed("Prices hold for every team; this key is bound to one.", code="beyond_team")
    services, name = caller.services, model.removeprefix("/")
    begins = None
    if data.effective_from is not None:
        begins = shapes.instant(data.effective_from, now=services.now(), param="effective_from")
    before = priced(services, name)
    try:
        row = await services.prices.set(
            name,
            input_usd=str(data.input_usd),
            output_usd=str(data.output_usd),
            cached_usd=None if data.cached_usd is None else str(data.cached_usd),
            effective_from=begins,
            actor=caller.principal.key_id,
        )
    except ValueError as error:
        raise InvalidRequest(str(error), param="model" if "provider/model" in str(error) else None) from error
    after = _line(name, "set", row.price, row.effective_from)
    change = Change("price.set", name, before=_noted(before), after=_noted(after))
    await note(services, caller.principal, change, ip=caller.ip)
    return after


def _noted(line: PriceLine) -> dict[str, object]:
    return {"input_usd": line.input_usd, "output_usd": line.output_usd, "cached_usd": line.cached_usd}


def route_handlers() -> list[ControllerRouterHandler]:
    return [control_router("/api/v1/prices", [list_prices, set_price], tags=["Prices"])]
