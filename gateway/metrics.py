"""Every Prometheus metric, bound once: what a request changes, and how names stay few.

Knows: metric names, buckets, label sets and their bounds. Does not know: spans, sampling, HTTP.
Where PROMETHEUS_MULTIPROC_DIR was set before this module was imported (the supervisor does so for its workers), values
live in files of that directory and any worker's exposition is the sum of all; else they live in this process.
A label never holds a user, a request id or a prompt; a model's name only while there are few of them.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from gateway.call import Outcome
from gateway.metric_files import multi_process
from gateway.steps import Timings, looked
from gateway.tallies import Add, Tallies
from gateway.traces import OPERATION_NAMES

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHER = "other"
MOST_MODELS = 100
SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
TPOT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
TOKENS = tuple(4**power for power in range(14))
ALARMS = ("wrong-hits",)
UNREADABLE = ("key", "forged", "plain", "damaged", "version")
IMPAIRED = ("store-down", "encoder-down", "encoder-busy", "embed-timeout")  # of a miss's reasons
SHED = ("lag", "behind", "in-flight", "memory")
OVERHEAD = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)
SIMILARITY = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.94, 0.96, 0.98, 0.99, 0.995, 1.0)
GEN_AI = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
_TIERS = {"exact": "exact", "semantic": "semantic"}


class _Bound(Struct, frozen=True):
    """The children of one (operation, provider, model), so that a request pays no label look-up."""

    client: Add
    client_first: Add
    client_each: Add
    server: Add
    server_first: Add
    server_each: Add
    tokens_in: Add
    tokens_out: Add
    cost: Add


class Metrics:
    """The instruments of one process. `models`: names that always have a label of their own.

    `goal`: the seconds to the first token and per further one within which a streamed answer counts as goodput.
    """

    def __init__(self, models: Iterable[str] = (), goal: tuple[float, float] = (1.0, 0.05)) -> None:
        self._goal = goal
        self._registry = CollectorRegistry()
        self._models = set(models)
        self._room = MOST_MODELS
        self._bound: dict[tuple[str, str, str], _Bound] = {}
        self._requests_bound: dict[tuple[str, int | str, str], Add] = {}
        self._lookups_bound: dict[tuple[str, str], tuple[Add, Add]] = {}
        self._attempts_bound: dict[tuple[str, str], Add] = {}
        self._tallies = Tallies()
        self.in_flight = 0
        self._define_own()
        self._define_gen_ai()

    def _define_own(self) -> None:
        registry = self._registry
        asked = ("operation", "status", "cache")
        self._requests = Counter("nearhit_requests", "Requests by how they ended.", asked, registry=registry)
        self._cost = Counter("nearhit_cost_usd", "Spent, in USD.", ("provider", "model"), registry=registry)
        self._saved = Counter(
            "nearhit_saved_usd", "Not spent thanks to the cache, in USD.", ("source",), registry=registry
        )
        saved = Counter("nearhit_tokens_saved", "Tokens answered without buying them.", registry=registry)
        self._tokens_saved = self._tallies.sum(saved)
        gone = Counter("nearhit_clients_gone", "Clients that left before their answer ended.", registry=registry)
        self._gone = self._tallies.sum(gone)
        self._attempts = Counter(
            "nearhit_upstream_attempts", "Attempts at providers by result.", ("provider", "result"), registry=registry
        )
        self._shed = Counter(
            "nearhit_shed", "Newcomers turned away before anything was done for them.", ("reason",), registry=registry
        )
        good = Counter(
            "nearhit_goodput",
            "Streamed answers that kept both targets, of telemetry.ttft_target and tpot_target.",
            registry=registry,
        )
        self._good = self._tallies.sum(good)
        overhead = Histogram(
            "nearhit_overhead_seconds", "Time of a request that no provider took.", buckets=OVERHEAD, registry=registry
        )
        self._overhead = self._tallies.spread(overhead)
        self.traces = Counter("nearhit_traces", "Traces kept, by reason.", ("reason",), registry=registry)
        self._define_cache()
        self._define_gauges()

    def _define_cache(self) -> None:
        registry = self._registry
        self._lookups = Counter("nearhit_cache_lookups", "Cache look-ups.", ("status", "tier"), registry=registry)
        self._lookup = Histogram(
            "nearhit_cache_lookup_seconds", "Time in cache.find.", ("tier",), buckets=OVERHEAD, registry=registry
        )
        similarity = Histogram(
            "nearhit_cache_similarity", "Cosine similarity of semantic hits.", buckets=SIMILARITY, registry=registry
        )
        self._similarity = self._tallies.spread(similarity)
        self._wrong_hits = Gauge(
            "nearhit_cache_wrong_hit_rate",
            "Measured share of wrong hits by meaning, with the bounds of 95 %.",
            ("team", "project", "model", "bound"),
            multiprocess_mode="livemostrecent",
            registry=registry,
        )
        self._measured: set[tuple[str, str, str]] = set()
        self.alerts = Counter("nearhit_cache_alerts", "Alarms raised by the cache.", ("kind",), registry=registry)
        self.unreadable = Counter(
            "nearhit_cache_unreadable", "Kept records that could not be read.", ("why",), registry=registry
        )
        self.shadows = Counter(
            "nearhit_shadow_answers", "Answers of shadow models by how they compare.", ("verdict",), registry=registry
        )
        self.reloads = Counter(
            "nearhit_config_reloads", "Times the configuration was to be read again.", ("result",), registry=registry
        )
        self._impaired = Counter("nearhit_cache_impaired", "Look-ups without a part.", ("reason",), registry=registry)
        self.waits = Counter(
            "nearhit_cache_waits",
            "Waits for another worker's answer, by their end.",
            ("result",),
            registry=registry,
        )
        self.audits = Counter("nearhit_cache_audits", "Hits that were to be checked.", ("result",), registry=registry)
        self.compared = Counter(
            "nearhit_cache_compared", "Misses that were compared with kept answers.", ("result",), registry=registry
        )
        sources = ("exact", "semantic", "shared")
        self._saved_bound = {source: self._tallies.sum(self._saved.labels(source)) for source in sources}
        self._begin_at_nought()

    def _begin_at_nought(self) -> None:
        """What alerts wait for is there before it happens: `increase` of a series that begins with 1 is 0."""
        for counter, values in ((self.alerts, ALARMS), (self.unreadable, UNREADABLE), (self.reloads, ("ok", "failed"))):
            for value in values:
                counter.labels(value)
        self.impaired = {reason: self._tallies.sum(self._impaired.labels(reason)) for reason in IMPAIRED}
        self._shed_bound = {reason: self._tallies.sum(self._shed.labels(reason)) for reason in SHED}

    def _define_gauges(self) -> None:
        """What a gauge means across workers: the sum of the living, the oldest start, the latest word on an engine."""
        registry = self._registry
        self._in_flight = Gauge(
            "nearhit_in_flight", "Requests being answered now.", multiprocess_mode="livesum", registry=registry
        )
        self._started = Gauge(
            "nearhit_start_time_seconds",
            "When the oldest worker began.",
            multiprocess_mode="livemin",
            registry=registry,
        )
        self._lag = Gauge(
            "nearhit_loop_lag_seconds",
            "How late the event loop was, the latest worker's.",
            multiprocess_mode="livemax",
            registry=registry,
        )
        self._share = Gauge(
            "nearhit_shed_share",
            "The share of newcomers that is turned away for the lag, the worst worker's.",
            multiprocess_mode="livemax",
            registry=registry,
        )
        self._unposted = Gauge(
            "nearhit_ledger_unposted",
            "Attempts that have ended and wait for the database.",
            multiprocess_mode="livesum",
            registry=registry,
        )
        self._behind = Gauge(
            "nearhit_ledger_behind_seconds",
            "Since when they wait in vain, the worst worker's.",
            multiprocess_mode="livemax",
            registry=registry,
        )
        self._left_alone = Gauge(
            "nearhit_places_left_alone",
            "Models at servers that are not asked at the moment, as the worst worker sees it.",
            ("provider",),
            multiprocess_mode="livemax",
            registry=registry,
        )
        self._engine = Gauge(
            "nearhit_engine",
            "State of a bundled engine.",
            ("engine", "figure"),
            multiprocess_mode="livemostrecent",
            registry=registry,
        )

    def _define_gen_ai(self) -> None:
        def seconds(name: str, text: str, buckets: tuple[float, ...] = SECONDS) -> Histogram:
            return Histogram(name, text, GEN_AI, buckets=buckets, registry=self._registry)

        self._client = seconds("gen_ai_client_operation_duration_seconds", "Time a provider took.")
        self._client_first = seconds(
            "gen_ai_client_operation_time_to_first_chunk_seconds", "Time until a provider's first chunk of a stream."
        )
        self._client_each = seconds(
            "gen_ai_client_operation_time_per_output_chunk_seconds", "Time between a provider's chunks of a stream."
        )
        self._server = seconds("gen_ai_server_request_duration_seconds", "Time until the client had the whole answer.")
        self._server_first = seconds(
            "gen_ai_server_time_to_first_token_seconds", "Time until the client had the first chunk of a stream.", TTFT
        )
        self._server_each = seconds(
            "gen_ai_server_time_per_output_token_seconds", "Time per output token after the first.", TPOT
        )
        self._tokens = Histogram(
            "gen_ai_client_token_usage",
            "Tokens bought per request.",
            (*GEN_AI, "gen_ai_token_type"),
            buckets=TOKENS,
            registry=self._registry,
        )

    def count(self, outcome: Outcome, timings: Timings) -> None:
        """Everything one ended request changes; shown after the next `pour`."""
        call = outcome.call
        status = outcome.status
        asked = (call.operation, status, outcome.cache)
        inc = self._requests_bound.get(asked)
        (inc or self._bind_request(asked))(1)
        if outcome.source != "shared":  # what a follower waits for is its leader's upstream time, not overhead
            own = outcome.total_ms - outcome.upstream_ms - outcome.waited_ms
            self._overhead(max(own, 0.0) / 1_000)
        if outcome.client_gone:
            self._gone(1)
        if timings.looked_up:
            self._count_lookup(outcome, timings)
        for attempt in timings.attempts:
            self.attempt(attempt.provider, attempt.result)
        known = (call.operation, outcome.provider, outcome.model or call.model)
        bound = self._bound.get(known) or self._bind(known, status)
        bound.server(outcome.total_ms / 1_000)
        each = self._time_per_token(outcome) if call.stream else None
        if call.stream and outcome.ttft_ms is not None:
            bound.server_first(outcome.ttft_ms / 1_000)
            if each is not None:
                bound.server_each(each)
            if status < 400 and outcome.ttft_ms <= self._goal[0] * 1e3 and (each or 0.0) <= self._goal[1]:
                self._good(1)
        if outcome.cost_nano > 0:
            bound.cost(outcome.cost_nano / 1e9)
        if outcome.source == "upstream":
            self._count_upstream(outcome, timings, bound)

    def _count_upstream(self, outcome: Outcome, timings: Timings, bound: _Bound) -> None:
        usage = outcome.usage
        if outcome.answer_ms:  # what was refused here took no provider's time
            bound.client(outcome.answer_ms / 1_000)
        if usage.prompt:
            bound.tokens_in(usage.prompt)
        if usage.completion:
            bound.tokens_out(usage.completion)
        if outcome.call.stream and timings.first_chunk and timings.dispatched:
            bound.client_first(max(timings.first_chunk - timings.dispatched, 0.0))
            if outcome.chunks > 1 and timings.ended:
                bound.client_each(max(timings.ended - timings.first_chunk, 0.0) / (outcome.chunks - 1))

    def _count_lookup(self, outcome: Outcome, timings: Timings) -> None:
        source = outcome.source
        tier = _TIERS.get(source, "none")
        asked = (outcome.cache, tier)
        inc, observe = self._lookups_bound.get(asked) or self._bind_lookup(asked)
        inc(1)
        observe(looked(timings))
        if source in self._saved_bound:
            self._saved_bound[source](max(outcome.saved_nano, 0) / 1e9)
            self._tokens_saved(outcome.usage.total)
            if source == "semantic" and outcome.similarity is not None:
                self._similarity(outcome.similarity)

    def refused(self, operation: str, status: int) -> None:
        """A request turned away before it became a Call (no key, malformed body)."""
        asked = (operation if operation in OPERATION_NAMES else OTHER, status, "none")
        (self._requests_bound.get(asked) or self._bind_request(asked))(1)

    def shed(self, reason: str) -> None:
        """A newcomer that was turned away; the gate knows four reasons."""
        inc = self._shed_bound.get(reason)
        if inc is None:
            inc = self._shed_bound[reason] = self._tallies.sum(self._shed.labels(reason))
        inc(1)

    def pressure(self, lag: float, share: float) -> None:
        self._lag.set(lag)
        self._share.set(share)

    def unposted(self, attempts: int, seconds: float) -> None:
        self._unposted.set(attempts)
        self._behind.set(seconds)

    def left_alone(self, places: Mapping[str, int]) -> None:
        """By provider; one that is told once goes on to be told."""
        for provider, count in places.items():
            self._left_alone.labels(provider).set(count)

    def attempt(self, provider: str, result: str) -> None:
        asked = (provider, result)
        inc = self._attempts_bound.get(asked)
        if inc is None:
            if len(self._attempts_bound) >= MOST_MODELS:
                asked = (OTHER, result if len(self._attempts_bound) < 2 * MOST_MODELS else OTHER)
            inc = self._attempts_bound.get(asked) or self._tallies.sum(self._attempts.labels(*asked))
            self._attempts_bound[asked] = inc
        inc(1)

    def wrong_hits(self, group: tuple[str, str, str], bounds: dict[str, float]) -> None:
        """What was measured of a tenant's model; only so many have labels of their own."""
        if group in self._measured or len(self._measured) < MOST_MODELS:
            self._measured.add(group)
            for bound, value in bounds.items():
                self._wrong_hits.labels(*group, bound).set(value)

    def started(self, now: float) -> None:
        self._started.set(now)

    def engine(self, name: str, figures: dict[str, float]) -> None:
        """Figures of a bundled engine, set when they are asked for."""
        for figure, value in figures.items():
            self._engine.labels(name, figure).set(value)

    def pour(self) -> None:
        """Bring what was counted into the exposition (and, in multi-process mode, to the sibling workers)."""
        self._tallies.pour()
        self._in_flight.set(self.in_flight)

    def exposition(self) -> bytes:
        """Prometheus text, as of the last `pour`. In multi-process mode reads every worker's files: use a thread."""
        if not multi_process():
            return generate_latest(self._registry)
        merged = CollectorRegistry()
        MultiProcessCollector(merged)
        return generate_latest(merged)

    @staticmethod
    def _time_per_token(outcome: Outcome) -> float | None:
        if outcome.usage.completion < 2 or outcome.ttft_ms is None:
            return None
        return max(outcome.total_ms - outcome.ttft_ms, 0.0) / 1_000 / (outcome.usage.completion - 1)

    def _bind_request(self, asked: tuple[str, int | str, str]) -> Add:
        operation, status, cache = asked
        label = str(status) if isinstance(status, int) and 100 <= status <= 599 else OTHER
        inc = self._requests_bound[asked] = self._tallies.sum(self._requests.labels(operation, label, cache))
        return inc

    def _bind_lookup(self, asked: tuple[str, str]) -> tuple[Add, Add]:
        _, tier = asked
        look = self._tallies.spread(self._lookup.labels(tier))
        pair = self._lookups_bound[asked] = (self._tallies.sum(self._lookups.labels(*asked)), look)
        return pair

    def _bind(self, asked: tuple[str, str, str], status: int) -> _Bound:
        """Children for a new name. A model nobody configured gets a label only once it answered, and while few did."""
        operation, provider, model = asked
        fold = model not in self._models and (status >= 400 or self._room <= 0)
        if fold:
            model = OTHER
            if (found := self._bound.get((operation, provider, OTHER))) is not None:
                return found
        elif model not in self._models:
            self._room -= 1
        labels = (OPERATION_NAMES.get(operation, OTHER), provider or "none", model)
        spread = self._tallies.spread
        bound = self._bound[operation, provider, model] = _Bound(
            client=spread(self._client.labels(*labels)),
            client_first=spread(self._client_first.labels(*labels)),
            client_each=spread(self._client_each.labels(*labels)),
            server=spread(self._server.labels(*labels)),
            server_first=spread(self._server_first.labels(*labels)),
            server_each=spread(self._server_each.labels(*labels)),
            tokens_in=spread(self._tokens.labels(*labels, "input")),
            tokens_out=spread(self._tokens.labels(*labels, "output")),
            cost=self._tallies.sum(self._cost.labels(labels[1], model)),
        )
        return bound
