"""What travels from the edge to the end: call, chunk, reply, outcome.

Knows only shapes. Nothing here does I/O or decides anything.
"""

import re
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import msgspec
from msgspec import Struct

from gateway.errors import InvalidRequest
from policies.money import Usage
from policies.reuse import Budget

if TYPE_CHECKING:
    from gateway.dialects import Voice
    from gateway.repeats import Repeat

# Passed on as they are, and never reused.
Passed = Literal["moderation", "image", "image_edit", "image_variation", "speech", "transcription", "translation"]
Operation = Literal["chat", "completion", "embedding"] | Passed
PASSED: tuple[Passed, ...] = get_args(Passed)
PAINTED: tuple[Passed, ...] = ("image", "image_edit", "image_variation")
HEARD: tuple[Passed, ...] = ("transcription", "translation")
Role = Literal["app", "viewer", "finance", "operator", "admin"]
Source = Literal["exact", "semantic", "shared", "upstream", "replayed", "none"]
CacheMark = Literal["hit-exact", "hit-semantic", "miss", "bypass", "refresh", "shared", "audit", "replayed"]
CostStatus = Literal["exact", "estimated", "unpriced"]
Body = dict[str, object]
# What marks a request that the gateway makes for itself, to check its cache; clients cannot send such a tag.
AUDIT_TAG = ("nearhit/audit", "1")
AUDIT_SCOPE = "tag:nearhit/audit=1"


# `us`, `us-east1`. What runs wherever there is room is `global` or `not_available`; no service tier is called so.
_REGION = re.compile(r"[a-z]{2}(?:-[a-z0-9-]{1,13})?")


class Principal(Struct, frozen=True, kw_only=True):
    """Who calls. `models`: names this key may use, None for all. `user` comes with the request, not with the key."""

    key_id: str
    team: str
    project: str
    role: Role = "app"
    models: frozenset[str] | None = None


class Directives(Struct, frozen=True, kw_only=True):
    """What the request's headers ask for; a client may only make things stricter. Times in seconds.

    `ignored`: headers of other gateways whose matter is settled in the configuration here.
    """

    tier: Literal["off", "exact", "semantic"] = "semantic"
    read: bool = True
    write: bool = True
    only_if_cached: bool = False
    max_age: float | None = None
    ttl: float | None = None
    allowed: Budget = Budget(max_error_rate=1.0, max_wrong_hit_rate=1.0)
    per_user: bool = False
    user: str | None = None
    session: str | None = None
    tags: tuple[tuple[str, str], ...] = ()
    max_cost_nano: int | None = None
    timeout: float | None = None
    dry_run: bool = False
    idempotency_key: str | None = None
    traceparent: str | None = None
    ignored: tuple[str, ...] = ()


class Native(Struct, frozen=True, kw_only=True):
    """A request of another dialect as it came, for an upstream that speaks it too.

    `headers`: those that belong to the dialect. `apart`: what of it is not in the inner body and changes the answer.
    """

    dialect: str
    body: Body
    headers: dict[str, str]
    apart: Body


class Need(Struct, frozen=True, kw_only=True):
    """What only an upstream that speaks the client's dialect can do, and how it is refused everywhere else.

    `unbounded`: what it makes the upstream read is not in the request.
    """

    param: str
    message: str
    code: str = "unsupported_value"
    unbounded: bool = False

    def refusal(self) -> InvalidRequest:
        found = InvalidRequest(self.message, param=self.param, code=self.code)
        found.as_asked = True
        return found


class Given(Struct, frozen=True, kw_only=True):
    """An answer that an upstream has made already, in a batch of its own: to be read, charged and told.

    `status` and `raw` as it came; `status` 0: it is not back yet.
    """

    provider: str
    model: str
    status: int = 0
    raw: bytes = b""


