"""What the queries answer: plain structs, amounts in nano-USD, instants in seconds since the epoch, durations in ms.

Knows only shapes. Does not know: SQL, who shows them.
"""

from msgspec import Struct


class UsageRow(Struct, frozen=True, kw_only=True):
    """Totals of a group of requests. `group`: dimension -> value. Latencies are of whole requests, None without any.

    They are read off a histogram: the request of that rank lies in the same bucket, whose edges are a factor of 1.41
    apart (of 2 below 64 ms), so they are off by less than that; above 262 s only that is known.
    `estimated_nano` is the part of `cost_nano` that rests on no provider's count; `estimated` counts the requests
    behind it. `hits` were answered from the cache. `discount_nano`: what providers' own prompt caches took off
    `cost_nano`, `routed_nano`: what choosing among the places of a route did (negative where they cost more).
    `audit_nano` is the part of `cost_nano` that was spent to check hits (`audits` requests, which are not counted in
    `requests`); `corrected_nano` is what feedback took back of `saved_nano` (0 or less); `embed_nano` what the time of
    the encoder cost that looked for kept answers, no part of `cost_nano`.
    """

    group: dict[str, str]
    requests: int
    hits: int
    errors: int
    prompt: int
    cached: int
    cache_write: int
    completion: int
    reasoning: int
    cost_nano: int
    estimated_nano: int
    saved_nano: int
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    audit_nano: int = 0
    corrected_nano: int = 0
    audits: int = 0
    estimated: int = 0
    discount_nano: int = 0
    routed_nano: int = 0
    embed_nano: int = 0

    @property
    def net_saved_nano(self) -> int:
        """What is left of the savings once wrong hits are taken back and the checking and the encoder are paid."""
        return self.saved_nano + self.corrected_nano - self.audit_nano - self.embed_nano

    @property
    def hit_rate(self) -> float:
        return self.hits / self.requests if self.requests else 0.0

    @property
    def error_rate(self) -> float:
        return self.errors / self.requests if self.requests else 0.0


class Overview(Struct, frozen=True, kw_only=True):
    """One period at a glance; `series` by hour up to two days, else by day. Only `total` has latencies."""

    start: float
    end: float
    total: UsageRow
    series: list[UsageRow]
    teams: list[UsageRow]
    models: list[UsageRow]
    sources: list[UsageRow]


class RequestLine(Struct, frozen=True, kw_only=True):
    """One request, as its row says."""

    id: str
    at: float
    key_id: str
    team: str
    project: str
    user: str | None
    model: str
    provider: str
    model_used: str
    operation: str
    stream: bool
    source: str
    cache: str
    status: int
    error: str | None
    prompt: int
    cached: int
    cache_write: int
    completion: int
    reasoning: int
    cost_nano: int
    saved_nano: int
    cost_status: str
    similarity: float | None
    confidence: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    total_ms: float
    overhead_ms: float | None
    attempts: int
    finish: str | None
    complete: bool
    client_gone: bool
    tags: dict[str, str] | None


class PriceLine(Struct, frozen=True, kw_only=True):
    """The price version of a charge, pico-USD per token; `tiers` and `terms` as in `PriceVersion`."""

    id: str
    input_pico: int
    output_pico: int
    cached_pico: int
    cache_write_pico: int
    request_pico: int
    tiers: list[list[int]]
    status: str
    terms: dict[str, object] | None = None


class EntryLine(Struct, frozen=True, kw_only=True):
    """One line of the ledger; `classes` as in `Entry`."""

    id: str
    request_id: str
    admitted: float
    at: float
    windows: list[str]
    team: str
    project: str
    key_id: str
    user: str | None
    provider: str
    model: str
    provider_id: str | None
    price: str
    prompt: int
    cached: int
    cache_write: int
    completion: int
    reasoning: int
    amount_nano: int
    reserved_nano: int
    source: str
    ended: str
    note: str | None
    classes: str | None = None


class RequestDetail(Struct, frozen=True, kw_only=True):
    """Everything about one request. `explain` is None once it has been kept its time; `request` while it still runs."""

    request: RequestLine | None
    entries: list[EntryLine]
    prices: dict[str, PriceLine]
    explain: dict[str, object] | None


class BudgetState(Struct, frozen=True, kw_only=True):
    """A budget and the balance of its current window. `runs_out`: at the pace so far, None if the window ends first.

    `opening_nano`: the part of what is spent that was spent before the budget was known.
    """

    scope: str
    limit_nano: int
    window: str
    timezone: str
    mode: str
    alerts: list[float]
    version: int
    actor: str
    updated: float
    spent_nano: int
    confirmed_nano: int
    estimated_nano: int
    held_nano: int
    remaining_nano: int
    starts: int
    ends: int
    runs_out: float | None
    alerted: list[float]
    opening_nano: int = 0
    degrade_to: str | None = None
    degrade_at: float | None = None
