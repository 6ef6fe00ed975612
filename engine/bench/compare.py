"""Engines side by side on the same weights and token ids: `nearhit bench engine`, `make bench-engine`.

Knows: which trials are run, that tokens are compared before speed is told, what is worked out of times. Does not know:
how an engine is asked (`peers`). Every trial is a process; one runs at a time. Repeats ask other prompts.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from engine.bench import checkpoint, workloads
from engine.bench.peers import WEIGHTS, known
from engine.bench.trial import Trial
from engine.models.spec import read_spec
from engine.planning import measure
from engine.roofline import Machine, Shape, shape

REFERENCE = "transformers_generate"
OURS = "nearhit"
_SLO_TTFT_MS, _SLO_TPOT_MS = 500.0, 50.0
_PATIENCE_S = 1800
_LESSER = ("one", "sixteen")  # workloads for weights in fewer bits
_REDUCING = ("llama_cpp", OURS)  # who has those
_LIBRARIES = ("torch", "transformers", "xllamacpp")


class Plan(Struct, frozen=True, kw_only=True):
    """What is measured. `folder` keeps the checkpoints between runs. `long_prompt`: tokens of the late prompt.

    `weights`: their types. All but float32 are asked of those engines that have them, one by one and in sixteens.
    """

    folder: Path
    models: tuple[str, ...] = ("5m", "100m")
    names: tuple[str, ...] = workloads.NAMES
    peers: tuple[str, ...] = (REFERENCE, "transformers_static", "transformers_continuous", "llama_cpp", OURS)
    threads: tuple[int, ...] = (1, 2)
    weights: tuple[str, ...] = tuple(WEIGHTS)
    repeats: int = 3
    long_prompt: int = 8192


class Row(Struct, kw_only=True):
    """One engine on one workload, medians over repeats. Times in milliseconds. `equal`: requests whose tokens agree.

    `gap_ratio`: the largest gap of a running stream after the late prompt came, over their median gap before it came.
    `roofline`: the least time that memory and arithmetic allow over the time taken. `perplexity`: percent by which it
    changes from float32 weights to these, where we measured it.
    """

    model: str
    workload: str
    threads: int
    peer: str
    weights: str = "float32"
    perplexity: float | None = None
    requests: int = 0
    equal: int = 0
    tokens_per_s: float = 0.0
    spread: float = 0.0
    ttft_p50: float = 0.0
    ttft_max: float = 0.0
    tpot_p50: float = 0.0
    largest_gap: float = 0.0
    gap_ratio: float | None = None
    goodput: float = 0.0
    roofline: float = 0.0
    note: str = ""


def run(plan: Plan, say: Callable[[str], object]) -> dict[str, Any]:
    """Everything in `plan`; what could not run says why in its row. Raises LookupError for unknown names."""
    unknown = sorted({*plan.peers} - {*known()}) or sorted({*plan.names} - {*workloads.NAMES})
    unknown = unknown or sorted({*plan.models} - {*checkpoint.SIZES}) or sorted({*plan.weights} - {*WEIGHTS})
    if unknown:
        told = f"Peers: {known()}, workloads: {workloads.NAMES}, weights: {tuple(WEIGHTS)}."
        raise LookupError(f"Unknown: {unknown[0]!r}. {told}")
    began, load = time.strftime("%Y-%m-%d"), os.getloadavg()[0]
    rows: list[Row] = []
    machines: dict[int, Machine] = {}
    for model in plan.models:
        folder = checkpoint.write(plan.folder / model, model)
        changes = {weights: _change(plan, folder, weights) for weights in plan.weights}
        for threads, weights in product(plan.threads, plan.weights):
            machines[threads] = machines.get(threads) or _machine(threads)
            found = shape(read_spec(checkpoint.config(model)), WEIGHTS[weights])
            place = _Place(model, folder, threads, found, machines[threads], weights)
            for name in plan.names if weights == "float32" else [name for name in plan.names if name in _LESSER]:
                for row in _rows(plan, place, name):
                    row.perplexity = changes[weights] if row.peer == OURS else None
                    rows.append(row)
                    say(line(row))
    return {
        "date": began,
        "load_average_before": round(load, 2),
        "processors": os.cpu_count(),
        "repeats": plan.repeats,
        "slo": {"ttft_ms": _SLO_TTFT_MS, "tpot_ms": _SLO_TPOT_MS},
        "versions": {name: _version(name) for name in _LIBRARIES},
        "machine": {str(threads): msgspec.structs.asdict(one) for threads, one in machines.items()},
        "ratios": ratios(rows),
        "rows": [msgspec.structs.asdict(row) for row in rows],
    }


class _Place(Struct, frozen=True):
    model: str
    folder: Path
    threads: int
    shape: Shape
    machine: Machine
    weights: str


def _change(plan: Plan, folder: Path, weights: str) -> float | None:
    if weights == "float32" or OURS not in plan.peers:
        return None
    from engine.quant.quality import change_from_float32

    return change_from_float32(str(folder), "bfloat16", "none" if weights == "bfloat16" else weights)


def _rows(plan: Plan, place: _Place, name: str) -> Iterator[Row]:
    vocabulary = checkpoint.SIZES[place.model]["vocabulary"]
    asked = [workloads.make(name, vocabulary, at, long_prompt=plan.long_prompt) for at in range(plan.repeats)]
    reference: list[Trial] | None = None
    peers = plan.peers if place.weights == "float32" else [peer for peer in plan.peers if peer in _REDUCING]
    for peer in sorted(peers, key=lambda peer: peer != REFERENCE):
        row = Row(model=place.model, workload=name, threads=place.threads, peer=peer, weights=place.weights)
        try:
            trials = [_trial(peer, place, workload) for workload in asked]
        except _Failed as error:
            row.note = str(error)
            yield row
            continue
        if peer == REFERENCE:
            reference = trials
        yield _fill(row, asked, trials, reference, place)


class _Failed(Exception):
    """A trial that did not end with a result. The message is what it said last."""


def _trial(peer: str, place: _Place, workload: workloads.Workload) -> Trial:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(msgspec.json.encode(workload))
        file.flush()
        threads = str(place.threads)
        command = [sys.executable, "-m", "engine.bench.trial", peer, str(place.folder), threads, file.name]
        command.append(place.weights)
        # The reference asks for one thread per process here: what else runs in it must not take more than it was given.
        environment = [
            "env",
            f"OMP_NUM_THREADS={threads}",
            f"MKL_NUM_THREADS={threads}",
            "TOKENIZERS_PARALLELISM=false",
        ]
        try:
            done = subprocess.run(  # noqa: S603  (a command of our own making)
                [*environment, *command], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise _Failed(f"took more than {_PATIENCE_S} s") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise _Failed(last[:200])
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Trial)


def _fill(
    row: Row, asked: list[workloads.Workload], trials: list[Trial], reference: list[Trial] | None, place: _Place
) -> Row:
    rates, least = [], []
    for workload, trial in zip(asked, trials, strict=True):
        seconds = max(trace.came[-1] for trace in trial.traces) - min(trace.sent for trace in trial.traces)
        rates.append(sum(workload.outputs) / seconds)
        least.append(_least_seconds(workload, place) / seconds)
    traces = [trace for trial in trials for trace in trial.traces]
    first = [1000 * (trace.came[0] - trace.sent) for trace in traces]
    each = [1000 * (trace.came[-1] - trace.came[0]) / max(len(trace.came) - 1, 1) for trace in traces]
    gaps = [1000 * (two - one) for trace in traces for one, two in pairwise(trace.came)]
    row.requests = len(traces)
    row.tokens_per_s = round(statistics.median(rates), 1)
    row.spread = round((max(rates) - min(rates)) / statistics.median(rates), 3)
    row.ttft_p50, row.ttft_max = round(statistics.median(first), 2), round(max(first), 2)
    row.tpot_p50, row.largest_gap = round(statistics.median(each), 3), round(max(gaps, default=0.0), 2)
    good = [one <= _SLO_TTFT_MS and two <= _SLO_TPOT_MS for one, two in zip(first, each, strict=True)]
    row.goodput = round(sum(good) / len(good), 3)
    row.roofline = round(statistics.median(least), 4)
    if asked[0].late:
        row.gap_ratio = round(statistics.median(map(_gap_ratio, asked, trials)), 2)
    _compare(row, trials, reference)
    return row


def _compare(row: Row, trials: list[Trial], reference: list[Trial] | None) -> None:
    if row.weights != "float32":
        row.note = "not compared: other weights than the reference's"
        return
    if reference is None:
        row.note = "not compared: the reference did not run"
        return
    for mine, theirs in zip(trials, reference, strict=True):
        row.equal += sum(one.tokens == two.tokens for one, two in zip(mine.traces, theirs.traces, strict=True))
    if row.equal < row.requests:
        row.note = "tokens differ from the reference's: a speed of something else"


def _gap_ratio(workload: workloads.Workload, trial: Trial) -> float:
    early, late = trial.traces[: -workload.late], trial.traces[-workload.late :]
    came = min(trace.sent for trace in late)
    ended = max(trace.came[0] for trace in late)
    pairs = [pair for trace in early for pair in pairwise(trace.came)]
    before = [two - one for one, two in pairs if two <= came]
    during = [two - one for one, two in pairs if two > came and one < ended]
    return max(during, default=0.0) / statistics.median(before)


def _least_seconds(workload: workloads.Workload, place: _Place) -> float:
    """Every prompt token computed once (a reused prefix not at all), every step as full as it can be."""
    reused = 0
    if workload.first:
        reused = sum(one == two for one, two in zip(workload.first, workload.prompts[0], strict=False))
    read = sum(len(prompt) - reused for prompt in workload.prompts)
    batch = 1 if workload.one_by_one else len(workload.prompts)
    context = int(
        statistics.mean(len(prompt) + out / 2 for prompt, out in zip(workload.prompts, workload.outputs, strict=True))
    )
    writing = sum(workload.outputs) / place.shape.decode(place.machine, batch, context)
    return read / place.shape.prefill(place.machine) + writing


def _machine(threads: int) -> Machine:
    import torch

    torch.set_num_threads(threads)
    return measure(monotonic=time.perf_counter)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def ratios(rows: list[Row]) -> dict[str, float]:
    """Our rate over each peer's, in float32 where all tokens are equal; and our own gap ratios."""
    found: dict[str, float] = {}
    told = {(row.model, row.workload, row.threads, row.weights, row.peer): row for row in rows if row.requests}
    for (model, name, threads, weights, peer), row in told.items():
        ours = told.get((model, name, threads, weights, OURS))
        label = f"{model}/{name}/{threads}" + ("" if weights == "float32" else f"/{weights}")
        if peer == OURS:
            if row.gap_ratio is not None:
                found[f"{label}/gap"] = row.gap_ratio
        elif ours is not None and row.tokens_per_s and (weights != "float32" or _right(ours, row)):
            found[f"{label}/{peer}"] = round(ours.tokens_per_s / row.tokens_per_s, 2)
    return found


