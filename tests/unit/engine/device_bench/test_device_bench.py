"""The device benchmark without a device: its stages run, fail apart from each other, and say what was missed."""

import os
import sys
from pathlib import Path

import pytest
import torch

from engine.cuda import CudaOptions, build
from engine.device_bench import __main__ as bench
from engine.device_bench import kernels, page, roof, serving, speed, stages
from engine.device_bench.models import CONFIGS, TINY, Scale, make_core, make_decoder, spec_of
from engine.device_bench.right import logits_of
from engine.device_bench.rows import Rows, read
from engine.device_bench.serving import Request, latencies
from engine.device_bench.whole import WholeModel

torch.set_num_threads(1)


def test_rooflines_are_the_ones_worked_out_by_hand() -> None:
    """Every fraction that is published is over one of these: Qwen3-0.6B reads 1.19 GB a step, 114,688 bytes a token."""
    spec = spec_of(Scale(context=40960), "Qwen3-0.6B")
    layers, head = roof.weight_count(spec)
    assert (layers + head) * 2 == pytest.approx(1.19e9, rel=0.01)
    assert roof.kv_bytes(spec) == 114_688
    assert 1 / roof.decode_seconds(spec, roof.Ceilings(), [0]) == pytest.approx(3607, rel=0.01)
    prompts, outs = speed.nano_sizes(Scale())
    assert (sum(map(len, prompts)), sum(outs)) == (142_827, 133_966)
    sizes = [(len(prompt), out) for prompt, out in zip(prompts, outs, strict=True)]
    assert roof.batch_seconds(spec, roof.Ceilings(), sizes) == pytest.approx(3.67, rel=0.02)


def test_shapes_are_the_real_ones() -> None:
    """A figure for a model of another size would be quoted under this one's name."""
    millions = {name: spec_of(Scale(), name).parameters / 1e6 for name in CONFIGS}
    assert millions == pytest.approx({"Qwen3-0.6B": 596, "Llama-3.2-1B": 1236, "Qwen3-8B": 8190}, rel=0.01)


@pytest.mark.parametrize("stage", ["kernels against float64", "batch 1"])
def test_stages_run_without_a_device(stage: str, tmp_path: Path) -> None:
    """Ten minutes of a device are too dear to find a typing error with. (`make h200-dry` runs all of them.)"""
    rows = tmp_path / "rows.jsonl"
    bench.STAGES[stage](TINY, Rows(rows, stage))
    told = read(rows)
    assert told
    assert all(row.get("ok", True) for row in told), told


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_the_whole_dry_run(tmp_path: Path) -> None:
    """Every stage that needs no GPU, each in its own process, and the page that comes of it."""
    dry = [stage for stage in bench.RIGHT + bench.FAST if stage.name not in bench.ON_GPU_ONLY]
    assert stages.run_all(dry, tmp_path, 560, ["--tiny"]) == []
    assert "failed" not in page.write(tmp_path, "dry", "2000-01-01", "…", read(tmp_path / "rows.jsonl")).read_text()


