"""Runs stages one after the other, each in its own process, within one budget of seconds.

Knows: processes, clocks, which stages make a run and how long each may take. Does not know: what a stage does.

The limits of a run add up to no more than its budget, so no stage can take another's time; what one does not use is
left to those after it. The stages of a run are in the order of their worth: a run that is cut short loses its end.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from engine.device_bench.rows import Rows

BUDGET_S = 550.0  # of the ten minutes of a call: packages are unpacked before, the page is written after
_LEAST_S = 8.0  # importing torch and starting a GPU takes most of this


class Stage(Struct, frozen=True):
    """`seconds`: what is set aside for it. What is not used is left to those after it."""

    name: str
    seconds: float


RIGHT = (
    Stage("compiled ahead", 35), Stage("kernels against float64", 45), Stage("logits", 80),
    Stage("graphs against eager", 35), Stage("determinism", 40), Stage("compute-sanitizer", 75),
    Stage("kernel bandwidth", 60), Stage("quantized quality", 30), Stage("quantized speed", 65), Stage("guesses", 25),
    Stage("profile", 25), Stage("host share", 15), Stage("one row", 20),
)  # fmt: skip
FAST = (
    Stage("compiled ahead", 35), Stage("batch 1", 75), Stage("nano mix", 85), Stage("first token", 20),
    Stage("serving", 85), Stage("ready", 35), Stage("peer: transformers", 70), Stage("peer: whole compile", 65),
    Stage("peer: transformers batching", 30), Stage("peer: mini-sglang", 50),
)  # fmt: skip
RUNS = {"right": RIGHT, "fast": FAST}


def dry_run() -> tuple[Stage, ...]:
    """Every stage once, with time enough for a slow processor."""
    names = dict.fromkeys(stage.name for stage in RIGHT + FAST)
    return tuple(Stage(name, 120) for name in names)


def run_all(
    stages: Sequence[Stage], rows: Path, budget: float, options: Sequence[str], done: Callable[[], object]
) -> list[str]:
    """Run all within `budget` seconds and call `done` after each; names of those that failed or were left out."""
    began = time.monotonic()
    kept = 0.0  # seconds set aside for the stages so far: this one may run until then
    failed: list[str] = []
    for stage in stages:
        kept += stage.seconds
        at = time.monotonic()
        left = min(kept, budget) - (at - began)
        told = Rows(rows, stage.name)
        if left < _LEAST_S:
            told.add("left out", reason="no time was left")
            fault = "left out"
        else:
            fault = _run(stage.name, rows, left, options)
            told.add("stage", seconds=round(time.monotonic() - at, 1), fault=fault)
        sys.stdout.write(f"{stage.name}: {fault or 'done'} after {time.monotonic() - at:.1f} s\n")
        sys.stdout.flush()
        failed += [stage.name] if fault is not None else []
        done()
    return failed


def _run(name: str, rows: Path, seconds: float, options: Sequence[str]) -> str | None:
    """Why it failed, None when it did not. Its output goes to `rows` with the ending .log."""
    command = [sys.executable, "-m", "engine.device_bench", "stage", name, "--rows", str(rows)]
    command += ["--seconds", f"{seconds:.0f}", *options]
    log = rows.with_suffix(".log")
    with log.open("ab") as file:
        file.write(f"\n=== {name}\n".encode())
        file.flush()
        from_here = file.tell()
        # A group of its own, that its compilers and engines end with it; the same session, that all end with this one.
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, process_group=0)  # noqa: S603  (ours)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"stopped after its {seconds:.0f} s: {_last_line(log, from_here)}"
        finally:
            end_group(process)
    return None if code == 0 else f"exit code {code}: {_last_line(log, from_here)}"


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """Whatever of it is left."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_line(log: Path, start: int) -> str:
    """The last line with an error's name, else the last one."""
    lines = [line for line in log.read_bytes()[start:].decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line.split(":")[0] or line.startswith(("Killed", "Segmentation"))]
    return (errors or lines or ["no output"])[-1][:300]
