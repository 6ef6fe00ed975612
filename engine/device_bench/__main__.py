"""`python -m engine.device_bench right|fast|dry --out FOLDER`: see docs/benchmarks.md.

Knows: which stages make a run and how long each may take. Does not know: how they work.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from engine.api import EngineError
from engine.device_bench import kernels, page, peers, ready, right, serving, speed
from engine.device_bench.models import TINY, Scale
from engine.device_bench.rows import Rows, read
from engine.device_bench.stages import Stage, run_all

_SMALL, _MIDDLE, _LARGE = "Qwen3-0.6B", "Llama-3.2-1B", "Qwen3-8B"

_Run = Callable[[Scale, Rows], None]


def _each(body: Callable[[Scale, Rows, str], None], *models: str) -> _Run:
    def run(scale: Scale, rows: Rows) -> None:
        for model in models:
            body(scale, rows, model)

    return run


def _sanitized(_: Scale, rows: Rows) -> None:
    """Every kernel on small shapes under compute-sanitizer: bad accesses, then races in shared memory."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        rows.add("compute-sanitizer", left_out="it is not on this machine")
        return
    for check in ("memcheck", "racecheck"):
        command = [tool, "--tool", check, "--error-exitcode", "9", sys.executable, "-m", "engine.device_bench", "sane"]
        # Every allocation of its own, so that a read beyond one is seen.
        environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # noqa: TID251  (of the child)
        told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603  (ours)
        summary = [line for line in told.stdout.splitlines() if "SUMMARY" in line][-1:]
        rows.add(f"compute-sanitizer {check}", ok=told.returncode == 0, summary=summary, exit_code=told.returncode)


def _alone(scale: Scale, rows: Rows) -> None:
    for model in (_SMALL, _MIDDLE, _LARGE):
        speed.batch_one(scale, rows, model)
    speed.batch_one(scale, rows, _SMALL, deterministic=True)


def _nano(scale: Scale, rows: Rows) -> None:
    speed.nano_mix(scale, rows, _SMALL)
    speed.nano_mix(scale, rows, _LARGE)
    speed.nano_mix(scale, rows, _SMALL, kv_dtype="fp8")


def _quantized(scale: Scale, rows: Rows) -> None:
    for quant in ("int8", "fp8", "int4"):
        try:
            speed.batch_one(scale, rows, _LARGE, quant=quant)
        except (RuntimeError, EngineError) as error:  # one kind that does not run must not hide the others
            rows.add(f"batch 1, {_LARGE}, weights {quant}", fault=str(error)[:300])


def _serving(scale: Scale, rows: Rows) -> None:
    serving.poisson(scale, rows, _SMALL, (10.0, 40.0, 100.0), scale.count(8000, 200) / 1000)
    serving.long_prompts(scale, rows, _SMALL)


STAGES: dict[str, _Run] = {
    "kernels against float64": kernels.against_float64,
    "logits": _each(right.against_transformers, _SMALL, _MIDDLE, _LARGE),
    "graphs against eager": right.graphs_against_eager,
    "determinism": right.in_any_company,
    "compute-sanitizer": _sanitized,
    "quantized quality": right.quantized_logits,
    "kernel bandwidth": kernels.bandwidth,
    "one row": kernels.vectors,
    "profile": _each(speed.profile, _SMALL),
    "host share": _each(speed.host_share, _SMALL),
    "ready": _each(ready.ready, _SMALL),
    "first token": _each(serving.first_token, _SMALL),
    "batch 1": _alone,
    "nano mix": _nano,
    "serving": _serving,
    "quantized speed": _quantized,
    "guesses": _each(speed.guesses, _SMALL),
    "peer: transformers": _each(peers.transformers_generate, _SMALL, _LARGE),
    "peer: whole compile": _each(peers.whole_compile, _SMALL, _LARGE),
    "peer: transformers batching": _each(peers.transformers_batching, _SMALL),
    "peer: mini-sglang": _each(peers.mini_sglang, _SMALL),
}
ON_GPU_ONLY = ("kernel bandwidth", "one row", "compute-sanitizer")

RIGHT = (
    Stage("kernels against float64", 80), Stage("logits", 120), Stage("graphs against eager", 60),
    Stage("determinism", 70), Stage("compute-sanitizer", 110), Stage("quantized quality", 60),
    Stage("kernel bandwidth", 90), Stage("one row", 25), Stage("profile", 40), Stage("host share", 30),
)  # fmt: skip
FAST = (
    Stage("batch 1", 75), Stage("nano mix", 100), Stage("first token", 30), Stage("serving", 90), Stage("ready", 60),
    Stage("guesses", 40), Stage("quantized speed", 60), Stage("peer: transformers", 120),
    Stage("peer: whole compile", 90), Stage("peer: mini-sglang", 120), Stage("peer: transformers batching", 60),
)  # fmt: skip
BUDGET_S = 545.0  # of ten minutes: packages are unpacked before, the page is written after


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.device_bench", description=__doc__)
    parser.add_argument("what", choices=("right", "fast", "dry", "stage", "first", "sane"))
    parser.add_argument("name", nargs="?", help="of a stage, or a model's folder")
    parser.add_argument("--out", type=Path, default=Path("device-results"))
    parser.add_argument("--seconds", type=float, default=BUDGET_S)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    scale = TINY if given.tiny else Scale()
    if given.what == "first":
        ready.first(scale, given.name)
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    if given.what == "sane":
        kernels.against_float64(Scale(tiny=True), Rows(given.out / "sane.jsonl", "sane"))
        return 0
    if given.what == "stage":
        STAGES[given.name](scale, Rows(given.out / "rows.jsonl", given.name))
        return 0
    dry = tuple(stage for stage in RIGHT + FAST if stage.name not in ON_GPU_ONLY)
    stages = {"right": RIGHT, "fast": FAST, "dry": dry}[given.what]
    options = ["--tiny"] if given.what == "dry" else []
    failed = run_all(stages, given.out, given.seconds, options)
    command = f"python -m engine.device_bench {given.what}"
    date = datetime.now(UTC).date().isoformat()  # noqa: TID251  (of a report)
    written = page.write(given.out, given.what, date, command, read(given.out / "rows.jsonl"))
    sys.stdout.write(written.read_text(encoding="utf-8")[-9000:])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
