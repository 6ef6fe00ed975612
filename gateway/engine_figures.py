"""What the engines count, as Prometheus families: under our own names, and under vLLM's for dashboards that exist.

Knows: names, labels, which figure is which. Does not know: sockets, what is counted (`engine.meter`).

Every engine process counts for itself and tells each worker, so any worker shows all of it: nothing is summed over
workers, and each histogram is declared in one line of the table below.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from operator import attrgetter

from msgspec import Struct
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from engine.api import EngineStats, Figures, Spread

# vLLM's names and labels as of 0.33 (vllm/v1/metrics/loggers.py).
_SPREADS = (
    ("first", "time_to_first_token", "time_to_first_token", "From submission to the first token."),
    ("each", "time_per_output_token", "request_time_per_output_token", "Per token after a request's first."),
    ("gap", "inter_token_gap", "inter_token_latency", "Between two outputs of a request."),
    ("queue", "queue_time", "request_queue_time", "From submission until first scheduled."),
    ("whole", "request_time", "e2e_request_latency", "From submission to the last token."),
)
_COUNTS = (
    ("prompt", "prompt_tokens", "prompt_tokens", "Prompt tokens, found in the cache or computed."),
    ("cached", "cached_tokens", "prefix_cache_hits", "Prompt tokens found in the prefix cache."),
    ("generated", "generated_tokens", "generation_tokens", "Tokens written."),
    ("refused", "refused", None, "Requests turned away: the queue was full, or they could never be served."),
)
_TOTALS = (
    ("preemptions", "preemptions", "num_preemptions", "Sequences that gave their blocks up and began again."),
    ("drafted_tokens", "drafted_tokens", "spec_decode_num_draft_tokens", "Tokens guessed ahead."),
    ("accepted_tokens", "accepted_tokens", "spec_decode_num_accepted_tokens", "Guesses that were right."),
)
# Our own gauges are `nearhit_engine{figure=…}` (gateway.metrics); these are what autoscalers of vLLM look at.
_GAUGES = (
    ("running", "num_requests_running", "Requests in the batch."),
    ("waiting", "num_requests_waiting", "Requests in the queue."),
    ("kv_used", "kv_cache_usage_perc", "Share of the blocks in use, 0 to 1."),
)


class Watched(Struct, frozen=True):
    """One engine: `model` as clients call it."""

    model: str
    stats: Callable[[], EngineStats]
    figures: Callable[[], dict[str, Figures]]


class EngineMetrics(Collector):
    """All engines at the moment of asking."""

    def __init__(self, engines: Mapping[str, Watched]) -> None:
        self._engines = engines
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def exposition(self) -> bytes:
        """Prometheus text; empty without engines."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily]:
        counted = [
            (name, one.model, replica, figures)
            for name, one in self._engines.items()
            for replica, figures in one.figures().items()
        ]
        now = [(name, one.model, one.stats()) for name, one in self._engines.items()]
        yield from _gauges(now)
        yield from _counters(counted, now)
        yield from _histograms(counted)
        yield from _ends(counted)


Counted = list[tuple[str, str, str, Figures]]
Now = list[tuple[str, str, EngineStats]]


def _gauges(now: Now) -> Iterator[GaugeMetricFamily]:
    for field, alias, text in _GAUGES:
        found = GaugeMetricFamily(f"vllm:{alias}", text, labels=_VLLM)
        for name, model, stats in now:
            found.add_metric(_labels(_VLLM, name, model, "0"), float(attrgetter(field)(stats)))
        yield found


def _counters(counted: Counted, now: Now) -> Iterator[CounterMetricFamily]:
    for field, own, alias, text in _COUNTS:
        for family, labels in _named(own, alias):
            found = CounterMetricFamily(family, text, labels=labels)
            for name, model, replica, figures in counted:
                found.add_metric(_labels(labels, name, model, replica), attrgetter(field)(figures))
            yield found
    queries = CounterMetricFamily("vllm:prefix_cache_queries", "Prompt tokens looked for.", labels=_VLLM)
    for name, model, replica, figures in counted:
        queries.add_metric(_labels(_VLLM, name, model, replica), figures.prompt)
    yield queries
    for field, own, alias, text in _TOTALS:
        for family, labels in _named(own, alias):
            found = CounterMetricFamily(family, text, labels=labels)
            for name, model, stats in now:
                found.add_metric(_labels(labels, name, model, "0"), attrgetter(field)(stats))
            yield found


def _histograms(counted: Counted) -> Iterator[HistogramMetricFamily]:
    for field, own, alias, text in _SPREADS:
        for family, labels in _named(f"{own}_seconds", f"{alias}_seconds"):
            found = HistogramMetricFamily(family, text, labels=labels)
            for name, model, replica, figures in counted:
                spread: Spread = attrgetter(field)(figures)
                found.add_metric(_labels(labels, name, model, replica), _buckets(spread), spread.total)
            yield found


def _ends(counted: Counted) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
    for family, labels, reason in (
        ("nearhit_engine_requests", _OWN, "reason"),
        ("vllm:request_success", _VLLM, "finished_reason"),
    ):
        found = CounterMetricFamily(family, "Requests by how they ended.", labels=(*labels, reason))
        for name, model, replica, figures in counted:
            for why, count in figures.finished.items():
                if reason == "reason" or why in ("stop", "length", "abort"):
                    found.add_metric([*_labels(labels, name, model, replica), why], count)
        yield found
    good = CounterMetricFamily(
        "nearhit_engine_goodput_requests", "Whole answers within both bounds of the SLO.", labels=_OWN
    )
    slo = GaugeMetricFamily("nearhit_engine_slo_seconds", "The bounds.", labels=(*_OWN, "bound"))
    for name, model, replica, figures in counted:
        labels = _labels(_OWN, name, model, replica)
        good.add_metric(labels, figures.met)
        slo.add_metric([*labels, "ttft"], figures.slo_first)
        slo.add_metric([*labels, "tpot"], figures.slo_each)
    yield good
    yield slo


_OWN = ("engine", "replica")
_VLLM = ("model_name", "engine")


def _named(own: str, alias: str | None) -> Iterator[tuple[str, tuple[str, str]]]:
    """A family's names, each with its labels."""
    yield f"nearhit_engine_{own}", _OWN
    if alias is not None:
        yield f"vllm:{alias}", _VLLM


def _labels(names: tuple[str, str], engine: str, model: str, replica: str) -> list[str]:
    return [engine, replica] if names == _OWN else [f"{engine}/{model}", replica]


def _buckets(spread: Spread) -> list[tuple[str, float]]:
    """Cumulative, as Prometheus wants them."""
    return list(zip([*map(str, spread.bounds), "+Inf"], map(float, accumulate(spread.counts)), strict=True))
