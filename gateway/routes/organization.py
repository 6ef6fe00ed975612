"""`/v1/organization/…`: costs and usage in the shapes of OpenAI's own admin API, so that tools that read OpenAI's bill
read ours after a change of base URL.

Knows: those shapes, buckets, pages and filters. Does not know: SQL. Fields that have no meaning here are null, never
invented: there is no `line_item` beyond the model, no service tier. What was asked through `/v1/batches` is `batch`.
"""

import base64
import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Literal, TypeVar

from litestar import get
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from gateway.batches.asking import BATCH_TAG
from gateway.call import HEARD, PAINTED, Operation
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
    ImagesBucket,
    ImagesPage,
    ImagesResult,
    ModerationsBucket,
    ModerationsPage,
    ModerationsResult,
    SessionsBucket,
    SessionsPage,
    SpeechesBucket,
    SpeechesPage,
    SpeechesResult,
    TranscriptionsBucket,
    TranscriptionsPage,
    TranscriptionsResult,
    VectorStoresBucket,
    VectorStoresPage,
)
from gateway.routes.usage import reach
from policies.money import dollars

Width = Literal["1m", "1h", "1d"]
_SECONDS: dict[Width, int] = {"1m": 60, "1h": 3_600, "1d": 86_400}
_DEFAULT: dict[Width, int] = {"1m": 60, "1h": 24, "1d": 7}
# OpenAI's own clients may send what we have no meaning for; a filter that has one is read below or refused there.
_OPT = {"role": "finance", "reads_query": True}
_MOST: dict[Width, int] = {"1m": 1_440, "1h": 168, "1d": 31}
_MOST_COST_BUCKETS = 180
_SPANS = {60: "minute", 3_600: "hour", 86_400: "day"}
_MOST_VALUES = 100
_LATEST = 10**12  # seconds since the epoch, far beyond any
_BATCH = f"tag:{BATCH_TAG[0]}"
_FILTERS = {"project_ids": "project", "user_ids": "user", "api_key_ids": "key", "models": "model_used"}
_GROUPS = {
    "project_id": "project",
    "user_id": "user",
    "api_key_id": "key",
    "model": "model_used",
    "line_item": "model_used",
    "batch": _BATCH,
}
_COST_GROUPS = ("project_id", "line_item", "api_key_id")
_USAGE_GROUPS = ("project_id", "user_id", "api_key_id", "model", "batch", "service_tier", "size", "source")
_UNKNOWN = ("sizes", "sources")  # filters by what is not kept

Result = TypeVar("Result", bound=Grouped)
Answer = TypeVar("Answer")


