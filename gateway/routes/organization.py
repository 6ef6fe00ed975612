"""`/v1/organization/…`: costs and usage in the shapes of OpenAI's own admin API, so that tools that read OpenAI's bill
read ours after a change of base URL.

Knows: those shapes, buckets, pages and filters. Does not know: SQL. Fields that have no meaning here are null or zero,
never invented: there is no `line_item` beyond the model, no batch, no service tier.
"""

import base64
import math
from datetime import UTC, datetime
from typing import Literal, TypeVar

from litestar import get
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from gateway.db.queries import Queries
from gateway.db.rows import UsageRow
from gateway.db.usage import MOST_GROUPS
from gateway.errors import InvalidRequest
from gateway.routes.access import AnyRequest, Caller, CallerDep, control_router
from gateway.routes.organization_shapes import (
    Amount,
    CompletionsBucket,
    CompletionsPage,
    CompletionsResult,
    CostBucket,
    CostPage,
    CostResult,
    EmbeddingsBucket,
    EmbeddingsPage,
    EmbeddingsResult,
    Grouped,
)
from gateway.routes.usage import reach
from policies.money import dollars

Width = Literal["1m", "1h", "1d"]
_SECONDS: dict[Width, int] = {"1m": 60, "1h": 3_600, "1d": 86_400}
_DEFAULT: dict[Width, int] = {"1m": 60, "1h": 24, "1d": 7}
_MOST: dict[Width, int] = {"1m": 1_440, "1h": 168, "1d": 31}
_MOST_COST_BUCKETS = 180
_SPANS = {60: "minute", 3_600: "hour", 86_400: "day"}
_MOST_VALUES = 100
_FILTERS = {"project_ids": "project", "user_ids": "user", "api_key_ids": "key", "models": "model_used"}
_GROUPS = {
    "project_id": "project",
    "user_id": "user",
    "api_key_id": "key",
    "model": "model_used",
    "line_item": "model_used",
}
_COST_GROUPS = ("project_id", "line_item", "api_key_id")
_USAGE_GROUPS = ("project_id", "user_id", "api_key_id", "model", "batch", "service_tier")


Result = TypeVar("Result", bound="Grouped")


class Wanted(Struct, frozen=True, kw_only=True):
    """One page: the instants its buckets begin at, their width in seconds, and where the next page begins.

    `only`: dimension -> the values that count. `nothing`: the filters leave nothing (`batch=true`).
    """

    starts: list[int]
    seconds: int
    groups: list[str]
    next_page: str | None
    only: dict[str, frozenset[str]]
    nothing: bool = False


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
        groups=_groups(_values(request, "group_by"), costs=costs),
        next_page=_page_name(starts[limit]) if more else None,
        only=_only(request, costs=costs),
        nothing=_flag(query.get("batch"), "batch") is True,
    )


def _values(request: AnyRequest, name: str) -> list[str]:
    """A list as OpenAI's clients write it: `name=a&name=b`, `name[]=a`, or `name=a,b`."""
    query = request.query_params
    given = [*query.getall(name, []), *query.getall(f"{name}[]", [])]
    return [part.strip() for text in given for part in text.split(",") if part.strip()]


def _only(request: AnyRequest, *, costs: bool) -> dict[str, frozenset[str]]:
    """The filters that were given. Raises InvalidRequest."""
    known = ("project_ids", "api_key_ids") if costs else tuple(_FILTERS)
    found: dict[str, frozenset[str]] = {}
    for name in known:
        values = _values(request, name)
        if len(values) > _MOST_VALUES:
            raise InvalidRequest(f"`{name}` takes at most {_MOST_VALUES} values.", param=name)
        if values:
            found[_FILTERS[name]] = frozenset(values)
    return found


def _flag(text: str | None, param: str) -> bool | None:
    if text in (None, "true", "false"):
        return None if text is None else text == "true"
    raise InvalidRequest(f"`{param}` must be true or false.", param=param)


def _width(text: str | None, *, costs: bool) -> Width:
    known: tuple[Width, ...] = ("1d",) if costs else ("1m", "1h", "1d")
    for width in known:
        if text == width or (text is None and width == "1d"):
            return width
    raise InvalidRequest(f"`bucket_width` must be one of {', '.join(known)}.", param="bucket_width")


def _groups(names: list[str], *, costs: bool) -> list[str]:
    known = _COST_GROUPS if costs else _USAGE_GROUPS
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
    """The usage of each bucket of the page, grouped as asked and by what is filtered, by one query."""
    await caller.services.ledger.flush()
    names = list(dict.fromkeys([*(_GROUPS[name] for name in wanted.groups if name in _GROUPS), *wanted.only]))
    if "project" in names:
        names.append("team")
    found: dict[int, list[UsageRow]] = {start: [] for start in wanted.starts}
    if not found or wanted.nothing:
        return list(found.values())
    span, end = _SPANS[wanted.seconds], wanted.starts[-1] + wanted.seconds
    rows = await Queries(caller.services.database).usage(
        [span, *names], wanted.starts[0], end, {**where, **reach(caller.principal)}, latencies=False
    )
    if len(rows) >= MOST_GROUPS:
        raise InvalidRequest(f"This page has more than {MOST_GROUPS} groups; ask for fewer buckets.", param="limit")
    for row in rows:
        if _counts(wanted, row):
            began = datetime.fromisoformat(row.group[span])
            found[int((began if began.tzinfo else began.replace(tzinfo=UTC)).timestamp())].append(row)
    return list(found.values())


