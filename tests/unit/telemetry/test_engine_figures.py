"""What engines count, as Prometheus text."""

from prometheus_client.parser import text_string_to_metric_families

from engine.api import EngineStats, EngineUsage, Timing
from engine.frames import Output
from engine.meter import Meter, Objective
from gateway.engine_figures import EngineMetrics, Watched


def of(*labels: str) -> frozenset[str]:
    return frozenset(labels)


def exposed() -> dict[str, dict[frozenset[str], float]]:
    meter = Meter(Objective(first_ms=100, each_ms=10))
    meter.saw(1, Output(handle=0, tokens=[1]), 0.0)
    timing = Timing(queue_ms=1, ttft_ms=30, tpot_ms=4)
    usage = EngineUsage(prompt=100, completion=3, cached=64)
    meter.saw(1, Output(handle=0, tokens=[1, 2], finish="length", usage=usage, timing=timing), 0.004)
    stats = EngineStats(ready=True, running=2, waiting=1, kv_used=0.25, preemptions=3)
    watched = Watched("demo", lambda: stats, lambda: {"0": meter.figures, "1": meter.figures})
    found: dict[str, dict[frozenset[str], float]] = {}
    names: list[str] = []
    for family in text_string_to_metric_families(EngineMetrics({"local": watched}).exposition().decode()):
        names.append(family.name)
        for sample in family.samples:
            found.setdefault(sample.name, {})[of(*sample.labels.values())] = sample.value
    assert len(names) == len(set(names)), "declared twice"
    return found


def test_figures_read_alike_under_both_names() -> None:
    """Autoscalers and dashboards made for vLLM must work unchanged, and say the same as our own."""
    found = exposed()
    for own, alias in (
        ("nearhit_engine_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"),
        ("nearhit_engine_inter_token_gap_seconds", "vllm:inter_token_latency_seconds"),
        ("nearhit_engine_queue_time_seconds", "vllm:request_queue_time_seconds"),
    ):
        assert found[f"{own}_count"][of("local", "1")] == found[f"{alias}_count"][of("local/demo", "1")] == 1
        assert found[f"{own}_sum"] == dict.fromkeys(
            [of("local", "0"), of("local", "1")], found[f"{own}_sum"][of("local", "0")]
        )
    buckets = found["vllm:time_to_first_token_seconds_bucket"]
    assert (buckets[of("local/demo", "0", "0.02")], buckets[of("local/demo", "0", "0.04")]) == (0, 1)
    assert buckets[of("local/demo", "0", "+Inf")] == 1
    assert found["vllm:num_requests_running"][of("local/demo", "0")] == 2
    assert found["vllm:num_requests_waiting"][of("local/demo", "0")] == 1
    assert found["vllm:kv_cache_usage_perc"][of("local/demo", "0")] == 0.25
    assert found["vllm:prefix_cache_queries_total"][of("local/demo", "0")] == 100
    assert found["vllm:prefix_cache_hits_total"][of("local/demo", "0")] == 64
    assert found["vllm:num_preemptions_total"][of("local/demo", "0")] == 3
    assert found["vllm:request_success_total"][of("local/demo", "0", "length")] == 1


def test_goodput_tells_its_objective() -> None:
    """A rate of good answers means nothing without the bound it was held to."""
    found = exposed()
    assert found["nearhit_engine_goodput_requests_total"][of("local", "0")] == 1
    assert found["nearhit_engine_slo_seconds"][of("local", "0", "ttft")] == 0.1
