"""`/api/v1/requests`: recent requests, and everything about one: route, attempts, timings, cost lines, why hit or miss.

Knows: shapes, who may see which row. Does not know: SQL, what a prompt said (nothing here keeps content).
"""

import asyncio
from decimal import Decimal
from typing import Annotated, Literal, cast

from litestar import Response, get
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from gateway.auth import within
from gateway.call import Principal
from gateway.db.listing import EVER
from gateway.db.queries import Queries
from gateway.db.rows import EntryLine, PriceLine, RequestDetail, RequestLine
from gateway.errors import NotFound
from gateway.ids import moment, request_of
from gateway.ledger.checks import classes_of
from gateway.routes import shapes
from gateway.routes.access import CallerDep, control_router
from gateway.routes.charged_price import PriceView, price_view
from gateway.routes.told import items, number, numbers, records, text
from gateway.routes.usage import filters, span_of
from gateway.services import Services
from gateway.web.sheet import csv_bytes
from policies.money import usd


class RequestView(Struct, kw_only=True):
    """One request. Durations in milliseconds, amounts in USD as decimal strings."""

    id: str
    at: str
    key_id: str
    team: str
    project: str
    user: str | None
    operation: str
    model: str
    provider: str
    model_used: str
    stream: bool
    source: str
    cache: str
    status: int
    error: str | None
    finish: str | None
    complete: bool
    client_gone: bool
    attempts: int
    prompt_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cost_usd: str
    saved_usd: str
    cost_status: str
    similarity: float | None
    confidence: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    total_ms: float
    overhead_ms: float | None
    tags: dict[str, str]


class RequestList(Struct, kw_only=True):
    """Newest first. `next`: hand it back as `before` for the page after this one; null on the last page."""

    data: list[RequestView]
    next: str | None


class CostLine(Struct, kw_only=True):
    """One line of the ledger: one attempt or one correction. `source`: what the amount rests on.

    `classes`: rarer tokens, parts of the others; searches; `unpriced`, what was done for a fee that nobody knows.
    """

    id: str
    at: str
    provider: str
    model: str
    provider_id: str | None
    prompt_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    amount_usd: str
    reserved_usd: str
    source: str
    ended: str
    note: str | None
    windows: list[str]
    price: PriceView | None
    classes: dict[str, int] = {}


class Candidate(Struct, kw_only=True):
    """A kept answer that was considered. `guard` forbade it, `guards` spoke against it; `answer`: it is a key of that.

    `risk`: that it is wrong, cautiously; `features`: what that rests on, by name, zeros left out.
    """

    entry: int | None = None
    similarity: float | None = None
    confidence: float | None = None
    guard: str | None = None
    answer: int | None = None
    risk: float | None = None
    guards: list[str] = []
    features: dict[str, float] = {}


class Step(Struct, kw_only=True):
    """One attempt on the clock of the request, in milliseconds from its arrival.

    `replica`: which server of a fleet; `key`: which of a pool, by number. `why` it was made, where it was not plainly
    next: hedge, rung, vote, canary, …
    """

    id: str = ""
    provider: str = ""
    model: str = ""
    result: str = ""
    start_ms: float = 0.0
    first_chunk_ms: float | None = None
    end_ms: float | None = None
    cost_usd: str = "0"
    replica: str = ""
    key: str = ""
    why: str = ""


class Why(Struct, kw_only=True):
    """Why this was a hit or a miss: the word for it, and what was looked at.

    `scope`: the beginning of its digest; `headroom`: how the scope stood; `judged`: what a fresh answer said later;
    `audit`: the request that asked again, `of`: the request this one checked. `degraded`: which budget had a cheaper
    model asked; `max_tokens`: which one left room for a shorter answer only. `dialect`: asked in another than chat's.
    `routing`: every candidate with the parts of its cost, or why it was left out; `cascade`, `ensemble`: what each of
    several answers was worth; `shadow`: what another model said to the same.
    """

    reason: str | None
    semantic_bar: str | None
    entry: int | None
    lookup_ms: float | None
    candidates: list[Candidate]
    scope: str | None = None
    headroom: dict[str, float] = {}
    judged: dict[str, object] | None = None
    audit: str | None = None
    of: str | None = None
    degraded: dict[str, object] | None = None
    max_tokens: dict[str, object] | None = None
    dialect: str | None = None
    routing: dict[str, object] | None = None
    cascade: dict[str, object] | None = None
    ensemble: dict[str, object] | None = None
    shadow: dict[str, object] | None = None


