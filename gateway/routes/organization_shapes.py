"""The answers of OpenAI's admin API about costs and usage.

Knows only shapes. Source: OpenAI's OpenAPI description of 2026-08-21 (`CostsResult`, `UsageCompletionsResult`,
`UsageEmbeddingsResult`, `UsageTimeBucket`, `UsageResponse`).
"""

from msgspec import Struct


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
    line_item: str | None = None
    quantity: float | None = None
    quantity_unit: str | None = None
    object: str = "organization.costs.result"


class CompletionsResult(Grouped, kw_only=True):
    """Tokens and requests of one group in one bucket."""

    input_tokens: int = 0
    output_tokens: int = 0
    input_cached_tokens: int = 0
    input_cache_write_tokens: int = 0
    input_uncached_tokens: int = 0
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