def test_a_stage_that_fails_or_hangs_costs_nobody_else_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of ten minutes is all there is: what was measured must survive whatever happens after."""
    program = (
        "import sys, time\n"
        "name, out = sys.argv[4], sys.argv[6]\n"
        'open(out + \'/rows.jsonl\', \'a\').write(\'{"stage": "%s", "name": "row"}\\n\' % name)\n'
        "sys.exit('broken') if name == 'fails' else time.sleep(60 if name == 'hangs' else 0)\n"
    )
    fake = tmp_path / "python"
    fake.write_text(f"#!{sys.executable}\n{program}")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    plan = [stages.Stage("fails", 20), stages.Stage("hangs", 1), stages.Stage("works", 20)]
    assert stages.run_all(plan, tmp_path, 60, []) == ["fails", "hangs"]
    told = read(tmp_path / "rows.jsonl")
    assert [row["stage"] for row in told if row["name"] == "row"] == ["fails", "hangs", "works"]
    faults = {row["stage"]: row["fault"] for row in told if row["name"] == "stage"}
    assert "broken" in faults["fails"]
    assert "stopped" in faults["hangs"]
    assert faults["works"] is None


def test_no_time_left_is_said(tmp_path: Path) -> None:
    """A stage that was left out must not look like one that had nothing to tell."""
    assert stages.run_all([stages.Stage("late", 10)], tmp_path, 1, []) == ["late"]
    assert read(tmp_path / "rows.jsonl")[0]["reason"] == "no time was left"


def test_a_line_cut_off_by_a_crash_loses_only_itself(tmp_path: Path) -> None:
    """A GPU that faults takes its process with it, in the middle of a line."""
    Rows(tmp_path / "rows.jsonl", "one").add("first", figure=1)
    with (tmp_path / "rows.jsonl").open("ab") as file:
        file.write(b'{"stage": "one", "na')
    assert [row["name"] for row in read(tmp_path / "rows.jsonl")] == ["first"]


def test_the_page_names_what_was_missed_and_what_was_wrong(tmp_path: Path) -> None:
    """A table of numbers in which a missed gate looks like a kept one is an advertisement."""
    rows = [
        {"stage": "s", "name": "a", "tokens_per_s": 900.0, "wanted": 1000},
        {"stage": "s", "name": "b", "tokens_per_s": 1100.0, "wanted": 1000},
        {"stage": "s", "name": "c", "ok": False, "relative_error": 0.5},
        {"stage": "s", "name": "d", "ttft_ms": 12.0, "wanted_ms_below": 10},
        {"stage": "s", "name": "e", "process_s": 7.0, "wanted_s_below": 5},
        {"stage": "s", "name": "stage", "seconds": 3.0, "fault": "exit code 1: out of memory"},
    ]
    text = page.write(tmp_path, "fast", "2000-01-01", "command", rows).read_text()
    wrong = ("**missed** · a", "**wrong** · c", "**missed** · d", "**missed** · e", "**failed**: exit code 1")
    for part in ("kept · b", *wrong):
        assert part in text
    assert (tmp_path / "device-fast-2000-01-01.json").exists()


def test_goodput_counts_requests_that_kept_both_limits() -> None:
    """Throughput with late first tokens is not service."""
    good = Request([], 2, 0.0, [0.1, 0.12])
    late = Request([], 2, 0.0, [0.9, 0.92])
    slow = Request([], 2, 1.0, [1.1, 1.2])
    told = latencies([good, late, slow], 2.0)
    assert told["goodput_per_s"] == 0.5
    assert told["ttft_p50_ms"] == pytest.approx(100)


def test_requests_are_served_when_they_are_due() -> None:
    """Latency counts from when a request was due, also when the engine was busy then."""
    core = make_core(TINY, make_decoder(TINY, "Qwen3-0.6B"))
    requests = [Request([1, 2, 3], 3, due) for due in (0.0, 0.02, 0.02)]
    serving.serve(core, requests)
    assert [len(one.times) for one in requests] == [3, 3, 3]
    assert all(one.ttft > 0 for one in requests)


def test_the_compiled_peer_computes_the_same_model() -> None:
    """A bar that computes something else is no bar."""
    decoder = make_decoder(TINY, "Qwen3-0.6B")
    tokens = [5, 9, 200, 41, 7, 77]
    ours = logits_of(build(decoder, CudaOptions(sequences=2, step_tokens=16, blocks=4)), tokens, [1], prompt=6)
    whole = WholeModel(decoder, 16)
    with torch.inference_mode():
        told = [int(whole.step(torch.tensor([token]), torch.tensor([at]))) for at, token in enumerate(tokens)]
    best = ours.topk(2)
    clear = best.values[:, 0] - best.values[:, 1] > 0.05
    assert bool(clear.any())
    assert all(
        mine == theirs for mine, theirs, sure in zip(best.indices[:, 0].tolist(), told, clear, strict=True) if sure
    )


def test_kernel_scenes_hold_what_they_say() -> None:
    """Tables of tiles are written by hand there, as the runner writes them from plans."""
    scene = kernels.Scene(TINY, (4, 2, 16), batch=2, context=40, asked=3)
    tiles, parts = scene.tiles(kernels.Cut(16, 2, 2), single=True)
    assert tiles.table[:, :5].tolist() == [[s, s * 3 + r, 1, 37 + r, (s * 3 + r) * 3] for s in (0, 1) for r in range(3)]
    assert len(parts.sums) == 18


@pytest.mark.skipif("NEARHIT_PROOF" not in os.environ, reason="the compiler takes a minute")  # noqa: TID251  (a switch)
@pytest.mark.proof
def test_the_compiled_peer_compiles() -> None:
    """`fullgraph` would refuse a break that quietly halves its speed."""
    decoder = make_decoder(TINY, "Qwen3-0.6B")
    with torch.inference_mode():
        torch.compile(WholeModel(decoder, 16).step, fullgraph=True)(torch.tensor([1]), torch.tensor([0]))
