"""`/api/v1/prices/…`: an engine's price from what was measured, break-even beside upstreams, the calculator.

Knows: JSON in and out, which prices are compared. Does not know: the arithmetic (`policies.engine_cost`,
`policies.calculator`).
"""

from fractions import Fraction
from pathlib import Path
from typing import Annotated

from litestar import get, post
from litestar.params import FromPath, JSONBody, QueryParameter
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from gateway.db.queries import Queries
from gateway.engine_prices import ENCODER, Basis, engine_price, hardware_of, hour_usd
from gateway.errors import InvalidRequest, NotFound
from gateway.price_terms import Amount
from gateway.prices import PriceSetting
from gateway.routes import shapes
from gateway.routes.access import Caller, CallerDep, control_router
from gateway.routes.charged_price import per_million
from gateway.routes.price_shapes import PriceLine, PriceWanted
from gateway.routes.prices import in_use, kind_of, put_price
from gateway.routes.usage import reach, since_of
from gateway.services import Services
from gateway.settings import EngineSettings
from policies.calculator import Estimate, Parts, Workload, checked_workload, estimate
from policies.engine_cost import Hardware, break_even, capacity
from policies.money import Price, Usage, usd

_LOOKED_BACK = 30.0  # days
_TYPICAL = Usage(prompt=1_000, completion=300)
_MOST_TPS = 1e9
_MOST_TOKENS = 100_000_000
_MOST_COMPARED = 50
WELL_KNOWN = ("openai/gpt-5-mini", "openai/gpt-5", "anthropic/claude-haiku-4-5", "google/gemini-2.5-flash")
_ENCODER_NAME = f"local/{ENCODER}"


class EngineWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """What was measured, named as `nearhit engine bench` does; `hour_usd` left out: as configured.

    `busy_share`: of its paid hours, how many the engine is expected to work. `measured` false labels it as assumed.
    """

    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    hour_usd: Amount | None = None
    busy_share: float = 1.0
    measured: bool = True
    effective_from: Amount | None = None


class EvenLine(Struct, kw_only=True):
    """One upstream beside the engine. `requests_per_day`: from so many on the engine costs no more; null: never.

    `utilization`: those requests over what the engine can do; above 1 it cannot do so many (`reachable` false).
    """

    model: str
    version: str
    status: str
    request_usd: str
    requests_per_day: int | None
    tokens_per_day: int | None
    utilization: float | None
    reachable: bool


class EvenAnswer(Struct, kw_only=True):
    """`request_usd`: a request's share of the hour of an engine that is never idle. `status`: measured or assumed."""

    engine: str
    model: str
    status: str
    hour_usd: str
    day_usd: str
    hours_per_day: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    prompt_tokens: int
    completion_tokens: int
    mix: str
    request_usd: str
    requests_per_day_at_most: int
    data: list[EvenLine]


class Asked(Struct, kw_only=True, forbid_unknown_fields=True):
    """A use: `requests_per_day` like this one of `model` (`provider/model` or a configured name).

    `cached_share`: of the prompt, what the provider's cache has; `hit_rate`: of the requests, what this gateway's has.
    """

    model: str
    prompt_tokens: int
    completion_tokens: int
    requests_per_day: int
    cached_share: Amount = 0
    hit_rate: Amount = 0
    reasoning_tokens: int = 0
    days_per_month: int = 30
    lookups: bool = False


class PartsLine(Struct, kw_only=True):
    """Amounts in USD; `saved_usd`, what hits did not cost, is not in `total_usd`."""

    input_usd: str
    cached_usd: str
    output_usd: str
    calls_usd: str
    lookups_usd: str
    total_usd: str
    saved_usd: str


class EnginesLine(Struct, kw_only=True):
    """The same on engines paid by the hour, idle hours and all."""

    engine: str
    status: str
    count: int
    busy: float
    day_usd: str
    month_usd: str


class Calculated(Struct, kw_only=True):
    """`assumed`: in sentences, what the figures rest on."""

    model: str
    version: str
    status: str
    request_usd: str
    day: PartsLine
    month: PartsLine
    engine: EnginesLine | None
    assumed: list[str]