class Wanted(Struct, frozen=True, kw_only=True):
    """One page: the instants its buckets begin at, their width in seconds, and where the next page begins.

    `only`: dimension -> the values that count.
    """

    starts: list[int]
    seconds: int
    groups: list[str]
    next_page: str | None
    only: dict[str, frozenset[str]]


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
    first = _page_start(query.get("page"), seconds)
    first = start // seconds * seconds if first is None else first
    last = math.ceil(min(end if end is not None else math.inf, now + 1) / seconds) * seconds
    starts = range(first, last, seconds)  # never listed as a whole: it may be long
    more = len(starts) > limit
    return Wanted(
        starts=list(starts[:limit]),
        seconds=seconds,
        groups=_groups(_values(request, "group_by"), costs=costs),
        next_page=_page_name(starts[limit]) if more else None,
        only=_only(request, costs=costs),
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
    if not costs and (batch := _flag(request.query_params.get("batch"), "batch")) is not None:
        found[_BATCH] = frozenset([BATCH_TAG[1] if batch else ""])
    for name in _UNKNOWN:
        if _values(request, name):
            raise InvalidRequest(f"`{name}` of images are not kept here.", param=name)
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


def _page_start(text: str | None, seconds: int) -> int | None:
    if text is None:
        return None
    try:
        start = int(base64.urlsafe_b64decode(text.removeprefix("page_") + "=="))
    except ValueError:
        start = -1
    if not 0 <= start <= _LATEST or start % seconds:
        raise InvalidRequest("`page` must be the `next_page` of an earlier answer of the same width.", param="page")
    return start


async def _rows(caller: Caller, wanted: Wanted, where: dict[str, str]) -> list[list[UsageRow]]:
    """The usage of each bucket of the page, grouped as asked and by what is filtered, by one query."""
    names = list(dict.fromkeys([*(_GROUPS[name] for name in wanted.groups if name in _GROUPS), *wanted.only]))
    if "project" in names:
        names.append("team")
    found: dict[int, list[UsageRow]] = {start: [] for start in wanted.starts}
    if not found:
        return []
    span, end = _SPANS[wanted.seconds], wanted.starts[-1] + wanted.seconds
    queries = Queries(caller.services.database)
    await queries.require_kept(wanted.starts[0])
    within = {**where, **reach(caller.principal)}
    rows = await queries.usage([span, *names], wanted.starts[0], end, within, latencies=False)
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
        result.batch = group[_BATCH] == BATCH_TAG[1]
    if isinstance(result, CostResult) and "line_item" in wanted.groups:
        result.line_item = group["model_used"] or None
    elif isinstance(result, CostResult):
        result.quantity = result.quantity_unit = None
    if "project_id" in wanted.groups:
        result.project_id = f"{group['team']}/{group['project']}"
    if "user_id" in wanted.groups:
        result.user_id = group["user"] or None
    if "api_key_id" in wanted.groups:
        result.api_key_id = group["key"]
    if "model" in wanted.groups:
        result.model = group["model_used"] or None
    return result


def _grouped(rows: list[UsageRow], wanted: Wanted) -> list[list[UsageRow]]:
    """Rows by what was asked for; what is only filtered by is put together."""
    names = {_GROUPS[name] for name in wanted.groups if name in _GROUPS}
    names |= {"team"} if "project" in names else set()
    found: dict[tuple[str, ...], list[UsageRow]] = {}
    for row in rows:
        found.setdefault(tuple(row.group[name] for name in sorted(names)), []).append(row)
    return list(found.values())


async def _page(
    caller: Caller,
    kind: tuple[Callable[..., Answer], Callable[..., object]],
    made: Callable[[list[UsageRow]], Grouped],
    operations: Sequence[Operation] | None = None,
) -> Answer:
    """One page of a report, of that kind and with such buckets. `made`: what the rows of one group come to.

    `operations` None: all of them, for costs.
    """
    wanted = wanted_page(caller.request, caller.services.now(), costs=operations is None)
    await caller.services.ledger.flush()
    wheres: list[dict[str, str]] = [{}] if operations is None else [{"operation": name} for name in operations]
    parts = [await _rows(caller, wanted, where) for where in wheres]
    found: list[list[Grouped]] = []
    for number in range(len(wanted.starts)):
        groups = _grouped([row for part in parts for row in part[number]], wanted)
        found.append([_named(made(members), wanted, members[0]) for members in groups])
    return _told(kind, wanted, found)


def _nothing(caller: Caller, kind: tuple[Callable[..., Answer], Callable[..., object]]) -> Answer:
    """A page of a report on what does not exist here."""
    wanted = wanted_page(caller.request, caller.services.now(), costs=False)
    return _told(kind, wanted, [[] for _ in wanted.starts])


def _told(
    kind: tuple[Callable[..., Answer], Callable[..., object]], wanted: Wanted, found: list[list[Grouped]]
) -> Answer:
    page, bucket = kind
    data = [
        bucket(start_time=start, end_time=start + wanted.seconds, results=results)
        for start, results in zip(wanted.starts, found, strict=True)
    ]
    return page(data=data, has_more=wanted.next_page is not None, next_page=wanted.next_page)


def _cost(rows: list[UsageRow]) -> CostResult:
    return CostResult(
        amount=Amount(float(dollars(sum(row.cost_nano for row in rows)))),
        quantity=float(sum(row.prompt + row.completion for row in rows)),
        quantity_unit="tokens",
    )


def _completion(rows: list[UsageRow]) -> CompletionsResult:
    """OpenAI does not tell chat from text completions."""
    return CompletionsResult(
        input_tokens=_prompts(rows),
        output_tokens=sum(row.completion for row in rows),
        input_cached_tokens=sum(row.cached for row in rows),
        input_cache_write_tokens=sum(row.cache_write for row in rows),
        input_uncached_tokens=sum(row.prompt - row.cached - row.cache_write for row in rows),
        num_model_requests=_requests(rows),
    )


def _embedding(rows: list[UsageRow]) -> EmbeddingsResult:
    return EmbeddingsResult(input_tokens=_prompts(rows), num_model_requests=_requests(rows))


def _moderation(rows: list[UsageRow]) -> ModerationsResult:
    return ModerationsResult(input_tokens=_prompts(rows), num_model_requests=_requests(rows))


def _image(rows: list[UsageRow]) -> ImagesResult:
    return ImagesResult(num_model_requests=_requests(rows))


def _speech(rows: list[UsageRow]) -> SpeechesResult:
    return SpeechesResult(characters=_prompts(rows), num_model_requests=_requests(rows))


def _transcription(rows: list[UsageRow]) -> TranscriptionsResult:
    in_seconds = not any(row.completion for row in rows)
    return TranscriptionsResult(seconds=_prompts(rows) if in_seconds else None, num_model_requests=_requests(rows))


def _prompts(rows: list[UsageRow]) -> int:
    return sum(row.prompt for row in rows)


def _requests(rows: list[UsageRow]) -> int:
    return sum(row.requests for row in rows)


@get("/costs", opt=_OPT, summary="Costs in OpenAI's shape")
async def costs(caller: CallerDep) -> CostPage:
    """As OpenAI's `GET /v1/organization/costs`: daily buckets from `start_time` on, grouped by `group_by`.

    What requests cost when they were answered; later corrections stand in statements and FOCUS.
    """
    return await _page(caller, (CostPage, CostBucket), _cost)


@get("/usage/completions", opt=_OPT, summary="Completions in OpenAI's shape")
async def completions(caller: CallerDep) -> CompletionsPage:
    """As OpenAI's `GET /v1/organization/usage/completions`: chat and text completions, hits included."""
    return await _page(caller, (CompletionsPage, CompletionsBucket), _completion, ("chat", "completion"))


@get("/usage/embeddings", opt=_OPT, summary="Embeddings in OpenAI's shape")
async def embeddings(caller: CallerDep) -> EmbeddingsPage:
    """As OpenAI's `GET /v1/organization/usage/embeddings`."""
    return await _page(caller, (EmbeddingsPage, EmbeddingsBucket), _embedding, ("embedding",))


@get("/usage/moderations", opt=_OPT, summary="Moderations in OpenAI's shape")
async def moderations(caller: CallerDep) -> ModerationsPage:
    """As OpenAI's `GET /v1/organization/usage/moderations`."""
    return await _page(caller, (ModerationsPage, ModerationsBucket), _moderation, ("moderation",))


@get("/usage/images", opt=_OPT, summary="Images in OpenAI's shape")
async def images(caller: CallerDep) -> ImagesPage:
    """As OpenAI's `GET /v1/organization/usage/images`."""
    return await _page(caller, (ImagesPage, ImagesBucket), _image, PAINTED)


@get("/usage/audio_speeches", opt=_OPT, summary="Speech in OpenAI's shape")
async def speeches(caller: CallerDep) -> SpeechesPage:
    """As OpenAI's `GET /v1/organization/usage/audio_speeches`."""
    return await _page(caller, (SpeechesPage, SpeechesBucket), _speech, ("speech",))


@get("/usage/audio_transcriptions", opt=_OPT, summary="Transcriptions in OpenAI's shape")
async def transcriptions(caller: CallerDep) -> TranscriptionsPage:
    """As OpenAI's `GET /v1/organization/usage/audio_transcriptions`."""
    return await _page(caller, (TranscriptionsPage, TranscriptionsBucket), _transcription, HEARD)


@get("/usage/vector_stores", opt=_OPT, summary="Vector stores in OpenAI's shape")
async def vector_stores(caller: CallerDep) -> VectorStoresPage:
    """As OpenAI's `GET /v1/organization/usage/vector_stores`; there are none here."""
    return _nothing(caller, (VectorStoresPage, VectorStoresBucket))


@get("/usage/code_interpreter_sessions", opt=_OPT, summary="Sessions in OpenAI's shape")
async def sessions(caller: CallerDep) -> SessionsPage:
    """As OpenAI's `GET /v1/organization/usage/code_interpreter_sessions`; there are none here."""
    return _nothing(caller, (SessionsPage, SessionsBucket))


def route_handlers() -> list[ControllerRouterHandler]:
    usage = [completions, embeddings, moderations, images, speeches, transcriptions, vector_stores, sessions]
    return [control_router("/v1/organization", [costs, *usage], tags=["Organization"])]
