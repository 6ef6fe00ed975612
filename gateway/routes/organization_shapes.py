"""The answers of OpenAI's admin API about costs and usage.

Knows only shapes. Source: OpenAI's OpenAPI description of 2026-08-21 (`CostsResult`, `Usage…Result`, `UsageTimeBucket`,
`UsageResponse`). What is not kept here is null, never a zero that nobody has counted.
"""

from typing import Generic, TypeVar

from msgspec import Struct

Result = TypeVar("Result")
Buckets = TypeVar("Buckets")


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
    """`line_item` is the model, `quantity` its tokens; both null unless grouped by it."""

    amount: Amount
    api_source: str | None = None
    line_item: str | None = None
    quantity: float | None = None
    quantity_unit: str | None = None
    object: str = "organization.costs.result"


class CompletionsResult(Grouped, kw_only=True):
    """Tokens and requests of one group in one bucket. Of text, pictures, sound and lifetimes nobody adds any up."""

    input_tokens: int = 0
    output_tokens: int = 0
    input_cached_tokens: int = 0
    input_cache_write_tokens: int = 0
    input_uncached_tokens: int = 0
    num_model_requests: int = 0
    input_cache_write_30m_tokens: int | None = None
    input_cache_write_12h_tokens: int | None = None
    input_text_tokens: int | None = None
    input_image_tokens: int | None = None
    input_audio_tokens: int | None = None
    input_cached_text_tokens: int | None = None
    input_cached_image_tokens: int | None = None
    input_cached_audio_tokens: int | None = None
    output_text_tokens: int | None = None
    output_image_tokens: int | None = None
    output_audio_tokens: int | None = None
    api_source: str | None = None
    batch: bool | None = None
    service_tier: str | None = None
    object: str = "organization.usage.completions.result"


class EmbeddingsResult(Grouped, kw_only=True):
    """Tokens and requests of one group in one bucket."""

    input_tokens: int = 0
    num_model_requests: int = 0
    object: str = "organization.usage.embeddings.result"


class ModerationsResult(Grouped, kw_only=True):
    """Of what moderations read, at most: they tell no count."""

    input_tokens: int = 0
    num_model_requests: int = 0
    object: str = "organization.usage.moderations.result"


class ImagesResult(Grouped, kw_only=True):
    """Requests for images; how many each made, and how large, is not kept."""

    images: int | None = None
    num_model_requests: int = 0
    source: str | None = None
    size: str | None = None
    object: str = "organization.usage.images.result"


class SpeechesResult(Grouped, kw_only=True):
    """Characters that were spoken."""

    characters: int = 0
    num_model_requests: int = 0
    object: str = "organization.usage.audio_speeches.result"


class TranscriptionsResult(Grouped, kw_only=True):
    """Seconds that were transcribed; null where any of it was counted in tokens."""

    seconds: int | None = None
    num_model_requests: int = 0
    object: str = "organization.usage.audio_transcriptions.result"


class WebSearchesResult(Grouped, kw_only=True):
    """Searches of the web, and the requests that made any. How much each was to read is not kept."""

    num_requests: int = 0
    num_model_requests: int = 0
    api_source: str | None = None
    context_level: str | None = None
    object: str = "organization.usage.web_searches.result"


class FileSearchesResult(Grouped, kw_only=True):
    """Searches of files at a service; in which of its stores is not kept."""

    num_requests: int = 0
    vector_store_id: str | None = None
    object: str = "organization.usage.file_searches.result"


class VectorStoresResult(Struct, kw_only=True):
    """There are none here, so no bucket ever has one."""

    usage_bytes: int
    project_id: str | None = None
    object: str = "organization.usage.vector_stores.result"


class SessionsResult(Struct, kw_only=True):
    """There are none here, so no bucket ever has one."""

    num_sessions: int
    project_id: str | None = None
    object: str = "organization.usage.code_interpreter_sessions.result"


class DecisionsResult(CompletionsResult, kw_only=True):
    """There are none here, so no bucket ever has one."""

    object: str = "organization.usage.decisions.result"


class Bucket(Struct, Generic[Result], kw_only=True):
    """`[start_time, end_time)` in seconds since the epoch: a minute, an hour or a day."""

    start_time: int
    end_time: int
    results: list[Result]
    object: str = "bucket"


class Page(Struct, Generic[Buckets], kw_only=True):
    """Buckets in order of time. `next_page` is handed back as `page`."""

    data: list[Buckets]
    has_more: bool
    next_page: str | None
    object: str = "page"


# Each with a name of its own, which the description of the API tells.


class CostBucket(Bucket[CostResult], kw_only=True):
    """Of one stretch of time."""


class CostPage(Page[CostBucket], kw_only=True):
    """In order of time."""


class CompletionsBucket(Bucket[CompletionsResult], kw_only=True):
    """Of one stretch of time."""


class CompletionsPage(Page[CompletionsBucket], kw_only=True):
    """In order of time."""


class EmbeddingsBucket(Bucket[EmbeddingsResult], kw_only=True):
    """Of one stretch of time."""


class EmbeddingsPage(Page[EmbeddingsBucket], kw_only=True):
    """In order of time."""


class ModerationsBucket(Bucket[ModerationsResult], kw_only=True):
    """Of one stretch of time."""


class ModerationsPage(Page[ModerationsBucket], kw_only=True):
    """In order of time."""


class ImagesBucket(Bucket[ImagesResult], kw_only=True):
    """Of one stretch of time."""


class ImagesPage(Page[ImagesBucket], kw_only=True):
    """In order of time."""


class SpeechesBucket(Bucket[SpeechesResult], kw_only=True):
    """Of one stretch of time."""


class SpeechesPage(Page[SpeechesBucket], kw_only=True):
    """In order of time."""


class TranscriptionsBucket(Bucket[TranscriptionsResult], kw_only=True):
    """Of one stretch of time."""


class TranscriptionsPage(Page[TranscriptionsBucket], kw_only=True):
    """In order of time."""


class WebSearchesBucket(Bucket[WebSearchesResult], kw_only=True):
    """Of one stretch of time."""


class WebSearchesPage(Page[WebSearchesBucket], kw_only=True):
    """In order of time."""


class FileSearchesBucket(Bucket[FileSearchesResult], kw_only=True):
    """Of one stretch of time."""


class FileSearchesPage(Page[FileSearchesBucket], kw_only=True):
    """In order of time."""


class VectorStoresBucket(Bucket[VectorStoresResult], kw_only=True):
    """Of one stretch of time."""


class VectorStoresPage(Page[VectorStoresBucket], kw_only=True):
    """In order of time."""


class SessionsBucket(Bucket[SessionsResult], kw_only=True):
    """Of one stretch of time."""


class SessionsPage(Page[SessionsBucket], kw_only=True):
    """In order of time."""


class DecisionsBucket(Bucket[DecisionsResult], kw_only=True):
    """Of one stretch of time."""


class DecisionsPage(Page[DecisionsBucket], kw_only=True):
    """In order of time."""