@post("/engines/{engine:str}/{model:path}", opt={"role": "admin"}, summary="Price an engine by what was measured")
async def price_engine(
    caller: CallerDep, engine: FromPath[str], model: FromPath[str], data: JSONBody[EngineWanted]
) -> PriceLine:
    """Its hour over the tokens of an hour becomes a price version, in force from now on or from `effective_from`."""
    services, model = caller.services, model.removeprefix("/")
    settings = _engine(services, engine)
    for name in ("prefill_tokens_per_s", "decode_tokens_per_s", "busy_share"):
        most = 1.0 if name == "busy_share" else _MOST_TPS
        if not 0 < getattr(data, name) <= most:
            raise InvalidRequest(f"`{name}` must be more than 0 and at most {most:g}.", param=name)
    basis = Basis(
        hour_usd=hour_usd(settings) if data.hour_usd is None else str(data.hour_usd),
        prefill_tps=data.prefill_tokens_per_s,
        decode_tps=data.decode_tokens_per_s,
        busy=data.busy_share,
        measured=data.measured,
    )
    try:
        found = engine_price("bench", basis.hour_usd, basis.speed)
    except ValueError as error:
        raise InvalidRequest(str(error), param="hour_usd") from error
    begins = data.effective_from
    setting = PriceSetting(
        actor=caller.principal.key_id,
        effective_from=None if begins is None else shapes.instant(begins, now=services.now(), param="effective_from"),
        source="bench",
        status="measured" if data.measured else "assumed",
        basis=basis,
    )
    wanted = PriceWanted(input_usd=per_million(found.input), output_usd=per_million(found.output))
    return await put_price(caller, f"{engine}/{model}", wanted.terms, setting)


@get("/break-even", opt={"role": "viewer"}, summary="From which load on an engine is cheaper")
async def even(
    caller: CallerDep,
    engine: Annotated[str, QueryParameter(max_length=100)] = "local",
    prompt: Annotated[int | None, QueryParameter(ge=0, le=_MOST_TOKENS)] = None,
    completion: Annotated[int | None, QueryParameter(ge=0, le=_MOST_TOKENS)] = None,
    hours: Annotated[float, QueryParameter(gt=0, le=24)] = 24.0,
    models: Annotated[str | None, QueryParameter(max_length=2_000)] = None,
) -> EvenAnswer:
    """Beside priced upstream models (`models`, with commas; else those in use), for `prompt` and `completion` tokens.

    Left out: the mean of the last 30 days, else 1000 and 300. `hours`: how many a day the engine is paid for.
    """
    services = caller.services
    settings = _engine(services, engine)
    usage, mix = await _mix(caller, prompt, completion)
    model = Path(settings.model).name if settings else "demo"  # clients know a folder by its own name
    hardware, price = _hardware(services, engine, model, hours)
    lines = [
        _even_line(name, hardware, usage, found)
        for name in await _compared(caller, models)
        if (found := _upstream(services, name)) is not None
    ]
    lines.sort(key=lambda line: (line.utilization is None, line.utilization or 0.0, line.model))
    own = break_even(hardware, usage, price)
    return EvenAnswer(
        engine=engine,
        model=model,
        status=price.status,
        hour_usd=usd(hardware.hour_nano),
        day_usd=usd(hardware.day_nano),
        hours_per_day=hours,
        prefill_tokens_per_s=hardware.speed.prefill_tps,
        decode_tokens_per_s=hardware.speed.decode_tps,
        prompt_tokens=usage.prompt,
        completion_tokens=usage.completion,
        mix=mix,
        request_usd=usd(own.engine_nano),
        requests_per_day_at_most=int(capacity(hardware, usage)),
        data=lines,
    )


@post("/calculate", opt={"role": "viewer"}, summary="What a use would cost", status_code=200)
async def calculate(caller: CallerDep, data: JSONBody[Asked]) -> Calculated:
    """Per day and month, in parts; on an engine also as hardware that is paid whether it works or not."""
    return calculated(caller.services, data)


def calculated(services: Services, data: Asked) -> Calculated:
    """Raises NotFound for a model without a price, InvalidRequest for what cannot be."""
    name = _target(services, data.model)
    provider, _, model = name.partition("/")
    kind = kind_of(services, provider)
    price = services.prices.peek(provider, kind or "", model, services.now())
    if price is None:
        raise NotFound(f"There is no price for {name[:120]}. Set one: nearhit prices set {name[:120]} INPUT OUTPUT.")
    try:
        work = checked_workload(
            Workload(
                prompt=data.prompt_tokens,
                completion=data.completion_tokens,
                requests=data.requests_per_day,
                cached_share=_share(data.cached_share, "cached_share"),
                hit_rate=_share(data.hit_rate, "hit_rate"),
                reasoning=data.reasoning_tokens,
                days=data.days_per_month,
            )
        )
    except ValueError as error:
        raise InvalidRequest(str(error), param=str(error).partition(" ")[0]) from error
    hardware = _hardware(services, provider, model, 24.0)[0] if kind == "local" and name != _ENCODER_NAME else None
    lookup = services.prices.peek("local", "local", ENCODER, services.now()) if data.lookups else None
    found = estimate(work, price, lookup=lookup, hardware=hardware)
    return _calculated(name, price, work, found)


