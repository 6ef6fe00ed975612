"""Runs stages one after the other, each in its own process, within one budget of seconds.

Knows: processes, clocks. Does not know: what a stage does.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from engine.device_bench.rows import Rows

_LEAST_S = 8.0  # importing torch and starting a GPU takes most of this


class Stage(Struct, frozen=True):
    """`seconds`: the most it may take. What is not used is left to those after it."""

    name: str
    seconds: float


def run_all(stages: Sequence[Stage], out: Path, budget: float, options: Sequence[str]) -> list[str]:
    """Run all within `budget` seconds; names of those that failed or were left out. Rows go to `out`/rows.jsonl."""
    end = time.monotonic() + budget
    failed: list[str] = []
    for stage in stages:
        left = end - time.monotonic()
        rows = Rows(out / "rows.jsonl", stage.name)
        if left < _LEAST_S:
            rows.add("left out", reason="no time was left")
            failed.append(stage.name)
            continue
        began = time.monotonic()
        fault = _run(stage.name, out, min(stage.seconds, left), options)
        rows.add("stage", seconds=round(time.monotonic() - began, 1), fault=fault)
        sys.stdout.write(f"{stage.name}: {fault or 'done'} after {time.monotonic() - began:.1f} s\n")
        sys.stdout.flush()
        if fault is not None:
            failed.append(stage.name)
    return failed


def _run(name: str, out: Path, seconds: float, options: Sequence[str]) -> str | None:
    """Why it failed, None when it did not. Its output goes to `out`/log.txt."""
    command = [sys.executable, "-m", "engine.device_bench", "stage", name, "--out", str(out), *options]
    log = out / "log.txt"
    with log.open("ab") as file:
        file.write(f"\n=== {name}\n".encode())
        file.flush()
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)  # noqa: S603  (ours)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the compilers and engines it started
            process.wait()
            return f"stopped after its {seconds:.0f} s"
    return None if code == 0 else f"exit code {code}: {_last_line(log)}"


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"


Body = Callable[[Rows], None]
