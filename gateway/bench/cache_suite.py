"""`make bench-cache`: every labelled stream and pair file under every budget, kept as a dated JSON file and as tables.

Knows: which runs belong to the figures, and that a stream is scored with a prior that never saw its source. Each order
of a stream is read, embedded and searched once for all of its runs. What matters most is run first, and the file is
written anew after each order, so that an interrupted run keeps what it has. Does not know: how anything is decided
(`cache.bench`), what figures should be.
"""

import argparse
import datetime as dt
import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from cache import priors, weights
from cache.bench.arms import ARMS, run_arm
from cache.bench.data import Unreadable
from cache.bench.figures import Counts, counted
from cache.bench.memo import remembered
from cache.bench.minds import hindsight, sweep
from cache.bench.run import Prepared, Setting, prepare, run_pairs, run_prepared, told
from cache.training.__main__ import STREAMS
from gateway.bench import cache_table
from gateway.bench.cache import BASELINES
from gateway.bench.cache_orders import Orders
from policies.reuse import Budget, learned

# The one that aims are set for, and the others; the smallest and the largest only bend the curve.
BUDGET = 0.01
BUDGETS = (0.005, 0.02, 0.05)
CURVE = (0.001, 0.0025, 0.1)
FLIPS = (0.05, 0.10)
# What others do: fixed thresholds know no budget, the published method knows one, the prototype both.
LEARNERS = ("verified", "pooled")
PASSES = (("main",), ("baselines", "fixed"), ("budgets",), ("judge", "shipped", "curve"))
PARTS = (*(part for parts in PASSES for part in parts), "arms", "pairs")
LARGEST = {"qqp_stream": 12_000}
_PER_HIT = 0.05
# Runs that only bend a curve, or say what ships does on data it has seen, need fewer orders.
_FEWER = {"curve": 3, "shipped": 1}
_LEFT_OUT = ("over_time",)
Told = dict[str, Any]


class Wanted(Struct, frozen=True, kw_only=True):
    """`orders` of each stream, `fewer` of some parts; `apart`: folder of priors without each source; `streams`: only
    these, if any."""

    orders: int = 5
    fewer: Mapping[str, int] = {}
    apart: Path | None = None
    parts: Sequence[str] = PARTS
    streams: Sequence[str] = ()

    def orders_of(self, part: str) -> int:
        return min(self.orders, {**_FEWER, **self.fewer}.get(part, self.orders))


def name_of(path: Path | str) -> str:
    return Path(path).name.partition(".")[0]


def alone(rate: float) -> Budget:
    """Table A: wrong per request, nothing else."""
    return Budget(max_error_rate=rate, max_wrong_hit_rate=1.0)


def both(rate: float) -> Budget:
    """Table B: wrong per hit as well."""
    return Budget(max_error_rate=rate, max_wrong_hit_rate=_PER_HIT)


def settings(part: str, base: Setting) -> Iterator[Setting]:
    """What ours is run with, and for baselines what others are."""
    if part in {"main", "shipped"}:
        yield from (replace(base, budget=budget(BUDGET)) for budget in (alone, both))
    if part == "budgets":
        yield from (replace(base, budget=budget(rate)) for rate in BUDGETS for budget in (alone, both))
    if part == "curve":
        yield from (replace(base, budget=alone(rate)) for rate in CURVE)
    if part == "judge":
        for flip in FLIPS:
            yield from (replace(base, budget=budget(BUDGET), flip=flip) for budget in (alone, both))
            yield from (replace(base, policy=other, budget=alone(BUDGET), flip=flip) for other in LEARNERS)
    if part == "baselines":
        yield from (replace(base, policy=other, budget=both(BUDGET)) for other in BASELINES if other not in LEARNERS)
        yield from (replace(base, policy="verified", budget=both(rate)) for rate in (BUDGET, *BUDGETS))
        yield from (replace(base, policy="pooled", budget=alone(rate)) for rate in (BUDGET, *BUDGETS))
        yield replace(base, policy="pooled", budget=both(BUDGET))


def unseen(name: str, apart: Path | None) -> Path | None:
    """The prior that never saw the source of this stream; None where what ships never did."""
    return apart / f"minilm-without-{name}.json" if apart is not None and name in STREAMS else None


def _armed(name: str, stream: Path | None, base: Setting, apart: Path | None) -> Told:
    artefact = unseen(name_of(stream), apart) if stream else None
    return run_arm(name, stream, replace(base, artefact=artefact)).told()


def runs(part: str, made: Prepared, base: Setting, apart: Path | None) -> Iterator[tuple[Told, Counts | None]]:
    """The rows of one order. Ours uses the prior that never saw this source, but for the part `shipped`."""
    name = name_of(made.name)
    without = unseen(name, apart)
    if part == "fixed":
        yield from _fixed(made, base)
    if part == "shipped" and name not in STREAMS:
        return
    for one in settings(part, base):
        ours = one.policy == "learned"
        seen = ours and name in STREAMS and (without is None or part == "shipped")
        placed = replace(one, artefact=without if ours and not seen else None)
        steps = run_prepared(made, placed)
        yield {"part": part, **told(made, placed, steps), "seen": seen}, counted(made.rows, steps)


