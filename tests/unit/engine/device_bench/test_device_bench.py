"""The device benchmark without a device: its stages run, fail apart from each other, and say what was missed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from engine.cuda import CudaOptions, build
from engine.device_bench import catalog, kernels, machine, page, right, roof, sanitizer, serving, speed, stages
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


@pytest.mark.parametrize("stage", ["kernels against float64", "kernel bandwidth", "one row", "batch 1"])
def test_stages_run_without_a_device(stage: str, tmp_path: Path) -> None:
    """Ten minutes of a device are too dear to find a typing error with. (`make h200-dry` runs all of them.)"""
    rows = tmp_path / "rows.jsonl"
    catalog.STAGES[stage](TINY, Rows(rows, stage))
    told = read(rows)
    assert told
    assert all(row.get("ok", True) and not row.get("fault") for row in told), told


def test_a_run_fits_into_its_ten_minutes() -> None:
    """A call is stopped after 600 s: limits that add up to more would let one slow stage take the others' time."""
    for of_run in stages.RUNS.values():
        assert sum(stage.seconds for stage in of_run) <= stages.BUDGET_S
        assert all(stage.seconds >= 15 for stage in of_run)
    assert stages.BUDGET_S <= 600 - 45, "packages are unpacked before, results are sent back after"
    assert {stage.name for of_run in stages.RUNS.values() for stage in of_run} == set(catalog.STAGES)
    assert next(stage.seconds for stage in stages.RIGHT if stage.name == "compute-sanitizer") > sanitizer.SECONDS


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_the_whole_dry_run(tmp_path: Path) -> None:
    """Every stage on tiny shapes, each in its own process, and the page that comes of it."""
    rows = tmp_path / "dry.jsonl"
    assert stages.run_all(stages.dry_run(), rows, 800, ["--tiny"], lambda: None) == []
    assert "failed" not in page.write(rows, tmp_path).read_text()


_STAGE = """
import sys, time
name, rows = sys.argv[4], sys.argv[6]
open(rows, 'a').write('{"stage": "%s", "name": "row"}\\n' % name)
sys.exit('ValueError: broken') if name == 'fails' else time.sleep(60 if name == 'hangs' else 0)
"""


