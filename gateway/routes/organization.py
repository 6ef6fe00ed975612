"""`/v1/organization/…`: costs and usage in the shapes of OpenAI's own admin API, so that tools that read OpenAI's bill
read ours after a change of base URL.

Knows: those shapes, buckets and pages. Does not know: SQL, parameters (`organization_asked`). Fields that have no
meaning here are null, never invented: there is no `line_item` beyond the model, no service tier. What was asked through
`/v1/batches` is `batch`.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from litestar import get
from litestar.types import ControllerRouterHandler

from gateway.batches.asking import BATCH_TAG
from gateway.call import HEARD, PAINTED, Operation
from gateway.db.queries import Queries
from gateway.db.rows import UsageRow
from gateway.db.searches import Searched, searches
from gateway.db.usage import MOST_GROUPS
from gateway.errors import InvalidRequest
from gateway.routes.access import Caller, CallerDep, control_router
from gateway.routes.organization_asked import BATCH, GROUPS, Wanted, wanted_page
from gateway.routes.organization_shapes import (
    Amount,
    CompletionsBucket,
    CompletionsPage,
    CompletionsResult,
    CostBucket,
    CostPage,
    CostResult,
    DecisionsBucket,
    DecisionsPage,
    EmbeddingsBucket,
    EmbeddingsPage,
    EmbeddingsResult,
    FileSearchesBucket,
    FileSearchesPage,
    FileSearchesResult,
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
    WebSearchesBucket,
    WebSearchesPage,
    WebSearchesResult,
)
from gateway.routes.usage import reach
from policies.money import dollars

# OpenAI's own clients may send what we have no meaning for; a filter that has one is read, or refused.
_OPT = {"role": "finance", "reads_query": True}
_SPANS = {60: "minute", 3_600: "hour", 86_400: "day"}

Result = TypeVar("Result", bound=Grouped)
Answer = TypeVar("Answer")
Row = TypeVar("Row", UsageRow, Searched)


async def _rows(caller: Caller, wanted: Wanted, where: dict[str, str]) -> list[list[UsageRow]]:
    """The usage of each bucket of the page, grouped as asked and by what is filtered, by one query."""
    names = list(dict.fromkeys([*(GROUPS[name] for name in wanted.groups if name in GROUPS), *wanted.only]))
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


def _counts(wanted: Wanted, row: UsageRow | Searched) -> bool:
    """Whether a row passes every filter."""
    said = {**row.group, "project": f"{row.group.get('team')}/{row.group.get('project')}"}
    return all(said[name] in values for name, values in wanted.only.items())


def _named(result: Result, wanted: Wanted, row: UsageRow | Searched) -> Result:
    """Fill in the group's fields; one that was not asked for stays null, as OpenAI's do."""
    group = row.group
    if isinstance(result, CompletionsResult) and "batch" in wanted.groups:
        result.batch = group[BATCH] == BATCH_TAG[1]
    if isinstance(result, CostResult) and "line_item" in wanted.groups:
        result.line_item = group["model_used"] or None
    elif isinstance(result, CostResult):
        result.quantity = result.quantity_unit = None
    if isinstance(result, (CompletionsResult, CostResult, WebSearchesResult)) and "api_source" in wanted.groups:
        result.api_source = "unlabeled"  # OpenAI's word for whatever is not of its Agents API
    if "project_id" in wanted.groups:
        result.project_id = f"{group['team']}/{group['project']}"
    if "user_id" in wanted.groups:
        result.user_id = group["user"] or None
    if "api_key_id" in wanted.groups:
        result.api_key_id = group["key"]
    if "model" in wanted.groups:
        result.model = group["model_used"] or None
    return result


def _grouped(rows: list[Row], wanted: Wanted) -> list[list[Row]]:
    """Rows by what was asked for; what is only filtered by is put together."""
    names = {GROUPS[name] for name in wanted.groups if name in GROUPS}
    names |= {"team"} if "project" in names else set()
    found: dict[tuple[str, ...], list[Row]] = {}
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


async def _searched(
    caller: Caller,
    kind: tuple[Callable[..., Answer], Callable[..., object]],
    made: Callable[[list[Searched]], WebSearchesResult | FileSearchesResult],
) -> Answer:
    """A page of what services have looked for, of the ledger. `made`: what a group comes to; without any it is none."""
    wanted = wanted_page(caller.request, caller.services.now(), costs=False)
    if "batch" in wanted.groups or BATCH in wanted.only:
        raise InvalidRequest("Searches are not told by batch.", param="batch")
    await caller.services.ledger.flush()
    buckets: list[list[Searched]] = [[] for _ in wanted.starts]
    if wanted.starts:
        first, end, team = wanted.starts[0], wanted.starts[-1] + wanted.seconds, reach(caller.principal).get("team")
        rows = await searches(caller.services.database, first, end, seconds=wanted.seconds, team=team)
        if len(rows) >= MOST_GROUPS:
            raise InvalidRequest(f"This page has more than {MOST_GROUPS} groups; ask for fewer buckets.", param="limit")
        for row in rows:
            if _counts(wanted, row):
                buckets[row.bucket].append(row)
    found: list[list[Grouped]] = []
    for bucket in buckets:
        groups = [(made(members), members[0]) for members in _grouped(bucket, wanted)]
        found.append([_named(result, wanted, first) for result, first in groups if result.num_requests])
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


def _web(rows: list[Searched]) -> WebSearchesResult:
    asked = sum(row.web_requests for row in rows)
    return WebSearchesResult(num_requests=sum(row.web for row in rows), num_model_requests=asked)


def _files(rows: list[Searched]) -> FileSearchesResult:
    return FileSearchesResult(num_requests=sum(row.files for row in rows))


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


@get("/usage/web_search_calls", opt=_OPT, summary="Web searches in OpenAI's shape")
async def web_searches(caller: CallerDep) -> WebSearchesPage:
    """As OpenAI's `GET /v1/organization/usage/web_search_calls`: what services have counted, of the ledger."""
    return await _searched(caller, (WebSearchesPage, WebSearchesBucket), _web)