def _fixed(made: Prepared, base: Setting) -> Iterator[tuple[Told, Counts | None]]:
    """The best fixed threshold under each budget in hindsight; of the first order the whole curve, for the picture."""
    swept = sweep(made.rows, made.vectors, made.table)
    for budget in (limits(rate) for rate in (BUDGET, *BUDGETS) for limits in (alone, both)):
        best = hindsight(swept, budget)
        run = told(made, replace(base, policy="hindsight-best", budget=budget), best.steps)
        yield {"part": "fixed", **run, "seen": False, "similarity": best.similarity}, counted(made.rows, best.steps)
    head = {"part": "fixed", "stream": made.name, "seed": made.seed, "flip": 0.0, "seen": False, "policy": "threshold"}
    for one in swept if made.seed == 0 else ():
        counts = {"requests": len(one.steps), "hits": one.hits, "wrong": one.wrong}
        yield {**head, "similarity": one.similarity, **counts}, None


def suite(data: Path, base: Setting, wanted: Wanted) -> Iterator[Told]:
    """The result so far, after each order of each stream. Raises Unreadable, priors.Unfit or weights.Unusable."""
    paths = [path for path in sorted((data / "streams").glob("*.tsv*")) if _is_wanted(path, wanted)]
    pairs = sorted((data / "pairs").glob("*.tsv*"))
    if not paths and not pairs:
        raise Unreadable(f"{data}: neither streams/*.tsv.gz nor pairs/*.tsv.gz")
    result: Told = {
        "orders": wanted.orders,
        "machine": _machine(),
        "summary": [],
        "streams": [],
        "arms": [],
        "pairs": [],
    }
    together, made = Orders(), _Prepared()
    with remembered():
        for path, plan in _plan(paths, wanted):
            for seed, part in plan:
                _say(f"{part} {path.name} order {seed}")
                placed = replace(base, seed=seed, limit=base.limit or LARGEST.get(name_of(path)))
                for row, counts in runs(part, made.of(path, placed), placed, wanted.apart):
                    result["streams"].append({name: value for name, value in row.items() if name not in _LEFT_OUT})
                    if counts is not None:
                        together.add(row, counts)
                yield result
            result["summary"] = together.told()
            yield result
    for name in ARMS if "arms" in wanted.parts else ():
        for stream in (None, *paths):
            _say(f"arm {name} {stream.name if stream else 'own'}")
            result["arms"] += [_armed(name, stream, base, wanted.apart)]
            yield result
    for path in pairs if "pairs" in wanted.parts else ():
        _say(f"pairs {path.name}")
        result["pairs"] += [run_pairs(path, base)]
        yield result


def _plan(paths: Sequence[Path], wanted: Wanted) -> Iterator[tuple[Path, list[tuple[int, str]]]]:
    """In each pass, all of its parts in every order of one stream after the other."""
    for parts in PASSES:
        for path in paths:
            every = ((seed, part) for seed in range(wanted.orders) for part in parts if part in wanted.parts)
            yield path, [(seed, part) for seed, part in every if seed < wanted.orders_of(part)]


class _Prepared:
    """Each order is prepared once: 40 MB for 13,000 requests."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int], Prepared] = {}

    def of(self, path: Path, setting: Setting) -> Prepared:
        name = (path.name, setting.seed)
        if name not in self._made:
            self._made[name] = prepare(path, setting, often=True)
        return self._made[name]


def _is_wanted(path: Path, wanted: Wanted) -> bool:
    return not wanted.streams or name_of(path) in wanted.streams


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
    parser.add_argument(
        "--fewer", nargs="+", type=_fewer, default=(), metavar="PART=ORDERS", help="fewer orders of these parts"
    )
    parser.add_argument("--limit", type=int, default=None, help="read no more rows of each file")
    parser.add_argument("--apart", type=Path, help="folder of `python -m cache.training --leave-one-out`")
    parser.add_argument("--cache", type=Path, default=None, help="folder that keeps embeddings between runs")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    parser.add_argument("--streams", nargs="+", default=(), help="names without .tsv.gz; default: all")
    return parser.parse_args()


def _fewer(given: str) -> tuple[str, int]:
    part, _, count = given.partition("=")
    if part not in PARTS or not count.isdigit():
        raise argparse.ArgumentTypeError(f"{given}: PART=ORDERS, PART one of {', '.join(PARTS)}")
    return part, int(count)


def main() -> int:
    """Exit code 1, with the reason, when the data or a prior cannot be used."""
    given = _given()
    fewer = dict[str, int](given.fewer)
    wanted = Wanted(orders=given.orders, fewer=fewer, apart=given.apart, parts=given.parts, streams=given.streams)
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")  # noqa: TID251 - dates the result
    at: Path = given.save / f"cache-{now[:10]}.json"
    count = 0
    with tempfile.TemporaryDirectory() as scratch:
        base = Setting(budget=both(BUDGET), folder=given.cache or Path(scratch), limit=given.limit)
        try:
            for result in suite(given.data, base, wanted):
                write({"date": now, **result}, at)
                at.with_suffix(".md").write_text(f"# {at.stem}\n\n{cache_table.markdown(result)}", "utf-8")
                count = len(result["streams"])
        except (Unreadable, LookupError, priors.Unfit, weights.Unusable) as error:
            print(f"bench-cache: {error}", file=sys.stderr)  # noqa: T201 - the reason, for a person
            return 1
    sys.stdout.write(f"{msgspec.json.encode({'saved': str(at), 'runs': count}).decode()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
