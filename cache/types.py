"""What travels through the cache, and what its numbers mean.

`similarity` is the cosine of two normalised embeddings: higher is closer, 1.0 is the same direction.
Times: `now` values are wall-clock seconds since the epoch, handed in by the caller; nothing here reads a clock.
"""

from typing import Literal

from msgspec import Struct

Tier = Literal["exact", "semantic"]


class Query(Struct, frozen=True, kw_only=True):
    """One request as the cache sees it.

    `scope`: digest of everything that must match exactly before meaning may match (tenant included).
    `exact`: digest of the whole canonical request inside its scope. `text`: the part that may match by meaning.
    `semantic`: None where meaning may match, else the reason why this request is exact-only.
    """

    scope: bytes
    exact: bytes
    text: str
    semantic_bar: str | None = None


class Uncacheable(Struct, frozen=True):
    """Why a request may be neither looked up nor kept, in a word a header can carry (e.g. `no-identity`)."""

    reason: str


class Entry(Struct, frozen=True, kw_only=True):
    """One kept answer. `answer` is the canonical response body (JSON bytes, no id/created/model); costs in nano-USD."""

    id: int
    scope: bytes
    exact: bytes
    text: str
    answer: bytes
    prompt_tokens: int
    completion_tokens: int
    cost_nano: int
    latency_ms: float
    created: float
    expires: float
    origin: str = ""
    team: str = ""
    project: str = ""
    model: str = ""
    vector: bytes = b""
    encoder: str = ""


class Looked(Struct, frozen=True, kw_only=True):
    """A candidate that was considered, for the explanation of a hit or a miss."""

    entry_id: int
    similarity: float
    confidence: float | None = None
    guard: str | None = None


class Hit(Struct, frozen=True, kw_only=True):
    """An answer that may be served. `confidence`: probability of `same answer` in the policy's judgement."""

    entry: Entry
    tier: Tier
    similarity: float
    confidence: float
    lookup_ms: float
    looked: tuple[Looked, ...] = ()


class Miss(Struct, frozen=True, kw_only=True):
    """`vector` (float32 bytes, normalised) is kept so that storing the answer does not embed a second time."""

    reason: str
    lookup_ms: float
    vector: bytes | None = None
    looked: tuple[Looked, ...] = ()
