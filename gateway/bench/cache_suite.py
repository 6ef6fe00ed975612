"""`make bench-cache`: every labelled stream and pair file under every budget, kept as one dated JSON file.

Knows: which runs belong to the figures, in the order of their worth, and that a stream is scored with a prior that
never saw its source. The file is written anew after each order of each stream, so that an interrupted run keeps what it
has. Does not know: how anything is decided (`cache.bench`), what the figures should be.
"""

import argparse
import datetime as dt
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from cache import priors, weights
from cache.bench.arms import ARMS, run_arm
from cache.bench.data import Unreadable
from cache.bench.memo import remembered
from cache.bench.minds import hindsight, sweep
from cache.bench.run import Prepared, Setting, prepare, run_pairs, run_prepared
from cache.training.__main__ import STREAMS
from gateway.bench.cache import BASELINES
from policies.reuse import Budget, learned

# The one that aims are set for, and the others; the smallest and the largest only bend the curve.
BUDGET = 0.01
BUDGETS = (0.005, 0.02, 0.05)
CURVE = (0.001, 0.0025, 0.1)
FLIPS = (0.05, 0.10)
PARTS = ("main", "budgets", "fixed", "judge", "baselines", "curve", "shipped", "arms", "pairs")
LARGEST = {"qqp_stream": 12_000}
_PER_HIT = 0.05
_BOTH = Budget(max_error_rate=BUDGET, max_wrong_hit_rate=_PER_HIT)
# Runs that only bend a curve, or say what ships does on data it has seen, need fewer orders.
_FEWER = {"curve": 3, "shipped": 1}
_LEFT_OUT = ("over_time",)
Told = dict[str, Any]


class Wanted(Struct, frozen=True, kw_only=True):
    """`orders` of each stream; `apart`: folder of priors without each source; `streams`: only these, if any."""

    orders: int = 5
    apart: Path | None = None
    parts: Sequence[str] = PARTS
    streams: Sequence[str] = ()


def name_of(path: Path | str) -> str:
    return Path(path).name.partition(".")[0]


def alone(rate: float) -> Budget:
    return Budget(max_error_rate=rate, max_wrong_hit_rate=1.0)


def settings(part: str, base: Setting) -> Iterator[Setting]:
    """Table A is each budget per request alone, table B both budgets at 1 %; the judge who errs is under both."""
    if part in {"main", "shipped"}:
        yield replace(base, budget=alone(BUDGET))
        yield replace(base, budget=_BOTH)
    if part in {"budgets", "curve"}:
        for rate in BUDGETS if part == "budgets" else CURVE:
            yield replace(base, budget=alone(rate))
    if part == "judge":
        for flip in FLIPS:
            for budget in (alone(BUDGET), _BOTH):
                yield replace(base, budget=budget, flip=flip)


def unseen(name: str, apart: Path | None) -> Path | None:
    """The prior that never saw the source of this stream; None where what ships never did."""
    return apart / f"minilm-without-{name}.json" if apart is not None and name in STREAMS else None


def _armed(name: str, stream: Path | None, base: Setting, apart: Path | None) -> Told:
    artefact = unseen(name_of(stream), apart) if stream else None
    return run_arm(name, stream, replace(base, artefact=artefact)).told()


def runs(part: str, made: Prepared, base: Setting, apart: Path | None) -> Iterator[Told]:
    """The rows of one order. Ours uses the prior that never saw this source, but for the part `shipped`."""
    name = name_of(made.name)
    without = unseen(name, apart)
    if part == "fixed":
        yield from _fixed(made)
        return
    if part == "baselines":
        for other in BASELINES:  # others know one budget at most, so one run each
            yield {**run_prepared(made, replace(base, policy=other, budget=alone(BUDGET))), "seen": False}
        return
    if part == "shipped" and name not in STREAMS:
        return
    for one in settings(part, base):
        seen = name in STREAMS and (without is None or part == "shipped")
        yield {**run_prepared(made, replace(one, artefact=None if seen else without)), "seen": seen}


def _fixed(made: Prepared) -> Iterator[Told]:
    """The whole curve of a fixed threshold, and the best of it under each budget."""
    swept = sweep(made.rows, made.vectors, made.table)
    head = {"stream": made.name, "seed": made.seed, "flip": 0.0, "seen": False, "requests": len(made.rows)}
    for one in swept:
        yield {**head, "policy": "threshold", "similarity": one.similarity, "hits": one.hits, "wrong": one.wrong}
    for budget in (alone(BUDGET), _BOTH):
        best = hindsight(len(made.rows), swept, budget)
        limits = {"budget": budget.max_error_rate, "max_wrong_hit_rate": budget.max_wrong_hit_rate}
        yield {**head, "policy": "hindsight-best", **limits, **best}


