"""What travels through the cache, and what its numbers mean.

`similarity` is the cosine of two normalised embeddings: higher is closer, 1.0 is the same direction.
Times: `now` values are wall-clock seconds since the epoch, handed in by the caller; nothing here reads a clock.
"""

from typing import Literal, NamedTuple

from msgspec import Struct

Tier = Literal["exact", "semantic"]
Mode = Literal["off", "exact", "shadow", "semantic"]


class Query(Struct, frozen=True, kw_only=True):
    """One request as the cache sees it.

    `scope`: digest of everything that must match exactly before meaning may match (tenant included).
    `exact`: digest of the whole canonical request inside its scope. `text`: the part that may match by meaning.
    `semantic_bar`: None where meaning may match, else the reason why this request is exact-only.
    `max_ttl`: seconds an answer may live at most (wording like "today" ages fast); None leaves it to the cache.
    `team`, `project`, `model`: for purging and statistics only; what isolates tenants is `scope`.
    """

    scope: bytes
    exact: bytes
    text: str
    semantic_bar: str | None = None
    max_ttl: float | None = None
    team: str = ""
    project: str = ""
    model: str = ""


class Uncacheable(Struct, frozen=True):
    """Why a request may be neither looked up nor kept, in a word a header can carry (e.g. `no-identity`)."""

    reason: str


class Entry(Struct, frozen=True, kw_only=True, gc=False):
    """One kept answer. `answer` is the canonical response body (JSON bytes, no id/created/model); costs in nano-USD.

    `vector`: the embedding of `text` as packed by `cache.vectors`, empty for an exact-only entry; `encoder` names what
    made it. Vectors of two encoders are never compared.
    """

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


class Kept(Struct, frozen=True, kw_only=True):
    """A complete answer offered to the cache. `origin`: the request that made it, `latency_ms`: what a hit saves."""

    answer: bytes
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_nano: int = 0
    latency_ms: float = 0.0
    origin: str = ""


class Looked(Struct, frozen=True, kw_only=True):
    """A candidate that was considered, for the explanation of a hit or a miss."""

    entry_id: int
    similarity: float
    confidence: float | None = None
    guard: str | None = None


class Hit(Struct, frozen=True, kw_only=True):
    """An answer that may be served. `confidence`: estimated probability that it is right; 1.0 for an exact hit."""

    entry: Entry
    tier: Tier
    similarity: float
    confidence: float
    lookup_ms: float
    looked: tuple[Looked, ...] = ()


class Miss(Struct, frozen=True, kw_only=True):
    """`vector` (float32 bytes, normalised) is kept so that storing the answer does not embed a second time.

    `explore`: the entry whose answer the fresh one should be compared with, when the policy asks for that.
    """

    reason: str
    lookup_ms: float
    vector: bytes | None = None
    looked: tuple[Looked, ...] = ()
    explore: int | None = None


class CacheConfig(Struct, frozen=True, kw_only=True):
    """How the cache behaves. Times in seconds, `neighbours`: candidates judged per lookup.

    `shadow`: decide and note, never serve by meaning. `front_entries`/`front_bytes` bound the in-process exact tier,
    `partitions`/`resident_vectors` the indexes kept in memory.
    """

    mode: Mode = "semantic"
    ttl: float = 86_400.0
    embed_timeout: float = 0.15
    keep_timeout: float = 5.0
    neighbours: int = 8
    front_entries: int = 10_000
    front_bytes: int = 64 << 20
    partitions: int = 4_096
    resident_vectors: int = 400_000
    max_answer: int = 1 << 20
    max_error_rate: float = 0.01
    max_wrong_hit_rate: float = 0.05


class Group(NamedTuple):
    """What statistics and purges are told apart by: tenant and model, never the secret scope."""

    team: str
    project: str
    model: str


class ScopeStats(Struct, kw_only=True):
    """Counts of one group since this process started.

    `entries`: what the store holds now, for all processes; None when it cannot say.
    """

    team: str
    project: str
    model: str
    entries: int | None = 0
    lookups: int = 0
    hits_exact: int = 0
    hits_semantic: int = 0
    kept: int = 0
    misses: dict[str, int] = {}
