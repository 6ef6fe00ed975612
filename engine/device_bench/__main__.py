"""`python -m engine.device_bench right|fast|dry --out FOLDER`, then `keep FOLDER`: see docs/benchmarks.md.

Knows: which stages make a run. Does not know: how they work, torch. What stages import is imported in their processes,
so that one broken package costs the stages that need it, with the reason in their rows, and no others.
"""

import argparse
import signal
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from engine.device_bench import page
from engine.device_bench.machine import environment
from engine.device_bench.rows import Rows, read
from engine.device_bench.stages import BUDGET_S, RUNS, Stage, dry_run, run_all

_PAGES = Path("docs/benchmarks")


def main() -> int:
    given = _arguments()
    if given.what == "stage":
        return _stage(given)
    if given.what == "first":
        from engine.device_bench import models, ready

        ready.first(models.TINY if given.tiny else models.Scale(), given.name)
        return 0
    if given.what == "keep":
        for path in page.keep(Path(given.name), _PAGES if given.out is None else given.out):
            sys.stdout.write(f"{path}\n")
        return 0
    return _run(given.what, given.out or Path("device-results"), given.seconds)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine.device_bench", description=__doc__)
    parser.add_argument("what", choices=(*RUNS, "dry", "keep", "stage", "first"))
    parser.add_argument("name", nargs="?", help="of a stage, or the folder to keep or to load a model from")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=Path, default=Path("rows.jsonl"), help="of a stage: the file they are added to")
    parser.add_argument("--seconds", type=float, default=BUDGET_S)
    parser.add_argument("--tiny", action="store_true")
    return parser.parse_args()


def _stage(given: argparse.Namespace) -> int:
    from engine.device_bench import models
    from engine.device_bench.catalog import STAGES

    rows = Rows(given.rows, given.name)
    scale = models.TINY if given.tiny else models.Scale()
    STAGES[given.name](scale, rows)
    return 0


def _run(what: str, out: Path, seconds: float) -> int:
    """All stages of a run; after each of them the page is written anew, so that whoever stops it finds one."""
    signal.signal(signal.SIGTERM, _stop)  # so that the stage under way ends with it
    out.mkdir(parents=True, exist_ok=True)
    rows = out / f"{what}.jsonl"
    command = f"python -m engine.device_bench {what} --seconds {seconds:.0f}"
    date = datetime.now(UTC).date().isoformat()  # noqa: TID251  (of a report)
    Rows(rows, "run").add("run", run=what, date=date, command=command, environment=environment())
    write = partial(page.write, rows, out)
    write()
    stages: tuple[Stage, ...] = dry_run() if what == "dry" else RUNS[what]
    options = ["--tiny"] if what == "dry" else []
    budget = sum(stage.seconds for stage in stages) if what == "dry" else seconds
    failed = run_all(stages, rows, budget, options, write)
    faults = [row for row in read(rows) if row.get("fault") or row.get("ok") is False]
    sys.stdout.write(write().read_text(encoding="utf-8")[-9000:])
    return 1 if failed or faults else 0


def _stop(_signal: int, _frame: object) -> None:
    sys.exit(143)


if __name__ == "__main__":
    sys.exit(main())
