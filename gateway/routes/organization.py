"""`/v1/organization/…`: costs and usage in the shapes of OpenAI's own admin API, so that tools that read OpenAI's bill
read ours after a change of base URL.

Knows: those shapes, buckets and pages. Does not know: SQL. Fields that have no meaning here are null or zero, never
invented: there is no `line_item` beyond the model, no audio, no batch.
"""

import base64
import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Literal, TypeVar

from litestar import get
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from gateway.db.queries import Queries
from gateway.db.rows import UsageRow
from gateway.errors import InvalidRequest
from gateway.routes.access import AnyRequest, Caller, CallerDep, control_router
from gateway.routes.usage import reach
from policies.money import NANO_PER_USD

Width = Literal["1m", "1h", "1d"]
_SECONDS: dict[Width, int] = {"1m": 60, "1h": 3_600, "1d": 86_400}
_DEFAULT: dict[Width, int] = {"1m": 60, "1h": 24, "1d": 7}
_MOST: dict[Width, int] = {"1m": 1_440, "1h": 168, "1d": 31}
_MOST_COST_BUCKETS = 180
_SPANS = {60: "minute", 3_600: "hour", 86_400: "day"}
_GROUPS = {
    "project_id": "project",
    "user_id": "user",
    "api_key_id": "key",
    "model": "model_used",
    "line_item": "model_used",
}


Result = TypeVar("Result", bound="Grouped")


class Amount(Struct):
    """OpenAI's form is a number; the exact decimal stands in `/api/v1/usage`."""

    value: float
    currency: str = "usd"


class Grouped(Struct, kw_only=True):
    """What a result is about; null where it was not asked for. A project is named `team/project`."""

    project_id: str | None = None
    user_id: str | None = None
    api_key_id: str | None = None
    model: str | None = None


class CostResult(Grouped, kw_only=True):
    """`line_item` is the model."""

    amount: Amount
    line_item: str | None = None
    quantity: float | None = None
    object: str = "organization.costs.result"


class CompletionsResult(Grouped, kw_only=True):
    """Tokens and requests of one group in one bucket."""

    input_tokens: int = 0
    output_tokens: int = 0
    input_cached_tokens: int = 0
    num_model_requests: int = 0
    input_audio_tokens: int = 0
    output_audio_tokens: int = 0
    batch: bool | None = None
    service_tier: str | None = None
    object: str = "organization.usage.completions.result"


class EmbeddingsResult(Grouped, kw_only=True):
    """Tokens and requests of one group in one bucket."""

    input_tokens: int = 0
    num_model_requests: int = 0
    object: str = "organization.usage.embeddings.result"


class Bucket(Struct, kw_only=True):
    """`[start_time, end_time)` in seconds since the epoch."""

    start_time: int
    end_time: int
    object: str = "bucket"


class CostBucket(Bucket, kw_only=True):
    """One day."""

    results: list[CostResult]


class CompletionsBucket(Bucket, kw_only=True):
    """One minute, hour or day."""

    results: list[CompletionsResult]


class EmbeddingsBucket(Bucket, kw_only=True):
    """One minute, hour or day."""

    results: list[EmbeddingsResult]


class Page(Struct, kw_only=True):
    """`next_page` is handed back as `page`."""

    has_more: bool
    next_page: str | None
    object: str = "page"


class CostPage(Page, kw_only=True):
    """Buckets in order of time."""

    data: list[CostBucket]


class CompletionsPage(Page, kw_only=True):
    """Buckets in order of time."""

    data: list[CompletionsBucket]


class EmbeddingsPage(Page, kw_only=True):
    """Buckets in order of time."""

    data: list[EmbeddingsBucket]


class Wanted(Struct, frozen=True, kw_only=True):
    """One page: the instants its buckets begin at, their width in seconds, and where the next page begins."""

    starts: list[int]
    seconds: int
    groups: list[str]
    next_page: str | None


def wanted_page(request: AnyRequest, now: float, *, costs: bool) -> Wanted:
    """Read OpenAI's parameters. Buckets begin at whole widths in UTC. Raises InvalidRequest."""
    query = request.query_params
    width = _width(query.get("bucket_width"), costs=costs)
    seconds = _SECONDS[width]
    start = _whole(query.get("start_time"), "start_time")
    if start is None:
        raise InvalidRequest("`start_time` is needed: seconds since the epoch.", param="start_time")
    end = _whole(query.get("end_time"), "end_time")
    limit = _whole(query.get("limit"), "limit") or _DEFAULT[width]
    most = _MOST_COST_BUCKETS if costs else _MOST[width]
    if not 1 <= limit <= most:
        raise InvalidRequest(f"`limit` must lie between 1 and {most} for {width} buckets.", param="limit")
    first = _page_start(query.get("page")) or start // seconds * seconds
    last = math.ceil(min(end if end is not None else math.inf, now + 1) / seconds) * seconds
    starts = range(first, last, seconds)  # never listed as a whole: it may be long
    more = len(starts) > limit
    return Wanted(
        starts=list(starts[:limit]),
        seconds=seconds,
        groups=_groups([*query.getall("group_by", []), *query.getall("group_by[]", [])], costs=costs),
        next_page=_page_name(starts[limit]) if more else None,
    )


def _width(text: str | None, *, costs: bool) -> Width:
    known: tuple[Width, ...] = ("1d",) if costs else ("1m", "1h", "1d")
    for width in known:
        if text == width or (text is None and width == "1d"):
            return width
    raise InvalidRequest(f"`bucket_width` must be one of {', '.join(known)}.", param="bucket_width")


