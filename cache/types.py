"""What travels through the cache, and what its numbers mean.

`similarity` is the cosine of two normalised embeddings: higher is closer, 1.0 is the same direction.
Times: `now` values are wall-clock seconds since the epoch, handed in by the caller; nothing here reads a clock.
"""

from typing import Literal, NamedTuple

from msgspec import Struct, field

from policies.reuse import Evidence, Verdict

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
    made it. Vectors of two encoders are never compared. `answer_id`: the entry whose answer this is, when this is one
    more key of it (a paraphrase that was judged to have the same answer); 0: the answer is its own. `doubt`: then the
    chance that the judgement is wrong, as it was reckoned; None: made before that was kept.
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
    answer_id: int = 0
    doubt: float | None = None

    @property
    def root(self) -> int:
        """What all keys of one answer share."""
        return self.answer_id or self.id


class Kept(Struct, frozen=True, kw_only=True):
    """A complete answer offered to the cache. `origin`: the request that made it, `latency_ms`: what a hit saves."""

    answer: bytes
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_nano: int = 0
    latency_ms: float = 0.0
    origin: str = ""


class Looked(Struct, frozen=True, kw_only=True):
    """A candidate that was considered, for the explanation of a hit or a miss.

    `guard` forbade it; `guards` are all that spoke, `features` what a learning policy saw, by name, zeros left out.
    """

    entry_id: int
    similarity: float
    confidence: float | None = None
    guard: str | None = None
    answer_id: int = 0
    risk: float | None = None
    guards: tuple[str, ...] = ()
    features: dict[str, float] = field(default_factory=dict[str, float])


class Weighed(Struct, frozen=True, kw_only=True):
    """An answer that a fresh one can be compared with: what the policy saw of it, and where the store has it."""

    evidence: Evidence
    exact: bytes
    similarity: float


class Sight(Struct, frozen=True, kw_only=True):
    """What a look-up by meaning knew. `vector` of the question, packed; `encoder`: whose.

    `basis`: what the features in `weighed` are about. `headroom`: how the scope stood then, in the policy's own words
    and numbers.
    """

    encoder: str = ""
    basis: str = ""
    vector: bytes = b""
    weighed: tuple[Weighed, ...] = ()
    headroom: dict[str, float] = field(default_factory=dict[str, float])


class Embedding(NamedTuple):
    """From when to when the encoder was asked for a vector, monotonic seconds, and how many seconds it computed for
    this text. `read`: from when to when it read the text together with kept ones, where it did (in `computed` too)."""

    start: float
    end: float
    computed: float
    read: tuple[float, float] | None = None

    def after(self, earlier: "Embedding | None") -> "Embedding":
        """The same with what an earlier look-up for the request computed and read."""
        if earlier is None:
            return self
        return self._replace(computed=self.computed + earlier.computed, read=self.read or earlier.read)


class Hit(Struct, frozen=True, kw_only=True):
    """An answer that may be served. `confidence`: estimated probability that it is right; 1.0 for an exact hit.

    `audit`: it is to be compared with a fresh answer (the coin has been thrown), also where it is exact but its text
    was only judged to have this answer. `embedded`: where the encoder was asked. `most`: the doubt that whoever asked
    bears of a judged key.
    """

    entry: Entry
    tier: Tier
    similarity: float
    confidence: float
    lookup_ms: float
    looked: tuple[Looked, ...] = ()
    sight: Sight | None = None
    audit: bool = False
    embedded: Embedding | None = None
    most: float = 1.0


class Uncounted(NamedTuple):
    """A verdict of a scope and encoder that is not counted in what the scope has learned yet."""

    key: tuple[bytes, str]
    verdict: Verdict


class Miss(Struct, frozen=True, kw_only=True):
    """`vector` (float32 bytes, normalised) is kept so that storing the answer does not embed a second time.

    `explore`: the entry whose answer the fresh one should be compared with, when the policy asks for that; `sight`
    holds all that should be compared. `uncounted`: what `SemanticCache.count` takes, of a look-up that was on hold.
    `most`: as in a hit.
    """

    reason: str
    lookup_ms: float
    vector: bytes | None = None
    looked: tuple[Looked, ...] = ()
    explore: int | None = None
    sight: Sight | None = None
    uncounted: Uncounted | None = None
    embedded: Embedding | None = None
    most: float = 1.0


class CacheConfig(Struct, frozen=True, kw_only=True):
    """How the cache behaves. Times in seconds, `neighbours`: candidates judged per lookup.

    `shadow`: decide and note, never serve by meaning. `front_entries`/`front_bytes` bound the in-process exact tier,
    `partitions`/`resident_vectors` the indexes kept in memory. `audit_share`: of hits by meaning, how many are checked
    against a fresh answer at least; None leaves it to the policy. `keys`: an answer has at most; the one used least
    lately gives way. `learned_scopes`: how many scopes' learning is kept in memory. `resident_vectors` below what the
    store may hold means that large scopes push each other out of memory and are loaded anew, time and again.
    """

    mode: Mode = "semantic"
    ttl: float = 86_400.0
    embed_timeout: float = 0.15
    keep_timeout: float = 5.0
    neighbours: int = 8
    front_entries: int = 7_500
    front_bytes: int = 12 << 20
    partitions: int = 4_096
    resident_vectors: int = 400_000
    max_answer: int = 1 << 20
    max_error_rate: float = 0.01
    max_wrong_hit_rate: float = 0.05
    audit_share: float | None = None
    keys: int = 32
    learned_scopes: int = 1_024


class Group(NamedTuple):
    """What statistics and purges are told apart by: tenant and model, never the secret scope."""

    team: str
    project: str
    model: str


class Trust(Struct, frozen=True, kw_only=True):
    """How far hits by meaning are to be trusted: what was measured of one group, in all processes, over restarts.

    `hits` served, of which `audited` were compared with a fresh answer (`audited_wrong`; `undecided` could not be told,
    and count as neither); `reported_wrong` and `confirmed` are people's words. `explored`: misses compared with kept
    answers, `explored_same` of them would have been right. `flips`: how many audits the judge is expected to have
    called wrongly. `quarantines`, `aliases`: how many were ever made.
    """

    hits: int = 0
    audited: int = 0
    audited_wrong: int = 0
    undecided: int = 0
    reported_wrong: int = 0
    confirmed: int = 0
    explored: int = 0
    explored_same: int = 0
    flips: float = 0.0
    quarantines: int = 0
    aliases: int = 0
    alerts: int = 0
    braked: bool = False
    rate: float | None = None
    low: float | None = None
    high: float | None = None
    budget: float = 0.0


class ScopeStats(Struct, kw_only=True):
    """Counts of one group since this process started.

    `entries`: what the store holds now, for all processes; None when it cannot say. `trust`: measured over the whole
    life of the store, None while nothing was.
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
    trust: Trust | None = None
