"""`/api/v1/prices`: what tokens cost, where a price comes from, what has none or a doubtful one, and setting one.

Knows: JSON in and out. Does not know: where bundled prices come from (`gateway.prices`).
"""

from typing import Annotated

from litestar import get, put
from litestar.params import FromPath, JSONBody, QueryParameter
from litestar.types import ControllerRouterHandler
from msgspec import Struct, structs, to_builtins

from gateway import price_table
from gateway.audit import Asking, Change, noted
from gateway.auth import ORG_WIDE
from gateway.call import Principal
from gateway.db.queries import Queries
from gateway.db.session import Also
from gateway.errors import InvalidRequest, NotAllowed
from gateway.price_terms import Terms
from gateway.prices import ANY, Override, PriceSetting
from gateway.routes import shapes
from gateway.routes.access import CallerDep, control_router
from gateway.routes.price_shapes import PriceLine, PriceWanted, TableLine, price_line
from gateway.routes.usage import reach, since_of
from gateway.services import Services

_LOOKED_BACK = 30.0  # days
_LOCAL = ("local/demo", "local/minilm")
_REFUSED = "402"
_DAY = 86_400.0
_OF_NAMES = ("a price needs", "a price is of one model")


class PriceList(Struct, kw_only=True):
    """`unpriced`: names that were asked for and have no price."""

    data: list[PriceLine]
    unpriced: list[str]
    table: TableLine


class Unpriced(Struct, kw_only=True):
    """A model without a price. `asked`: names under which it was asked for; `refused`: requests of 30 days."""

    model: str
    asked: list[str]
    refused: int


class Doubt(Struct, kw_only=True):
    """A model whose bundled price may be wrong by now, and why."""

    model: str
    version: str | None
    why: list[str]


class Checked(Struct, kw_only=True):
    """What needs a person: `unpriced` in order of the requests refused for it, then `stale`."""

    unpriced: list[Unpriced]
    stale: list[Doubt]
    table: TableLine


def table_line(now: float) -> TableLine:
    return TableLine(**structs.asdict(price_table.describe(now)))


def kind_of(services: Services, provider: str) -> str | None:
    """The kind of a configured provider, `local` for an engine, None for a name that is neither."""
    configured = services.settings.providers.get(provider)
    if configured is not None:
        return configured.kind
    return "local" if provider == "local" or provider in services.settings.engines else None


def priced(services: Services, name: str) -> PriceLine:
    """The price of `provider/model` now."""
    provider, _, model = name.partition("/")
    now, kind = services.now(), kind_of(services, provider)
    mine = services.prices.override(provider, model, now)
    price = services.prices.peek(provider, kind or "", model, now) if model else None
    source = "engine" if kind == "local" else "bundled"
    line = price_line(name, source if mine is None else mine.source, price, mine, now)
    if source == "bundled" and kind is not None:
        line.stale = services.prices.doubts(provider, model, now)
    if (begins := services.prices.next_begin(provider, model, now)) is not None:
        line.replaced_from = shapes.moment(begins)
    return line


async def in_use(services: Services, principal: Principal) -> list[str]:
    """`provider/model` names of the configured routes and of what answered the caller's requests in 30 days."""
    now = services.now()
    used = await Queries(services.database).usage(
        ["provider", "model_used"], since_of(services, _LOOKED_BACK), now + 1, reach(principal), latencies=False
    )
    answered = [f"{row.group['provider']}/{row.group['model_used']}" for row in used if row.group["provider"]]
    routed = [entry.to for model in services.settings.models.values() for entry in model.route]
    overridden = [f"{row.provider}/{row.model}" for row in services.prices.overrides() if row.provider != ANY]
    return sorted({*_LOCAL, *answered, *routed, *overridden})


@get("/", opt={"role": "viewer"}, summary="Prices in force")
async def list_prices(
    caller: CallerDep, model: Annotated[str | None, QueryParameter(max_length=200)] = None
) -> PriceList:
    """Of every model in use, or of one (`model=provider/model`), with what has no price."""
    names = [model] if model else await in_use(caller.services, caller.principal)
    lines = [priced(caller.services, name) for name in names]
    missing = {*_asked_in_vain(caller.services, caller.principal), *_lacking(caller.services, lines)}
    table = table_line(caller.services.now())
    return PriceList(data=lines, unpriced=sorted(missing) if model is None else [], table=table)


@get("/check", opt={"role": "viewer"}, summary="What has no price, or a doubtful one")
async def check_prices(caller: CallerDep) -> Checked:
    """Models that requests were refused for come first, the most asked for at the top."""
    return await doubtful(caller.services, caller.principal)


