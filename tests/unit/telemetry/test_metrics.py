"""What a request changes in the Prometheus exposition, and how many label values there can be."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics import MOST_MODELS, Metrics, multi_process
from gateway.telemetry import Attempt
from tests.unit.telemetry.requests import a_call, a_hit, a_miss, marks


def samples(metrics: Metrics) -> dict[str, float]:
    """`name{label="value",…}` -> value, labels in the order of their names."""
    metrics.pour()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_a_miss_is_counted_once_everywhere() -> None:
    """Finance and operators add these up: each request, token and cent exactly once."""
    metrics = Metrics(["gpt-5-mini"])
    metrics.count(a_miss(), marks())
    found = samples(metrics)
    model = 'gen_ai_operation_name="chat",gen_ai_provider_name="openai",gen_ai_request_model="gpt-5-mini"'
    assert found['nearhit_requests_total{cache="miss",operation="chat",status="200"}'] == 1
    assert found['nearhit_cost_usd_total{model="gpt-5-mini",provider="openai"}'] == pytest.approx(0.0015)
    assert found['nearhit_cache_lookups_total{status="miss",tier="none"}'] == 1
    assert found['nearhit_upstream_attempts_total{provider="openai",result="ok"}'] == 1
    assert found["nearhit_overhead_seconds_sum"] == pytest.approx(0.010)
    assert found[f'gen_ai_client_token_usage_sum{{{model},gen_ai_token_type="input"}}'] == 10
    assert found[f'gen_ai_client_token_usage_sum{{{model},gen_ai_token_type="output"}}'] == 20
    assert found[f"gen_ai_client_operation_duration_seconds_sum{{{model}}}"] == pytest.approx(0.39)
    assert found[f"gen_ai_server_request_duration_seconds_count{{{model}}}"] == 1
    assert found[f"gen_ai_server_time_to_first_token_seconds_count{{{model}}}"] == 0


def test_a_hit_saves_and_buys_nothing() -> None:
    """Saved money is the product's promise; it must never also appear as spent."""
    metrics = Metrics()
    metrics.count(a_hit(), marks(dispatched=0.0, first_chunk=0.0, attempts=[]))
    found = samples(metrics)
    assert found['nearhit_saved_usd_total{source="semantic"}'] == pytest.approx(0.0015)
    assert found["nearhit_tokens_saved_total"] == 30
    assert found['nearhit_cache_lookups_total{status="hit-semantic",tier="semantic"}'] == 1
    assert found['nearhit_cache_similarity_bucket{le="0.98"}'] == 1
    assert sum(value for name, value in found.items() if name.startswith("nearhit_cost_usd_total")) == 0
    assert sum(value for name, value in found.items() if name.startswith("gen_ai_client_token_usage_count")) == 0


def test_a_stream_tells_its_pace() -> None:
    """TTFT and TPOT are what users of a stream feel: 100 ms, then 300 ms for 19 more tokens."""
    metrics = Metrics(["gpt-5-mini"])
    metrics.count(a_miss(a_call(stream=True)), marks())
    found = samples(metrics)
    model = '{gen_ai_operation_name="chat",gen_ai_provider_name="openai",gen_ai_request_model="gpt-5-mini"}'
    assert found[f"gen_ai_server_time_to_first_token_seconds_sum{model}"] == pytest.approx(0.1)
    assert found[f"gen_ai_server_time_per_output_token_seconds_sum{model}"] == pytest.approx(0.3 / 19)
    assert found[f"gen_ai_client_operation_time_to_first_chunk_seconds_sum{model}"] == pytest.approx(0.092)
    assert found[f"gen_ai_client_operation_time_per_output_chunk_seconds_sum{model}"] == pytest.approx(0.3 / 19)


def test_waiting_for_another_request_is_no_overhead() -> None:
    """A follower spends its time waiting for the leader's upstream; counted as ours it would hide the real overhead."""
    metrics = Metrics()
    waited = a_miss(source="shared", cache="shared", upstream_ms=0.0, cost_nano=0, saved_nano=1_500_000, attempts=0)
    metrics.count(waited, marks(attempts=[]))
    found = samples(metrics)
    assert found["nearhit_overhead_seconds_count"] == 0
    assert found['nearhit_saved_usd_total{source="shared"}'] == pytest.approx(0.0015)


