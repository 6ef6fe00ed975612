"""`python -m cache.training --data FOLDER`: fit the prior of the reuse boundary and write it beside the code.

Reads from FOLDER only what shipped artefacts may be trained on: streams/banking77 and streams/hwu64_slots (both CC BY
4.0) and pairs/gptcache_mock (MIT); the rest is the project's own writing. The same seed gives the same file.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from cache import priors
from cache.bench.data import Pair, Unreadable, read_pairs, read_stream
from cache.bench.readings import Readings
from cache.bench.vectors import Embedder
from cache.training import reading
from cache.training.bounds import Held, bounded, halves, held
from cache.training.fit import Recipe, prior
from cache.training.frames import pairs
from cache.training.gather import Examples, from_pairs, from_stream
from policies.reuse.learned import Params
from policies.reuse.prior import Prior

STREAMS = {"banking77": "CC BY 4.0, PolyAI BANKING77", "hwu64_slots": "CC BY 4.0, NLU-Evaluation-Data (HWU64)"}
PAIRS = {"gptcache_mock": "MIT, zilliztech/GPTCache"}
OWN, GROUPS = "own_frames", "own_groups"
_CLOSE, _MOST_CLOSE = 0.8, 2_500


class Gathered(Struct, frozen=True):
    """Examples by source, and how many requests each stream had."""

    streams: dict[str, Examples]
    requests: dict[str, int]
    misses: dict[str, Examples]


def gather(folder: Path, embedder: Embedder, readings: Readings, seed: int) -> Gathered:
    params = Params()
    streams: dict[str, Examples] = {}
    requests: dict[str, int] = {}
    for name in STREAMS:
        rows = read_stream(folder / "streams" / f"{name}.tsv.gz", seed=seed).rows
        vectors = embedder.embed([row.text for row in rows])
        streams[name] = from_stream(
            rows, vectors, readings.read, floor=params.floor, compared=params.compared, seed=seed
        )
        requests[name] = len(rows)
    misses: dict[str, Examples] = {}
    written = {OWN: pairs("train"), GROUPS: _near(embedder, seed)} | {
        name: read_pairs(folder / "pairs" / f"{name}.tsv.gz") for name in PAIRS
    }
    for name, held_pairs in written.items():
        first, second = (embedder.embed([getattr(pair, side) for pair in held_pairs]) for side in ("a", "b"))
        misses[name] = from_pairs(held_pairs, (first, second), readings.read, seed=seed)
    return Gathered(streams, requests, misses)


def _near(embedder: Embedder, seed: int) -> list[Pair]:
    """Pairs of groups that the reader has not learned from, as near as what a cache is asked about."""
    drawn = random.Random(seed)  # noqa: S311 - which pairs
    every = [
        Pair(*texts, same, "group")
        for group in reading.groups(reading.UNSEEN)
        for pairs_of, same in zip(group.pairs(), (True, False), strict=True)
        for texts in pairs_of
    ]
    first, second = (embedder.embed([getattr(pair, side) for pair in every]) for side in ("a", "b"))
    close = [pair for pair, cosine in zip(every, (first * second).sum(axis=1), strict=True) if cosine >= _CLOSE]
    return drawn.sample(close, min(_MOST_CLOSE, len(close)))


def train(gathered: Gathered, *, without: str | None, made_with: tuple[str, str], seed: int) -> Prior:
    """The prior of all sources but `without`, with bounds from each half of the streams held out in turn.

    `made_with`: the encoder's digest, the reader's.
    """
    recipe = Recipe()
    streams = {name: group for name, group in gathered.streams.items() if name != without}
    misses = {name: group for name, group in gathered.misses.items() if name != without}
    folds = {name: halves(group) for name, group in streams.items()}
    tests: list[Held] = []
    for half in (0, 1):
        fitted = prior({name: parts[1 - half] for name, parts in folds.items()}, misses, recipe)
        tests += [held(fitted, parts[half], gathered.requests[name] // 2) for name, parts in folds.items()]
    found = bounded(prior(streams, misses, recipe), tests)
    encoder, reader = made_with
    return replace(found, encoder=encoder, reader=reader, about=_about(streams, misses, seed))


def _about(streams: Mapping[str, Examples], misses: Mapping[str, Examples], seed: int) -> dict[str, str]:
    licences = STREAMS | PAIRS | dict.fromkeys((OWN, GROUPS), "Apache-2.0, this project")
    used = [
        f"{name} ({licences[name]}, {len(group.same)} comparisons)" for name, group in {**streams, **misses}.items()
    ]
    return {
        "seed": str(seed),
        "data": "; ".join(used),
        "made_by": "python -m cache.training --data FOLDER",
        "bounds": "each half of each stream under a fit to the other halves, guards as vetoes, sources pooled",
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 written, 1 the data cannot be used (the message says why), 2 usage."""
    parser = argparse.ArgumentParser(prog="python -m cache.training", description="Fit the reuse boundary's prior.")
    parser.add_argument("--data", type=Path, required=True, help="folder with streams/ and pairs/")
    parser.add_argument("--out", type=Path, help="folder to write to; default: beside cache/priors")
    parser.add_argument("--leave-one-out", action="store_true", help="also one artefact without each stream")
    parser.add_argument("--cache", type=Path, help="folder that keeps embeddings")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    out: Path = options.out or Path(priors.__file__).parent
    with tempfile.TemporaryDirectory() as scratch:
        embedder = Embedder(options.cache or Path(scratch))
        readings = Readings(options.cache)
        try:
            gathered = gather(options.data, embedder, readings, options.seed)
        except Unreadable as error:
            sys.stderr.write(f"{error}\n")
            return 1
        readings.save()
        made_with = embedder.digest[:12], readings.digest
        wanted: list[str | None] = [None, *STREAMS] if options.leave_one_out else [None]
        for without in wanted:
            made = train(gathered, without=without, made_with=made_with, seed=options.seed)
            path = out / (f"minilm-without-{without}.json" if without else "minilm.json")
            priors.write(made, path)
            sys.stdout.write(f"{path}: {path.stat().st_size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