def _lacking(services: Services, lines: list[PriceLine]) -> list[str]:
    """What has no price and needs one: not where only models marked `free` lead to it, or nothing is asked any more."""
    models = services.settings.models.values()
    free, paid = (
        {entry.to for model in models if model.free is given for entry in model.route} for given in (True, False)
    )
    bare = [line.model for line in lines if line.status is None and line.model not in free - paid]
    return [name for name in bare if name in paid or kind_of(services, name.partition("/")[0]) is not None]


def _asked_in_vain(services: Services, principal: Principal) -> list[str]:
    """Names without a price that were asked for in this process, by nobody knows which team."""
    return services.prices.unpriced() if principal.team == ORG_WIDE else []


async def doubtful(services: Services, principal: Principal) -> Checked:
    """What needs a person: no price at all, or one that may be wrong by now. Within what the caller may see."""
    await services.ledger.catch_up()
    lines = [priced(services, name) for name in await in_use(services, principal)]
    stale = [Doubt(model=line.model, version=line.version, why=line.stale) for line in lines if line.stale]
    found = {name: Unpriced(model=name, asked=[], refused=0) for name in _lacking(services, lines)}
    for name in _asked_in_vain(services, principal):
        found.setdefault(name, Unpriced(model=name, asked=[], refused=0))
    for asked, refused in await _refused(services, principal):
        for name in _behind(services, asked):
            one = found.setdefault(name, Unpriced(model=name, asked=[], refused=0))
            one.asked.append(asked)
            one.refused += refused
    unpriced = sorted(found.values(), key=lambda one: (-one.refused, one.model))
    return Checked(unpriced=unpriced, stale=stale, table=table_line(services.now()))


async def _refused(services: Services, principal: Principal) -> list[tuple[str, int]]:
    """Names asked for in vain, with how often: as far back as single requests are kept, 30 days at most."""
    now = services.now()
    kept = services.settings.retention.requests
    start = now - (_LOOKED_BACK if not kept else min(_LOOKED_BACK, kept - 1)) * _DAY
    where = {"status": _REFUSED, **reach(principal)}
    rows = await Queries(services.database).usage(["model"], start, now + 1, where, latencies=False)
    return [(row.group["model"], row.requests) for row in rows]


def _behind(services: Services, asked: str) -> list[str]:
    """The targets of a name that have no price now; the name itself when it is no alias."""
    alias = services.settings.models.get(asked)
    names = [asked] if alias is None else [entry.to for entry in alias.route]
    return [name for name in names if priced(services, name).status is None]


@put("/{model:path}", opt={"role": "admin"}, summary="Set a price")
async def set_price(caller: CallerDep, model: FromPath[str], data: JSONBody[PriceWanted]) -> PriceLine:
    """`model` is `provider/model`, or `*/model` for every provider. Charges already made keep their price."""
    services, name = caller.services, model.removeprefix("/")
    begins = _instant(services, data.effective_from, "effective_from")
    ends = _instant(services, data.effective_until, "effective_until")
    setting = PriceSetting(actor=caller.principal.key_id, effective_from=begins, effective_until=ends)
    return await put_price(caller, name, data.terms, setting)


async def put_price(asking: Asking, name: str, terms: Terms, setting: PriceSetting) -> PriceLine:
    """Set it and note in the audit log what changed. Raises InvalidRequest, NotAllowed."""
    if asking.principal.team != ORG_WIDE:
        raise NotAllowed("Prices hold for every team; this key is bound to one.", code="beyond_team")
    services = asking.services
    before = priced(services, name)

    def said(row: Override) -> Also:
        return noted(asking, Change("price.set", name, before=_noted(before), after=_noted(_line(name, row))))

    try:
        row = await services.prices.put(name, terms, setting, said)
    except ValueError as error:
        raise InvalidRequest(str(error), param="model" if str(error).startswith(_OF_NAMES) else None) from error
    line, later = _line(name, row), services.prices.next_after(row)
    return line if later is None else structs.replace(line, replaced_from=shapes.moment(later.effective_from))


def _line(name: str, row: Override) -> PriceLine:
    begins = row.effective_from
    return price_line(name, row.source, row.charged(begins, ""), row, begins)


def _instant(services: Services, value: str | int | float | None, param: str) -> float | None:
    return None if value is None else shapes.instant(value, now=services.now(), param=param)


def _noted(line: PriceLine) -> dict[str, object]:
    """What the audit log keeps: the rates, and of the rest only what there is."""
    told = {"input_usd": line.input_usd, "output_usd": line.output_usd, "cached_usd": line.cached_usd}
    more = {name: to_builtins(getattr(line, name)) for name in ("tiers", "hours", "service", "effective_until")}
    return {**told, **{name: value for name, value in more.items() if value}, "version": line.version}


def route_handlers() -> list[ControllerRouterHandler]:
    return [control_router("/api/v1/prices", [list_prices, check_prices, set_price], tags=["Prices"])]