def _engine(services: Services, name: str) -> EngineSettings | None:
    settings = services.settings.engines.get(name)
    if settings is None and name != "local":
        raise NotFound(f"There is no engine {name[:80]!r}; configured: {', '.join(services.settings.engines) or '-'}.")
    return settings


def _hardware(services: Services, engine: str, model: str, hours: float) -> tuple[Hardware, Price]:
    """The engine by the hour, and the price its tokens have now."""
    mine = services.prices.override(engine, model, services.now())
    basis = None if mine is None else mine.basis
    hardware = hardware_of(services.settings.engines.get(engine), model, hours, basis)
    price = services.prices.peek(engine, "local", model, services.now())
    return hardware, price or engine_price("engine", usd(hardware.hour_nano), hardware.speed)


async def _compared(caller: Caller, models: str | None) -> list[str]:
    """The names asked for; else what is in use and not an engine, or well-known models while nothing is."""
    if models is not None:
        return [name.strip() for name in models.split(",") if name.strip()][:_MOST_COMPARED]
    services = caller.services
    names = await in_use(services, caller.principal)
    used = [name for name in names if kind_of(services, name.partition("/")[0]) != "local"]
    return used or list(WELL_KNOWN)


def _upstream(services: Services, name: str) -> Price | None:
    provider, _, model = name.partition("/")
    kind = kind_of(services, provider)
    return None if kind == "local" else services.prices.peek(provider, kind or "", model, services.now())


async def _mix(caller: Caller, prompt: int | None, completion: int | None) -> tuple[Usage, str]:
    """The tokens of a typical request of the caller's, and where they come from."""
    if prompt is not None and completion is not None:
        return Usage(prompt=prompt, completion=completion), "as asked"
    services, where = caller.services, {"operation": "chat", **reach(caller.principal)}
    rows = await Queries(services.database).usage([], since_of(services, _LOOKED_BACK), services.now() + 1, where)
    total = rows[0] if rows else None
    mean, mix = _TYPICAL, "assumed: nothing was asked in 30 days"
    if total is not None and total.requests and total.prompt + total.completion:
        mean = Usage(prompt=total.prompt // total.requests, completion=total.completion // total.requests)
        mix = "mean of 30 days"
    return Usage(
        prompt=mean.prompt if prompt is None else prompt,
        completion=mean.completion if completion is None else completion,
    ), mix


def _even_line(name: str, hardware: Hardware, usage: Usage, price: Price) -> EvenLine:
    found = break_even(hardware, usage, price)
    return EvenLine(
        model=name,
        version=price.id,
        status=price.status,
        request_usd=usd(found.upstream_nano),
        requests_per_day=found.requests_per_day,
        tokens_per_day=found.tokens_per_day,
        utilization=None if found.utilization is None else round(found.utilization, 6),
        reachable=found.reachable,
    )


def _target(services: Services, name: str) -> str:
    """`provider/model`; of a configured name, the first target of its route."""
    alias = services.settings.models.get(name)
    if alias is not None:
        return alias.route[0].to
    return {"chat": "local/demo", "embed": _ENCODER_NAME}.get(name, name)


def _share(value: Amount, name: str) -> Fraction:
    try:
        return Fraction(str(value))
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{name} must lie between 0 and 1") from error


def _calculated(name: str, price: Price, work: Workload, found: Estimate) -> Calculated:
    assumed = [f"a month has {work.days} days, every request is alike and is asked once"]
    if price.status == "assumed":
        assumed.append(f"the price of {name} is assumed")
    if work.cached_share:
        assumed.append("cached tokens were written to the provider's cache at no extra cost")
    engine = None
    if found.engines is not None:
        engine = EnginesLine(
            engine=name.partition("/")[0],
            status=price.status,
            count=found.engines.count,
            busy=round(found.engines.busy, 6),
            day_usd=usd(found.engines.day_nano),
            month_usd=usd(found.engines.day_nano * work.days),
        )
    return Calculated(
        model=name,
        version=price.id,
        status=price.status,
        request_usd=usd(found.request_nano),
        day=_parts(found.day),
        month=_parts(found.month),
        engine=engine,
        assumed=assumed,
    )


def _parts(parts: Parts) -> PartsLine:
    return PartsLine(
        input_usd=usd(parts.input),
        cached_usd=usd(parts.cached),
        output_usd=usd(parts.output),
        calls_usd=usd(parts.calls),
        lookups_usd=usd(parts.lookups),
        total_usd=usd(parts.total),
        saved_usd=usd(parts.saved),
    )


def route_handlers() -> list[ControllerRouterHandler]:
    return [control_router("/api/v1/prices", [price_engine, even, calculate], tags=["Prices"])]