def suite(data: Path, base: Setting, wanted: Wanted) -> Iterator[Told]:
    """The result so far, after each order of each stream. Raises Unreadable, priors.Unfit or weights.Unusable."""
    paths = [path for path in sorted((data / "streams").glob("*.tsv*")) if _is_wanted(path, wanted)]
    pairs = sorted((data / "pairs").glob("*.tsv*"))
    if not paths and not pairs:
        raise Unreadable(f"{data}: neither streams/*.tsv.gz nor pairs/*.tsv.gz")
    result: Told = {"orders": wanted.orders, "machine": _machine(), "streams": [], "arms": [], "pairs": []}
    for part in wanted.parts:
        for path in paths if part not in {"arms", "pairs"} else ():
            with remembered():
                for seed in range(min(wanted.orders, _FEWER.get(part, wanted.orders))):
                    _say(f"{part} {path.name} {seed}")
                    placed = replace(base, seed=seed, limit=base.limit or LARGEST.get(name_of(path)))
                    rows = runs(part, prepare(path, placed, often=True), placed, wanted.apart)
                    result["streams"] += [{"part": part} | _short(row) for row in rows]
                    yield result
    for name in ARMS if "arms" in wanted.parts else ():
        for stream in (None, *paths):
            _say(f"arm {name} {stream.name if stream else 'own'}")
            result["arms"] += [_armed(name, stream, base, wanted.apart)]
            yield result
    if "pairs" in wanted.parts:
        for path in pairs:
            _say(f"pairs {path.name}")
            result["pairs"] += [run_pairs(path, base)]
            yield result


def _is_wanted(path: Path, wanted: Wanted) -> bool:
    return not wanted.streams or name_of(path) in wanted.streams


def _short(row: Told) -> Told:
    return {name: value for name, value in row.items() if name not in _LEFT_OUT}


def _machine() -> Told:
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "model": weights.BUNDLED,
        "learned": learned.VERSION,
    }


def _say(line: str) -> None:
    print(f"{dt.datetime.now(dt.UTC):%H:%M:%S} {line}", file=sys.stderr, flush=True)  # noqa: T201, TID251 - hours may pass: say where it is


def write(result: Told, path: Path) -> None:
    """One run per line, so that a new run's file can be compared with the one before."""
    encode = msgspec.json.Encoder().encode
    parts: list[bytes] = []
    for name, value in result.items():
        lines = b",\n".join(encode(one) for one in cast("list[Told]", value)) if isinstance(value, list) else b""
        parts.append(encode(name) + b": " + (b"[\n" + lines + b"\n]" if lines else encode(value)))
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".part")
    fresh.write_bytes(b"{\n" + b",\n".join(parts) + b"\n}\n")
    fresh.replace(path)


def _given() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-cache", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with streams/ and pairs/ (NEARHIT_BENCH_DATA)")
    parser.add_argument("--save", type=Path, default=Path("docs/benchmarks"))
    parser.add_argument("--orders", type=int, default=5, help="how many orders of each stream")
    parser.add_argument("--limit", type=int, default=None, help="read no more rows of each file")
    parser.add_argument("--apart", type=Path, help="folder of `python -m cache.training --leave-one-out`")
    parser.add_argument("--cache", type=Path, default=None, help="folder that keeps embeddings between runs")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="default: all, in this order")
    parser.add_argument("--streams", nargs="+", default=(), help="names without .tsv.gz; default: all")
    return parser.parse_args()


def main() -> int:
    """Exit code 1, with the reason, when the data or a prior cannot be used."""
    given = _given()
    wanted = Wanted(orders=given.orders, apart=given.apart, parts=given.parts, streams=given.streams)
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")  # noqa: TID251 - dates the result
    at: Path = given.save / f"cache-{now[:10]}.json"
    count = 0
    with tempfile.TemporaryDirectory() as scratch:
        base = Setting(budget=_BOTH, folder=given.cache or Path(scratch), limit=given.limit)
        try:
            for result in suite(given.data, base, wanted):
                write({"date": now, **result}, at)
                count = len(result["streams"])
        except (Unreadable, LookupError, priors.Unfit, weights.Unusable) as error:
            print(f"bench-cache: {error}", file=sys.stderr)  # noqa: T201 - the reason, for a person
            return 1
    sys.stdout.write(f"{msgspec.json.encode({'saved': str(at), 'runs': count}).decode()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