def _right(*rows: Row) -> bool:
    return all(row.equal == row.requests for row in rows)


HEAD = (
    "| model | weights | workload | threads | engine | tokens/s | ± | TTFT p50 | TTFT max | TPOT p50 | largest gap "
    "| gap ratio | goodput | roofline | tokens equal | perplexity |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def line(row: Row) -> str:
    """One row of the table."""
    place = f"| {row.model} | {row.weights} | {row.workload} | {row.threads} | {row.peer} |"
    if not row.requests:
        return f"{place} {row.note} |" + " |" * 10
    equal = f"{row.equal}/{row.requests}" if row.weights == "float32" else ""
    change = "" if row.perplexity is None else f"{row.perplexity:+.3f} %"
    ratio = "" if row.gap_ratio is None else f"{row.gap_ratio:.2f}"
    return (
        f"{place} {row.tokens_per_s:.0f} | {row.spread:.0%} | {row.ttft_p50:.1f} ms | {row.ttft_max:.1f} ms "
        f"| {row.tpot_p50:.2f} ms | {row.largest_gap:.1f} ms | {ratio} | {row.goodput:.0%} | {row.roofline:.1%} "
        f"| {equal} | {change} |"
    )


def save(result: dict[str, Any], folder: Path) -> Path:
    """`engine-DATE.json` and the same as a table, `engine-DATE.md`. Returns the latter."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"engine-{result['date']}"
    (folder / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    rows = [line(msgspec.convert(row, Row)) for row in result["rows"]]
    machine = ", ".join(
        f"{threads} threads: reads {one['read'] / 1e9:.1f} GB/s, {one['flops'] / 1e9:.0f} GFLOP/s"
        for threads, one in result["machine"].items()
    )
    slo = result["slo"]
    told = [
        f"# Engines side by side, {result['date']}",
        "",
        f"Greedy, the same token ids; {result['repeats']} repeats, medians;",
        f"{result['processors']} processors, load {result['load_average_before']} before; {machine}.",
        f"Goodput: TTFT ≤ {slo['ttft_ms']:g} ms and TPOT ≤ {slo['tpot_ms']:g} ms.",
        f"Versions: {', '.join(f'{name} {one}' for name, one in result['versions'].items())}.",
        "",
    ]
    table = folder / f"{name}.md"
    table.write_text("\n".join([*told, HEAD, *rows]) + "\n", "utf-8")
    return table