def _counts(wanted: Wanted, row: UsageRow) -> bool:
    """Whether a row passes every filter."""
    said = {**row.group, "project": f"{row.group.get('team')}/{row.group.get('project')}"}
    return all(said[name] in values for name, values in wanted.only.items())


def _named(result: Result, wanted: Wanted, row: UsageRow) -> Result:
    """Fill in the group's fields; one that was not asked for stays null, as OpenAI's do."""
    group = row.group
    if isinstance(result, CompletionsResult) and "batch" in wanted.groups:
        result.batch = False  # the gateway sends nothing in batches
    if "project_id" in wanted.groups:
        result.project_id = f"{group['team']}/{group['project']}"
    if "user_id" in wanted.groups:
        result.user_id = group["user"] or None
    if "api_key_id" in wanted.groups:
        result.api_key_id = group["key"]
    if "model" in wanted.groups:
        result.model = group["model_used"] or None
    return result


def _costs(rows: list[UsageRow], wanted: Wanted) -> list[CostResult]:
    found: list[CostResult] = []
    for group, members in _grouped(rows, wanted):
        cost = dollars(sum(row.cost_nano for row in members))
        result = _named(CostResult(amount=Amount(float(cost))), wanted, group)
        if "line_item" in wanted.groups:
            result.line_item = group.group["model_used"] or None
            result.quantity = float(sum(row.prompt + row.completion for row in members))
            result.quantity_unit = "tokens"
        found.append(result)
    return found


def _completions(rows: list[UsageRow], wanted: Wanted) -> list[CompletionsResult]:
    """OpenAI does not tell chat from text completions."""
    found: list[CompletionsResult] = []
    for group, members in _grouped(rows, wanted):
        result = _named(CompletionsResult(), wanted, group)
        for row in members:
            result.input_tokens += row.prompt
            result.output_tokens += row.completion
            result.input_cached_tokens += row.cached
            result.input_cache_write_tokens += row.cache_write
            result.input_uncached_tokens += row.prompt - row.cached - row.cache_write
            result.num_model_requests += row.requests
        found.append(result)
    return found


def _embedded(rows: list[UsageRow], wanted: Wanted) -> list[EmbeddingsResult]:
    found: list[EmbeddingsResult] = []
    for group, members in _grouped(rows, wanted):
        tokens, requests = sum(row.prompt for row in members), sum(row.requests for row in members)
        found.append(_named(EmbeddingsResult(input_tokens=tokens, num_model_requests=requests), wanted, group))
    return found


def _grouped(rows: list[UsageRow], wanted: Wanted) -> list[tuple[UsageRow, list[UsageRow]]]:
    """Rows by what was asked for; what is only filtered by is put together. One of each group stands for its names."""
    names = {_GROUPS[name] for name in wanted.groups if name in _GROUPS}
    names |= {"team"} if "project" in names else set()
    found: dict[tuple[str, ...], list[UsageRow]] = {}
    for row in rows:
        found.setdefault(tuple(row.group[name] for name in sorted(names)), []).append(row)
    return [(members[0], members) for members in found.values()]


@get("/costs", opt={"role": "finance"}, summary="Costs in OpenAI's shape")
async def costs(caller: CallerDep) -> CostPage:
    """As OpenAI's `GET /v1/organization/costs`: daily buckets from `start_time` on, grouped by `group_by`."""
    wanted = wanted_page(caller.request, caller.services.now(), costs=True)
    buckets = await _rows(caller, wanted, {})
    data = [
        CostBucket(start_time=start, end_time=start + wanted.seconds, results=_costs(rows, wanted))
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
        CompletionsBucket(
            start_time=start, end_time=start + wanted.seconds, results=_completions([*chat, *text], wanted)
        )
        for start, chat, text in zip(wanted.starts, chats, texts, strict=True)
    ]
    return CompletionsPage(data=data, has_more=wanted.next_page is not None, next_page=wanted.next_page)


@get("/usage/embeddings", opt={"role": "finance"}, summary="Embeddings in OpenAI's shape")
async def embeddings(caller: CallerDep) -> EmbeddingsPage:
    """As OpenAI's `GET /v1/organization/usage/embeddings`."""
    wanted = wanted_page(caller.request, caller.services.now(), costs=False)
    buckets = await _rows(caller, wanted, {"operation": "embedding"})
    data = [
        EmbeddingsBucket(start_time=start, end_time=start + wanted.seconds, results=_embedded(rows, wanted))
        for start, rows in zip(wanted.starts, buckets, strict=True)
    ]
    return EmbeddingsPage(data=data, has_more=wanted.next_page is not None, next_page=wanted.next_page)


def route_handlers() -> list[ControllerRouterHandler]:
    return [control_router("/v1/organization", [costs, completions, embeddings], tags=["Organization"])]