class RequestAnswer(Struct, kw_only=True):
    """`why` is null once the explanation was kept its time; `request` while the request still runs. The `attempts` of a
    shared answer are those of the request that asked for it, which their ids name and which paid for them."""

    request: RequestView | None
    route: list[str]
    attempts: list[Step]
    lines: list[CostLine]
    why: Why | None


def view(row: RequestLine) -> RequestView:
    return RequestView(
        id=row.id,
        at=shapes.moment(row.at) or "",
        key_id=row.key_id,
        team=row.team,
        project=row.project,
        user=row.user,
        operation=row.operation,
        model=row.model,
        provider=row.provider,
        model_used=row.model_used,
        stream=row.stream,
        source=row.source,
        cache=row.cache,
        status=row.status,
        error=row.error,
        finish=row.finish,
        complete=row.complete,
        client_gone=row.client_gone,
        attempts=row.attempts,
        prompt_tokens=row.prompt,
        cached_tokens=row.cached,
        cache_write_tokens=row.cache_write,
        completion_tokens=row.completion,
        reasoning_tokens=row.reasoning,
        cost_usd=usd(row.cost_nano),
        saved_usd=usd(row.saved_nano),
        cost_status=row.cost_status,
        similarity=row.similarity,
        confidence=row.confidence,
        ttft_ms=row.ttft_ms,
        tpot_ms=row.tpot_ms,
        total_ms=row.total_ms,
        overhead_ms=row.overhead_ms,
        tags=row.tags or {},
    )


def line_view(entry: EntryLine, prices: dict[str, PriceLine]) -> CostLine:
    price = prices.get(entry.price)
    return CostLine(
        id=entry.id,
        at=shapes.moment(entry.at) or "",
        provider=entry.provider,
        model=entry.model,
        provider_id=entry.provider_id,
        prompt_tokens=entry.prompt,
        cached_tokens=entry.cached,
        cache_write_tokens=entry.cache_write,
        completion_tokens=entry.completion,
        reasoning_tokens=entry.reasoning,
        amount_usd=usd(entry.amount_nano),
        reserved_usd=usd(entry.reserved_nano),
        source=entry.source,
        ended=entry.ended,
        note=entry.note,
        windows=entry.windows,
        price=None if price is None else price_view(price),
        classes={name: count for name, count in classes_of(entry.classes).items() if count},
    )


def answer(found: RequestDetail) -> RequestAnswer:
    told = found.explain or {}
    return RequestAnswer(
        request=None if found.request is None else view(found.request),
        route=[str(target) for target in items(told.get("route"))],
        attempts=[_step(item) for item in records(told.get("attempts"))],
        lines=[line_view(entry, found.prices) for entry in found.entries],
        why=None if found.explain is None else _why(told),
    )


def _why(told: dict[str, object]) -> Why:
    entry, lookup = told.get("entry"), told.get("lookup_ms")
    return Why(
        reason=text(told.get("reason")),
        semantic_bar=text(told.get("semantic_bar")),
        entry=entry if isinstance(entry, int) else None,
        lookup_ms=number(lookup),
        candidates=[
            Candidate(
                entry=cast("int | None", item.get("entry")),
                similarity=number(item.get("similarity")),
                confidence=number(item.get("confidence")),
                guard=text(item.get("guard")),
                answer=cast("int | None", item.get("answer")),
                risk=number(item.get("risk")),
                guards=[str(name) for name in items(item.get("guards"))],
                features=numbers(item.get("features")),
            )
            for item in records(told.get("looked"))
        ],
        scope=text(told.get("scope")),
        headroom=numbers(told.get("headroom")),
        judged=cast("dict[str, object] | None", told.get("judged")),
        audit=text(told.get("audit")),
        of=text(told.get("of")),
        degraded=cast("dict[str, object] | None", told.get("degraded")),
        max_tokens=cast("dict[str, object] | None", told.get("max_tokens")),
        dialect=cast("str | None", told.get("dialect")),
        **{name: cast("dict[str, object] | None", told.get(name)) for name in _OF_ROUTING},
    )


_OF_ROUTING = ("routing", "cascade", "ensemble", "shadow")