class Call(Struct, frozen=True, kw_only=True):
    """One request, decoded once. `body` is the client's own object and is never changed after this point.

    `id` is a server-made UUIDv7; `received` and `deadline` are monotonic seconds, `at` wall-clock seconds since the
    epoch; `size` is the body's length in bytes. `repeat`: what was read from the same bytes before (`gateway.repeats`).
    `voice`: how the answer is told to a client of another dialect; `body` is a chat completion all the same.
    `ignored`: what of the client's request is not in `body`, by name. `native`: all of it, as it came; `need`: and it
    can be answered by those only who take it so.
    `charged` False: it draws on no budget of its key, user, project and team (the gateway asks for itself).
    `background`: nobody waits for it, so it gives way to whoever does, and takes a cheaper tier where there is one.
    `given`: where its answer comes from a batch at its provider; it is owed, so no budget or limit can refuse it.
    """

    id: str
    operation: Operation
    principal: Principal
    body: Body
    model: str
    stream: bool
    include_usage: bool
    directives: Directives
    received: float
    at: float
    deadline: float
    size: int = 0
    repeat: "Repeat | None" = None
    charged: bool = True
    background: bool = False
    given: Given | None = None
    native: Native | None = None
    need: Need | None = None
    voice: "Voice | None" = None
    ignored: tuple[str, ...] = ()

    @property
    def tier(self) -> str:
        """The service tier that is asked for; Anthropic has one more, which it calls a speed."""
        body = self.body if self.native is None else self.native.body
        return "fast" if body.get("speed") == "fast" else str(self.body.get("service_tier") or "default")

    @property
    def region(self) -> object:
        """Where alone it may be answered, in Anthropic's words."""
        return (self.body if self.native is None else self.native.body).get("inference_geo")

    @property
    def owed(self) -> bool:
        """Whether the work has been done, and is billed, already."""
        return self.given is not None and self.given.status != 0


class Computed(NamedTuple):
    """How a bundled engine spent its time on an answer, in milliseconds: queue, then prefill up to the first token."""

    queue_ms: float
    prefill_ms: float


class Spoken(NamedTuple):
    """Events of an upstream as it sent them, for clients of the dialect it speaks."""

    dialect: str
    events: list[Body]


class Chunk(NamedTuple):
    """One event of a streamed reply, or the one body of a reply that is not streamed, as decoded JSON.

    `usage` and `finish` are what was read from it; `final` marks a whole body. `computed`: told by our engines.
    `so_far`: what an answer that is not whole has used up to here, by its upstream's count.
    `native`: what it was made of; where `data` has neither choices nor usage it is made for that alone.
    """

    data: Body
    usage: Usage | None = None
    finish: str | None = None
    final: bool = False
    computed: Computed | None = None
    native: Spoken | None = None
    so_far: Usage | None = None


class Outcome(Struct, kw_only=True):
    """One request, ended: exactly one row. Amounts in nano-USD, durations in milliseconds.

    `upstream_ms`: in which any attempt was out; `answer_ms`: of the one that answered, or was the last; 0: never sent.
    `waited_ms`: for another worker's answer, or before a place was asked again. What is left is the gateway's own.
    """

    call: Call
    status: int = 200
    error: str | None = None
    source: Source = "none"
    cache: CacheMark = "bypass"
    provider: str = ""
    model: str = ""
    attempts: int = 0
    usage: Usage = msgspec.field(default_factory=Usage)
    cost_nano: int = 0
    cost_status: CostStatus = "exact"
    saved_nano: int = 0
    discount_nano: int = 0
    routed_nano: int = 0
    embed_nano: int = 0
    similarity: float | None = None
    confidence: float | None = None
    ttft_ms: float | None = None
    total_ms: float = 0.0
    upstream_ms: float = 0.0
    waited_ms: float = 0.0
    answer_ms: float = 0.0
    chunks: int = 0
    finish: str | None = None
    complete: bool = False
    client_gone: bool = False
    explain: dict[str, object] = msgspec.field(default_factory=dict[str, object])


class Reply(Struct, kw_only=True):
    """An answer that has begun: its first chunk is in hand. `outcome` fills up while `chunks` is read."""

    call: Call
    chunks: AsyncGenerator[Chunk, None]
    outcome: Outcome
    headers: list[tuple[str, str]] = []


def tier_in(tier: str, region: object) -> str:
    """A service tier as it is priced where a request is kept in one region: `default+us`."""
    return f"{tier}+{region}" if isinstance(region, str) and _REGION.fullmatch(region) else tier