def _groups(names: list[str], *, costs: bool) -> list[str]:
    known = ("project_id", "line_item", "api_key_id") if costs else ("project_id", "user_id", "api_key_id", "model")
    for name in names:
        if name not in known:
            raise InvalidRequest(f"`group_by` takes {', '.join(known)}.", param="group_by")
    return list(dict.fromkeys(names))


def _whole(text: str | None, param: str) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise InvalidRequest(f"`{param}` must be a whole number.", param=param)
    return int(text)


def _page_name(start: int) -> str:
    return "page_" + base64.urlsafe_b64encode(str(start).encode()).decode().rstrip("=")


def _page_start(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(base64.urlsafe_b64decode(text.removeprefix("page_") + "=="))
    except ValueError as error:
        raise InvalidRequest("`page` must be the `next_page` of an earlier answer.", param="page") from error


async def _rows(caller: Caller, wanted: Wanted, where: dict[str, str]) -> list[list[UsageRow]]:
    """The usage of each bucket of the page, grouped as asked, by one query."""
    await caller.services.ledger.flush()
    names = list(dict.fromkeys(_GROUPS[name] for name in wanted.groups))
    if "project" in names:
        names.append("team")
    found: dict[int, list[UsageRow]] = {start: [] for start in wanted.starts}
    if not found:
        return []
    span, end = _SPANS[wanted.seconds], wanted.starts[-1] + wanted.seconds
    rows = await Queries(caller.services.database).usage(
        [span, *names], wanted.starts[0], end, {**where, **reach(caller.principal)}, latencies=False
    )
    for row in rows:
        began = datetime.fromisoformat(row.group[span])
        found[int((began if began.tzinfo else began.replace(tzinfo=UTC)).timestamp())].append(row)
    return list(found.values())


def _named(result: Result, wanted: Wanted, row: UsageRow) -> Result:
    """Fill in the group's fields; one that was not asked for stays null, as OpenAI's do."""
    group = row.group
    if "project_id" in wanted.groups:
        result.project_id = f"{group['team']}/{group['project']}"
    if "user_id" in wanted.groups:
        result.user_id = group["user"] or None
    if "api_key_id" in wanted.groups:
        result.api_key_id = group["key"]
    if "model" in wanted.groups:
        result.model = group["model_used"] or None
    return result


def _cost(wanted: Wanted, row: UsageRow) -> CostResult:
    result = CostResult(amount=Amount(float(Decimal(row.cost_nano) / NANO_PER_USD)))
    if "line_item" in wanted.groups:
        result.line_item = row.group["model_used"] or None
    return _named(result, wanted, row)


def _merged(rows: list[UsageRow], wanted: Wanted) -> list[CompletionsResult]:
    """One result per group: OpenAI does not tell chat from text completions."""
    found: dict[tuple[str, ...], CompletionsResult] = {}
    for row in rows:
        result = found.setdefault(tuple(row.group.values()), _named(CompletionsResult(), wanted, row))
        result.input_tokens += row.prompt
        result.output_tokens += row.completion
        result.input_cached_tokens += row.cached
        result.num_model_requests += row.requests
    return list(found.values())


def _embedded(wanted: Wanted, row: UsageRow) -> EmbeddingsResult:
    return _named(EmbeddingsResult(input_tokens=row.prompt, num_model_requests=row.requests), wanted, row)


@get("/costs", opt={"role": "finance"}, summary="Costs in OpenAI's shape")
async def costs(caller: CallerDep) -> CostPage:
    """As OpenAI's `GET /v1/organization/costs`: daily buckets from `start_time` on, grouped by `group_by`."""
    wanted = wanted_page(caller.request, caller.services.now(), costs=True)
    buckets = await _rows(caller, wanted, {})
    data = [
        CostBucket(start_time=start, end_time=start + wanted.seconds, results=[_cost(wanted, row) for row in rows])
        for start, rows in zip(wanted.starts, buckets, strict=True)
    ]
    return CostPage(data=data, has_more=wanted.next_page is not None, next_page=wanted.next_page)


@get("/usage/completions", opt={"role": "finance"}, summary="Completions in OpenAI's shape")
async def completions(caller: CallerDep) -> CompletionsPage:
    """As OpenAI's `GET /v1/organization/usage/completions`: chat and text completions, hits included."""
    wanted = wanted_page(caller.request, caller.services.now(), costs=False)
    chats = await _rows(caller, wanted, {"operation": "chat"})
    texts = await _rows(caller, wanted, {"operation": "completion"})
    data = [
        CompletionsBucket(start_time=start, end_time=start + wanted.seconds, results=_merged([*chat, *text], wanted))
        for start, chat, text in zip(wanted.starts, chats, texts, strict=True)
    ]
    return CompletionsPage(data=data, has_more=wanted.next_page is not None, next_page=wanted.next_page)


@get("/usage/embeddings", opt={"role": "finance"}, summary="Embeddings in OpenAI's shape")
async def embeddings(caller: CallerDep) -> EmbeddingsPage:
    """As OpenAI's `GET /v1/organization/usage/embeddings`."""
    wanted = wanted_page(caller.request, caller.services.now(), costs=False)
    buckets = await _rows(caller, wanted, {"operation": "embedding"})
    data = [
        EmbeddingsBucket(
            start_time=start, end_time=start + wanted.seconds, results=[_embedded(wanted, row) for row in rows]
        )
        for start, rows in zip(wanted.starts, buckets, strict=True)
    ]
    return EmbeddingsPage(data=data, has_more=wanted.next_page is not None, next_page=wanted.next_page)


def route_handlers() -> list[ControllerRouterHandler]:
    return [control_router("/v1/organization", [costs, completions, embeddings], tags=["Organization"])]