def _step(item: dict[str, object]) -> Step:
    cost = item.get("cost_nano")
    return Step(
        id=str(item.get("id", "")),
        provider=str(item.get("provider", "")),
        model=str(item.get("model", "")),
        result=str(item.get("result", "")),
        start_ms=number(item.get("start_ms")) or 0.0,
        first_chunk_ms=number(item.get("first_chunk_ms")),
        end_ms=number(item.get("end_ms")),
        cost_usd=usd(cost) if isinstance(cost, int) else "0",
        replica=str(item.get("replica", "")),
        key=str(item.get("key", "")),
        why=str(item.get("why", "")),
    )


_TRIES = 15
_PAUSE_SECONDS = 0.1
_YOUNG_SECONDS = 10.0


async def detail(services: Services, principal: Principal, request_id: str) -> RequestDetail:
    """One request, if it is the caller's business. Raises NotFound, also for another team's.

    `request_id` may be the id that its answer carries.
    """
    found = await _written(services, request_of(request_id))
    teams = set[str]()
    if found is not None:
        teams = {entry.team for entry in found.entries} | ({found.request.team} if found.request else set[str]())
    if found is None or not all(within(principal, team) for team in teams):
        why = "What was refused before it was read whole, and what was only rehearsed, leaves no row."
        raise NotFound(f"There is no request {request_id[:80]!r}. {why}", code="request_not_found")
    return found


async def _written(services: Services, name: str) -> RequestDetail | None:
    """What is in the database of a request, once it is there: people judge an answer as soon as they have read it."""
    await services.ledger.catch_up()
    queries = Queries(services.database)
    found = await queries.request(name)
    for _ in range(_TRIES if found is None and _may_be_elsewhere(services, name) else 0):
        await asyncio.sleep(_PAUSE_SECONDS)
        if (found := await queries.request(name)) is not None:
            break
    return found


def _may_be_elsewhere(services: Services, name: str) -> bool:
    """Whether another worker may be about to write it down."""
    if services.database.dialect == "sqlite":
        return False
    try:
        return abs(services.now() - moment(name)) < _YOUNG_SECONDS
    except ValueError:
        return False


@get("/", opt={"role": "viewer", "reads_query": True}, summary="Recent requests")
async def list_requests(
    caller: CallerDep,
    limit: Annotated[int, QueryParameter(ge=1, le=1000)] = 50,
    before: Annotated[str | None, QueryParameter(max_length=64)] = None,
    failed: FromQuery[bool] = False,
    form: Annotated[Literal["json", "csv"] | None, QueryParameter(name="format")] = None,
) -> RequestList | Response[bytes]:
    """Newest first, filtered as in `/api/v1/usage`; `from` and `to` as there, left out all there are.

    `failed`: only those answered with 400 or more.
    """
    await caller.services.ledger.catch_up()
    start, end = caller.request.query_params.get("from"), caller.request.query_params.get("to")
    its = span_of(start or "1970-01-01", end, caller.services.now())
    span = (its.start, EVER[1] if end is None else its.end)
    where = filters(caller.request, caller.principal)
    found = await Queries(caller.services.database).recent_requests(limit + 1, before, where, failed, span)
    rows = found[:limit]
    if form == "csv":
        return as_csv(rows)
    return RequestList(data=[view(row) for row in rows], next=rows[-1].id if len(found) > limit else None)


COLUMNS = tuple(name for name in RequestView.__struct_fields__ if name != "tags")


def as_csv(rows: list[RequestLine]) -> Response[bytes]:
    """A download, one line per request."""
    body = csv_bytes(COLUMNS, [cells(view(row)) for row in rows])
    headers = {"content-disposition": 'attachment; filename="nearhit-requests.csv"'}
    return Response(body, media_type="text/csv", headers=headers)


def cells(row: RequestView) -> list[str | int | float | Decimal | None]:
    """The values of `COLUMNS`, amounts as plain numbers."""
    values = [getattr(row, name) for name in COLUMNS]
    return [Decimal(value) if name.endswith("_usd") else value for name, value in zip(COLUMNS, values, strict=True)]


@get("/{request_id:str}", opt={"role": "viewer"}, summary="Everything about one request")
async def read_request(caller: CallerDep, request_id: FromPath[str]) -> RequestAnswer:
    """Route, attempts, timings, cost lines with their price version, and why it was a hit or a miss. `request_id`: of
    `x-request-id`, or the id of the answer's body."""
    return answer(await detail(caller.services, caller.principal, request_id))


def route_handlers() -> list[ControllerRouterHandler]:
    return [control_router("/api/v1/requests", [list_requests, read_request], tags=["Requests"])]
