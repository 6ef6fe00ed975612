"""`/api/v1/usage/recompute`, `/api/v1/usage/coverage`, `/api/v1/whatif`: what charges rest on, and what if.

Knows: JSON in and out, who may see which team. Does not know: how a charge is made (`gateway.ledger.recompute`), the
rules of a replay (`policies.whatif`).
"""

from fractions import Fraction
from typing import Annotated

from litestar import get, post
from litestar.params import JSONBody, QueryParameter
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from gateway.call import Principal
from gateway.db.queries import Queries
from gateway.errors import InvalidRequest
from gateway.ledger.recompute import recompute
from gateway.price_terms import Amount, Terms, price_from
from gateway.replay import Scenario, Stage, replay
from gateway.routes import shapes
from gateway.routes.access import CallerDep, control_router
from gateway.routes.prices import in_use, kind_of, priced
from gateway.routes.usage import Span, reach, span_of
from gateway.services import Services
from policies import months
from policies.money import Price, usd
from policies.whatif import CacheMode, CacheWanted, Line

_MOST_CHANGES = 100
_REFUSED = "402"


class DifferenceLine(Struct, kw_only=True):
    """A charge that does not follow from its row. `right_usd` is null where its price version is not known."""

    id: str
    at: str | None
    model: str
    price: str
    charged_usd: str
    right_usd: str | None


class SumLine(Struct, kw_only=True):
    """What was charged at one price version for one model."""

    model: str
    price: str
    entries: int
    charged_usd: str
    right_usd: str


class RecomputedAnswer(Struct, kw_only=True):
    """Every charge once more, from its own row. `bounded`: charged at their reservation, as nobody counted."""

    agrees: bool
    start: str | None
    end: str | None
    entries: int
    bounded: int
    corrections: int
    charged_usd: str
    right_usd: str
    data: list[SumLine]
    differences: list[DifferenceLine]
    omitted: int


class CoverageAnswer(Struct, kw_only=True):
    """What spend rests on. `confirmed`: counted by the provider or the engine, at a known price; `estimated`: the rest.

    Shares of `cost_usd`, which sum to 1; null when nothing was spent. What has no price is refused and costs nothing:
    `unpriced_requests` counts it, `unpriced_share` is of all requests. `assumed`: models whose price is assumed.
    """

    start: str | None
    end: str | None
    cost_usd: str
    confirmed_usd: str
    estimated_usd: str
    confirmed_share: float | None
    estimated_share: float | None
    requests: int
    unpriced_requests: int | None
    unpriced_share: float | None
    assumed: list[str]


class CacheChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`off`: every hit is asked; `exact`: hits by meaning are; or a `hit_rate` between 0 and 1 for every model."""

    mode: CacheMode = "as-it-was"
    hit_rate: Amount | None = None


class WhatIf(Struct, kw_only=True, forbid_unknown_fields=True):
    """A month (`2026-10`), or `from` and `to`, under other terms.

    `prices`: terms by `provider/model`; `models`: the `provider/model` asked in another's place.
    """

    month: str | None = None
    start: str | None = None
    end: str | None = None
    prices: dict[str, Terms] = {}
    models: dict[str, str] = {}
    cache: CacheChange = CacheChange()


class WhatIfLine(Struct, kw_only=True):
    """One model. `hits_asked_usd`: what hits would have cost that are none any more."""

    model: str
    target: str
    requests: int
    hits: int
    actual_usd: str
    would_usd: str
    difference_usd: str
    audits_usd: str
    hits_asked_usd: str
    unpriced: int


class WhatIfAnswer(Struct, kw_only=True):
    """`difference_usd` is negative where the change would have saved. `assumed`: all that the figures rest on."""

    start: str | None
    end: str | None
    actual_usd: str
    would_usd: str
    difference_usd: str
    data: list[WhatIfLine]
    assumed: list[str]
    unused: list[str]


def span_or_month(month: str | None, start: str | None, end: str | None, now: float) -> Span:
    """A month by name, or `from` and `to`; this month by default. Raises InvalidRequest."""
    if month is None:
        return span_of(start, end, now)
    if start or end:
        raise InvalidRequest("Give a month, or `from` and `to`, not both.", param="month")
    try:
        found = months.span(month)
    except ValueError as error:
        raise InvalidRequest(f"{error}.", param="month") from error
    return Span(float(found.start), float(found.end))


MonthParam = Annotated[str | None, QueryParameter(max_length=7)]
FromParam = Annotated[str | None, QueryParameter(name="from", max_length=40)]
ToParam = Annotated[str | None, QueryParameter(name="to", max_length=40)]


@post("/usage/recompute", opt={"role": "finance"}, summary="Every charge once more", status_code=200)
async def recompute_usage(
    caller: CallerDep, month: MonthParam = None, start: FromParam = None, end: ToParam = None
) -> RecomputedAnswer:
    """From the tokens and the price version of each row; `differences` is empty when all is right."""
    services = caller.services
    await services.ledger.catch_up()
    span = span_or_month(month, start, end, services.now())
    found = await recompute(services.database, span.start, span.end, reach(caller.principal).get("team"))
    return RecomputedAnswer(
        agrees=found.agrees,
        start=shapes.moment(span.start),
        end=shapes.moment(span.end),
        entries=found.entries,
        bounded=found.bounded,
        corrections=found.corrections,
        charged_usd=usd(found.charged_nano),
        right_usd=usd(found.right_nano),
        data=[
            SumLine(
                model=f"{one.provider}/{one.model}",
                price=one.price,
                entries=one.entries,
                charged_usd=usd(one.charged_nano),
                right_usd=usd(one.right_nano),
            )
            for one in found.sums
        ],
        differences=[
            DifferenceLine(
                id=one.id,
                at=shapes.moment(one.admitted),
                model=f"{one.provider}/{one.model}",
                price=one.price,
                charged_usd=usd(one.charged_nano),
                right_usd=None if one.right_nano is None else usd(one.right_nano),
            )
            for one in found.differences
        ],
        omitted=found.omitted,
    )


@get("/usage/coverage", opt={"role": "viewer"}, summary="What spend rests on")
async def coverage(
    caller: CallerDep, month: MonthParam = None, start: FromParam = None, end: ToParam = None
) -> CoverageAnswer:
    """How much of it was counted, how much is estimated, and how many requests had no price."""
    services = caller.services
    await services.ledger.catch_up()
    span = span_or_month(month, start, end, services.now())
    where = reach(caller.principal)
    queries = Queries(services.database)
    await queries.require_kept(span.start)
    rows = await queries.usage([], span.start, span.end, where, latencies=False)
    refused = await _refused(queries, span, where)
    lines = [priced(services, name) for name in await in_use(services, caller.principal)]
    cost, estimated = (rows[0].cost_nano, rows[0].estimated_nano) if rows else (0, 0)
    requests = rows[0].requests if rows else 0
    return CoverageAnswer(
        start=shapes.moment(span.start),
        end=shapes.moment(span.end),
        cost_usd=usd(cost),
        confirmed_usd=usd(cost - estimated),
        estimated_usd=usd(estimated),
        confirmed_share=_share(cost - estimated, cost),
        estimated_share=_share(estimated, cost),
        requests=requests,
        unpriced_requests=refused,
        unpriced_share=None if refused is None else _share(refused, requests),
        assumed=[line.model for line in lines if line.status == "assumed"],
    )


async def _refused(queries: Queries, span: Span, where: dict[str, str]) -> int | None:
    """Requests refused for want of a price; None when single requests are not kept for so long."""
    try:
        rows = await queries.usage([], span.start, span.end, {**where, "status": _REFUSED}, latencies=False)
    except ValueError:
        return None
    return rows[0].requests if rows else 0


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


@post("/whatif", opt={"role": "viewer"}, summary="A month under other terms", status_code=200)
async def whatif(caller: CallerDep, data: JSONBody[WhatIf]) -> WhatIfAnswer:
    """Replays the ledger, attempt by attempt. Nothing is changed by asking."""
    return await replayed(caller.services, caller.principal, data)


async def replayed(services: Services, principal: Principal, data: WhatIf) -> WhatIfAnswer:
    """Within what the caller may see. Raises InvalidRequest naming the field."""
    await services.ledger.catch_up()
    span = span_or_month(data.month, data.start, data.end, services.now())
    scenario = _scenario(services, data)
    engines = dict.fromkeys(("local", *services.settings.engines), "local")
    kinds = engines | {name: found.kind for name, found in services.settings.providers.items()}
    stage = Stage(database=services.database, book=services.prices, kinds=kinds)
    try:
        found, unused = await replay(stage, scenario, (span.start, span.end), reach(principal).get("team"))
    except ValueError as error:
        raise InvalidRequest(f"This time cannot be replayed: {error}", param="month") from error
    return WhatIfAnswer(
        start=shapes.moment(span.start),
        end=shapes.moment(span.end),
        actual_usd=usd(found.actual),
        would_usd=usd(found.would),
        difference_usd=usd(found.would - found.actual),
        data=[_line(one) for one in found.lines],
        assumed=found.assumed,
        unused=unused,
    )


def _scenario(services: Services, data: WhatIf) -> Scenario:
    if len(data.prices) + len(data.models) > _MOST_CHANGES:
        raise InvalidRequest(f"At most {_MOST_CHANGES} prices and models can be changed at once.", param="prices")
    prices: dict[str, Price] = {}
    for name, terms in data.prices.items():
        _named(name, f"prices.{name}")
        try:
            prices[name] = price_from(f"whatif/{name}", terms)
        except ValueError as error:
            raise InvalidRequest(str(error), param=f"prices.{name[:100]}") from error
    for name, target in data.models.items():
        param = f"models.{name[:100]}"
        _named(name, param)
        provider, model = _named(target, param)
        known = services.prices.peek(provider, kind_of(services, provider) or "", model, services.now())
        if target not in prices and known is None:
            raise InvalidRequest(f"There is no price for {target[:100]}; give one in `prices`.", param=param)
    return Scenario(prices=prices, models=data.models, cache=_cache(data.cache))


def _named(name: str, param: str) -> tuple[str, str]:
    provider, _, model = name.partition("/")
    if not provider or not model:
        raise InvalidRequest(f"`{param[:100]}` must be a provider/model.", param=param[:100])
    return provider, model


def _cache(wanted: CacheChange) -> CacheWanted:
    if wanted.hit_rate is None:
        return CacheWanted(mode=wanted.mode)
    try:
        rate = Fraction(str(wanted.hit_rate))
    except (ValueError, ZeroDivisionError) as error:
        raise InvalidRequest("`cache.hit_rate` must be a number between 0 and 1.", param="cache.hit_rate") from error
    if not 0 <= rate <= 1 or wanted.mode != "as-it-was":
        raise InvalidRequest("`cache.hit_rate` is between 0 and 1 and goes without a mode.", param="cache.hit_rate")
    return CacheWanted(hit_rate=rate)


def _line(one: Line) -> WhatIfLine:
    return WhatIfLine(
        model=f"{one.provider}/{one.model}",
        target=one.target,
        requests=one.requests,
        hits=one.hits,
        actual_usd=usd(one.actual),
        would_usd=usd(one.would),
        difference_usd=usd(one.would - one.actual),
        audits_usd=usd(one.audits),
        hits_asked_usd=usd(one.hits_asked),
        unpriced=one.unpriced,
    )


def route_handlers() -> list[ControllerRouterHandler]:
    return [control_router("/api/v1", [recompute_usage, coverage, whatif], tags=["Usage"])]