@get("/usage/file_search_calls", opt=_OPT, summary="File searches in OpenAI's shape")
async def file_searches(caller: CallerDep) -> FileSearchesPage:
    """As OpenAI's `GET /v1/organization/usage/file_search_calls`: what services have counted, of the ledger."""
    return await _searched(caller, (FileSearchesPage, FileSearchesBucket), _files)


@get("/usage/vector_stores", opt=_OPT, summary="Vector stores in OpenAI's shape")
async def vector_stores(caller: CallerDep) -> VectorStoresPage:
    """As OpenAI's `GET /v1/organization/usage/vector_stores`; there are none here."""
    return _nothing(caller, (VectorStoresPage, VectorStoresBucket))


@get("/usage/code_interpreter_sessions", opt=_OPT, summary="Sessions in OpenAI's shape")
async def sessions(caller: CallerDep) -> SessionsPage:
    """As OpenAI's `GET /v1/organization/usage/code_interpreter_sessions`; there are none here."""
    return _nothing(caller, (SessionsPage, SessionsBucket))


@get("/usage/decisions", opt=_OPT, summary="Decisions in OpenAI's shape")
async def decisions(caller: CallerDep) -> DecisionsPage:
    """As OpenAI's `GET /v1/organization/usage/decisions`; there are none here."""
    return _nothing(caller, (DecisionsPage, DecisionsBucket))


def route_handlers() -> list[ControllerRouterHandler]:
    usage = [completions, embeddings, moderations, images, speeches, transcriptions, web_searches, file_searches]
    usage += [vector_stores, sessions, decisions]
    return [control_router("/v1/organization", [costs, *usage], tags=["Organization"])]