def test_what_was_never_sent_took_no_provider_any_time() -> None:
    """Refusals by a budget are answered in no time: as points of zero they would halve what providers seem to take."""
    metrics = Metrics(["gpt-5-mini"])
    refused = a_miss(status=429, error="insufficient_quota", provider="", upstream_ms=0.0, answer_ms=0.0, attempts=0)
    metrics.count(refused, marks(attempts=[]))
    found = samples(metrics)
    assert not any(found[name] for name in found if name.startswith("gen_ai_client_operation_duration_seconds_count"))


def test_a_failed_request_still_shows_what_it_cost() -> None:
    """An answer that broke off is charged; hiding that would make the metric disagree with the ledger."""
    metrics = Metrics(["gpt-5-mini"])
    metrics.count(a_miss(source="none", status=502, error="UpstreamFailed", complete=False), marks())
    found = samples(metrics)
    assert found['nearhit_cost_usd_total{model="gpt-5-mini",provider="openai"}'] == pytest.approx(0.0015)
    assert found['nearhit_requests_total{cache="miss",operation="chat",status="502"}'] == 1


def test_labels_stay_few() -> None:
    """A client that invents model names must not be able to fill the memory of Prometheus."""
    metrics = Metrics(["configured"])
    for number in range(MOST_MODELS + 50):
        metrics.count(a_miss(a_call(model=f"refused-{number}"), model="", status=404, source="none"), marks())
        metrics.count(a_miss(model=f"answered-{number}"), marks())
        metrics.attempt(f"provider-{number}", "ok")
    metrics.count(a_miss(model="configured"), marks())
    metrics.pour()
    text = metrics.exposition().decode()
    models = {
        sample.labels["gen_ai_request_model"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "gen_ai_request_model" in sample.labels
    }
    assert len(models) == MOST_MODELS + 2
    assert {"configured", "other"} < models
    assert not [name for name in models if name.startswith("refused")]
    assert 'provider="other"' in text
    assert "provider-149" not in text


def test_what_is_refused_before_it_is_a_call_is_counted() -> None:
    """A flood of bad keys must show, although no such request gets as far as an outcome."""
    metrics = Metrics()
    metrics.refused("chat", 401)
    metrics.refused("../etc", 404)
    found = samples(metrics)
    assert found['nearhit_requests_total{cache="none",operation="chat",status="401"}'] == 1
    assert found['nearhit_requests_total{cache="none",operation="other",status="404"}'] == 1


def test_several_attempts_are_counted_by_result() -> None:
    """Failing providers are found by this counter."""
    metrics = Metrics()
    tried = [
        Attempt(provider="a", model="m", started=100.0, result="UpstreamTimeout"),
        Attempt(provider="b", model="m", started=100.1),
    ]
    metrics.count(a_miss(attempts=2), marks(attempts=tried))
    found = samples(metrics)
    assert found['nearhit_upstream_attempts_total{provider="a",result="UpstreamTimeout"}'] == 1
    assert found['nearhit_upstream_attempts_total{provider="b",result="ok"}'] == 1


WORKER = """
import os
import sys
from pathlib import Path
from gateway.metrics import Metrics, multi_process
from gateway.serve_home import forget_gauges
from tests.unit.telemetry.requests import a_miss, marks
assert multi_process()
metrics = Metrics(["gpt-5-mini"])
for _ in range(int(sys.argv[1])):
    metrics.count(a_miss(), marks())
metrics.in_flight = 2
metrics.pour()
if len(sys.argv) > 2:
    forget_gauges(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]), int(sys.argv[2]))
    sys.stdout.buffer.write(metrics.exposition())
else:
    print(os.getpid())
"""


def test_any_worker_answers_for_all(tmp_path: Path) -> None:
    """With several workers a scrape reaches one of them by chance; it must not see a part of the truth."""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": str(Path.cwd())}  # noqa: TID251 - a real process gets a real environment

    def worker(*arguments: str) -> str:
        command = [sys.executable, "-c", WORKER, *arguments]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=60).stdout

    first = worker("3").strip()
    merged = worker("4", first)
    assert 'nearhit_requests_total{cache="miss",operation="chat",status="200"} 7.0' in merged
    assert "\nnearhit_in_flight 2.0" in merged, "the gauge of a worker that died is gone, its counters stay"
    holes = [path.name for path in tmp_path.glob("*.db") if path.stat().st_blocks * 512 < path.stat().st_size]
    assert not holes, "a write there, on a full disk, is the end of the process"
    assert not multi_process(), "this process itself never shares values"
