"""`make bench-cache`: every labelled stream and pair file under every budget, kept as one dated JSON file.

Knows: which runs belong to the figures, and that a stream is scored with a prior that never saw its source. Does not
know: how anything is decided (`cache.bench`), what the figures should be.
"""

import argparse
import datetime as dt
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from cache import priors, weights
from cache.bench.data import Unreadable
from cache.bench.run import Setting, best_fixed, run_pairs, run_stream
from cache.training.__main__ import STREAMS
from gateway.bench.cache import BASELINES
from policies.reuse import Budget

BUDGETS = (0.005, 0.01, 0.02, 0.05)
FLIPS = (0.05, 0.10)
LARGEST = {"qqp_stream": 12_000}
_PER_HIT = 0.05
_ONE = Budget(max_error_rate=0.01, max_wrong_hit_rate=_PER_HIT)
Told = dict[str, Any]


def name_of(path: Path) -> str:
    return path.name.partition(".")[0]


def settings(path: Path, base: Setting, orders: int) -> Iterator[Setting]:
    """Table A: each budget per request alone. Table B: both budgets at 1 %, also under a judge who errs."""
    placed = replace(base, limit=base.limit or LARGEST.get(name_of(path)))
    for seed in range(orders):
        for rate in BUDGETS:
            yield replace(placed, seed=seed, budget=Budget(max_error_rate=rate, max_wrong_hit_rate=1.0))
        yield replace(placed, seed=seed, budget=_ONE)
        for flip in FLIPS:
            yield replace(placed, seed=seed, budget=_ONE, flip=flip)


def scored(path: Path, base: Setting, orders: int, apart: Path | None) -> Iterator[Told]:
    """Rows of one stream: ours, what ships labelled `seen` where it was trained on this source, and the others."""
    unseen = None if apart is None else apart / f"minilm-without-{name_of(path)}.json"
    for one in settings(path, base, orders):
        if unseen is not None and unseen.is_file():
            yield {**run_stream(path, replace(one, artefact=unseen)), "seen": False}
        yield {**run_stream(path, one), "seen": name_of(path) in STREAMS}
        if one.flip == 0.0 and one.budget.max_error_rate == _ONE.max_error_rate:
            for other in BASELINES:
                yield {**run_stream(path, replace(one, policy=other)), "seen": False}
            best = best_fixed(path, one)
            yield {"stream": path.name, "policy": "hindsight-best", "budget": one.told()["budget"], **best}


def suite(data: Path, base: Setting, orders: int, apart: Path | None) -> Told:
    """Every file below `data`. Raises Unreadable, priors.Unfit or weights.Unusable."""
    rows: list[Told] = []
    for path in sorted((data / "streams").glob("*.tsv*")):
        print(f"{path.name} …", file=sys.stderr, flush=True)  # noqa: T201 - hours may pass: say where it is
        rows += scored(path, base, orders, apart)
    pairs = [run_pairs(path, base) for path in sorted((data / "pairs").glob("*.tsv*"))]
    if not rows and not pairs:
        raise Unreadable(f"{data}: neither streams/*.tsv.gz nor pairs/*.tsv.gz")
    date = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")  # noqa: TID251 - dates the result
    return {"date": date, "orders": orders, "streams": rows, "pairs": pairs}


def main() -> int:
    """Exit code 1, with the reason, when the data or a prior cannot be used."""
    parser = argparse.ArgumentParser(prog="make bench-cache", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with streams/ and pairs/ (NEARHIT_BENCH_DATA)")
    parser.add_argument("--save", type=Path, default=Path("docs/benchmarks"))
    parser.add_argument("--orders", type=int, default=5, help="how many orders of each stream")
    parser.add_argument("--limit", type=int, default=None, help="read no more rows of each file")
    parser.add_argument("--apart", type=Path, help="folder of `python -m cache.training --leave-one-out`")
    parser.add_argument("--cache", type=Path, default=None, help="folder that keeps embeddings between runs")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        base = Setting(budget=_ONE, folder=given.cache or Path(scratch), limit=given.limit)
        try:
            result = suite(given.data, base, given.orders, given.apart)
        except (Unreadable, LookupError, priors.Unfit, weights.Unusable) as error:
            print(f"bench-cache: {error}", file=sys.stderr)  # noqa: T201 - the reason, for a person
            return 1
    given.save.mkdir(parents=True, exist_ok=True)
    at = given.save / f"cache-{result['date'][:10]}.json"
    at.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    sys.stdout.write(f"{msgspec.json.encode({'saved': str(at), 'runs': len(result['streams'])}).decode()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