@pytest.fixture
def any_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages that write a row and then do as they are named."""
    fake = tmp_path / "python"
    fake.write_text(f"#!{sys.executable}\n{_STAGE}")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    monkeypatch.setattr(stages, "_LEAST_S", 0.5)


@pytest.mark.usefixtures("any_stage")
def test_a_stage_that_fails_or_hangs_costs_nobody_else_a_row(tmp_path: Path) -> None:
    """Two runs of ten minutes is all there is: what was measured must survive whatever happens after."""
    plan = [stages.Stage("fails", 2), stages.Stage("hangs", 1), stages.Stage("works", 20)]
    rows = tmp_path / "fast.jsonl"
    pages: list[int] = []
    assert stages.run_all(plan, rows, 60, [], lambda: pages.append(len(read(rows)))) == ["fails", "hangs"]
    told = read(rows)
    assert [row["stage"] for row in told if row["name"] == "row"] == ["fails", "hangs", "works"]
    faults = {row["stage"]: row["fault"] for row in told if row["name"] == "stage"}
    assert "ValueError: broken" in faults["fails"]
    assert "stopped" in faults["hangs"]
    assert faults["works"] is None
    assert pages == [2, 4, 6], "the page is written after every stage"


@pytest.mark.usefixtures("any_stage")
def test_what_is_set_aside_for_the_last_is_left_to_it(tmp_path: Path) -> None:
    """One stage that hangs used to take the time of the peers, which were then left out."""
    plan = [stages.Stage("hangs", 2), stages.Stage("hangs", 2), stages.Stage("works", 2)]
    began = time.monotonic()
    assert stages.run_all(plan, tmp_path / "fast.jsonl", 6, [], lambda: None) == ["hangs", "hangs"]
    assert time.monotonic() - began < 6


@pytest.mark.usefixtures("any_stage")
def test_no_time_left_is_said(tmp_path: Path) -> None:
    """A stage that was left out must not look like one that had nothing to tell."""
    assert stages.run_all([stages.Stage("late", 10)], tmp_path / "rows.jsonl", 0.1, [], lambda: None) == ["late"]
    assert read(tmp_path / "rows.jsonl")[0]["reason"] == "no time was left"


def test_a_run_that_is_stopped_takes_its_stage_with_it_and_leaves_a_page(tmp_path: Path) -> None:
    """A call is ended by a signal; a stage that ran on would hold the GPU against the next one."""
    command = [sys.executable, "-m", "engine.device_bench", "dry", "--out", str(tmp_path)]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    log, deadline = tmp_path / "dry.log", time.monotonic() + 60
    while not log.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
    stage = int(Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()[0])
    run.send_signal(signal.SIGTERM)
    assert run.wait(30) == 143
    assert not Path(f"/proc/{stage}").exists()
    assert [path.suffix for path in page.keep(tmp_path, tmp_path)] == [".md"]


def test_what_is_missing_is_told_by_python_alone(tmp_path: Path) -> None:
    """On a bare machine the first thing to fail is an import: the results must say which."""
    child = [sys.executable, "-S", "-E", machine.__file__, str(tmp_path), "right"]
    assert subprocess.run(child, stdout=subprocess.DEVNULL, check=False).returncode == 1
    (row,) = read(tmp_path / "right.jsonl")
    assert "ModuleNotFoundError" in row["missing"]["torch"]
    assert row["python"]


def test_a_sanitizer_that_refuses_the_machine_is_no_finding() -> None:
    """Some virtual machines do not let it look; that says nothing of the kernels, and a clean run must have looked."""
    assert sanitizer.verdict("launched 9\n========= ERROR SUMMARY: 0 errors\n", 0)["ok"] is True
    assert sanitizer.verdict("launched 9\n========= RACECHECK SUMMARY: 2 hazards displayed\n", 9)["ok"] is False
    assert "left_out" in sanitizer.verdict("========= Error: Device not supported\n", 1)
    assert "left_out" in sanitizer.verdict("========= ERROR SUMMARY: 0 errors\n", 1)  # nothing was launched


def test_logits_are_judged_where_bfloat16_can_tell_them_apart() -> None:
    """A wrong token at a clear margin must count, one that the reference gets wrong too must not."""
    truth = torch.tensor([[1.0, 0.5, 0.0], [1.0, 0.95, 0.0], [0.0, 1.0, 0.2]])
    near = truth.clone()
    near[1] = torch.tensor([0.95, 1.0, 0.0])  # within the margin
    assert right.agreement(near, near, truth)["ok"]
    wrong = truth.clone()
    wrong[0] = torch.tensor([0.4, 1.1, 0.0])
    told = right.agreement(wrong, near, truth)
    assert not told["ok"]
    assert told["clear_rows_not_agreed"] == 1
    assert told["largest_margin_not_agreed"] == 0.5
    assert not right.agreement(near * float("nan"), near, truth)["ok"]


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
    begun = {"stage": "run", "name": "run", "run": "fast", "date": "2000-01-01", "environment": {"torch": "2.11"}}
    (tmp_path / "fast.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (begun, *rows)))
    (kept,) = page.keep(tmp_path, tmp_path)
    text = kept.read_text()
    wrong = ("**missed** · a", "**wrong** · c", "**missed** · d", "**missed** · e", "**failed**: exit code 1")
    for part in ("kept · b", "| a | 900 | 1000 |", "torch 2.11", *wrong):
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


def test_the_compiled_peer_is_told_what_stays_in_place() -> None:
    """Else each replay copies every weight, and a cache that is written to keeps graphs from being recorded at all."""
    whole = WholeModel(make_decoder(TINY, "Qwen3-0.6B"), 16)
    assert all(hasattr(tensor, "_dynamo_static_input_type") for tensor in whole.tensors())


@pytest.mark.skipif("NEARHIT_PROOF" not in os.environ, reason="the compiler takes a minute")  # noqa: TID251  (a switch)
@pytest.mark.proof
def test_the_compiled_peer_compiles() -> None:
    """`fullgraph` would refuse a break that quietly halves its speed."""
    decoder = make_decoder(TINY, "Qwen3-0.6B")
    with torch.inference_mode():
        torch.compile(WholeModel(decoder, 16).step, fullgraph=True)(torch.tensor([1]), torch.tensor([0]))
