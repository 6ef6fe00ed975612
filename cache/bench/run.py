"""`bench cache`: one stream or one file of pairs under a budget, as figures.

Knows the order: read, embed, decide, count; and the names under which figures are told. Prints nothing.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from cache.bench.data import Pair, Row, read_pairs, read_stream
from cache.bench.figures import Rate, figures, share
from cache.bench.minds import hindsight, mind, sweep
from cache.bench.nearest import Table
from cache.bench.readings import Readings
from cache.bench.replay import Options, Step, read, replay
from cache.bench.vectors import Embedder, Matrix
from policies.reuse import Budget, Neighbour, Serve

Told = dict[str, Any]


class Setting(Struct, frozen=True, kw_only=True):
    """One run. `artefact`: the prior to use instead of the shipped one; `folder`: where embeddings are kept."""

    budget: Budget
    folder: Path
    policy: str = "learned"
    seed: int = 0
    limit: int | None = None
    flip: float = 0.0
    artefact: Path | None = None

    def told(self) -> Told:
        return {
            "policy": self.policy,
            "budget": self.budget.max_error_rate,
            "max_wrong_hit_rate": self.budget.max_wrong_hit_rate,
            "artefact": self.artefact.name if self.artefact else "shipped",
        }


class Prepared(Struct, frozen=True, kw_only=True):
    """A stream in one order, read, embedded and searched once for many runs. `encoder`: digest of the model."""

    name: str
    rows: list[Row]
    repeats: int
    seed: int
    vectors: Matrix
    encoder: str
    table: Table | None = None
    readings: Readings


def prepare(path: Path, setting: Setting, *, often: bool = False) -> Prepared:
    """`often`: many runs will follow. Raises Unreadable or weights.Unusable."""
    stream = read_stream(path, seed=setting.seed, limit=setting.limit)
    embedder = Embedder(setting.folder)
    vectors = embedder.embed([row.text for row in stream.rows])
    return Prepared(
        name=path.name,
        rows=stream.rows,
        repeats=stream.repeats,
        seed=setting.seed,
        vectors=vectors,
        encoder=embedder.digest,
        table=Table(vectors) if often and stream.rows else None,
        readings=Readings(setting.folder),
    )


def run_stream(path: Path, setting: Setting) -> Told:
    """Raises Unreadable, LookupError or priors.Unfit for what cannot be used."""
    made = prepare(path, setting)
    return told(made, setting, run_prepared(made, setting))


def run_prepared(made: Prepared, setting: Setting) -> list[Step]:
    """`setting` may differ from the one it was prepared with in all but order and limit."""
    decider = mind(setting.policy, encoder=made.encoder, artefact=setting.artefact)
    options = Options(budget=setting.budget, seed=made.seed, flip=setting.flip, reader=made.readings.read)
    steps = replay(made.rows, made.vectors, decider, options, made.table)
    made.readings.save()
    return steps


def told(made: Prepared, setting: Setting, steps: Sequence[Step]) -> Told:
    """A run as figures."""
    found = figures(made.rows, steps, budget=setting.budget, seed=made.seed)
    head = {"stream": made.name, **setting.told(), "seed": made.seed, "flip": setting.flip}
    return {**head, "exact_repeats": made.repeats, **found}


def best_fixed(path: Path, setting: Setting) -> Told:
    """The hindsight-best fixed threshold for the same requests."""
    made = prepare(path, setting, often=True)
    best = hindsight(sweep(made.rows, made.vectors, made.table), setting.budget)
    named = replace(setting, policy="hindsight-best", artefact=None)
    return {**told(made, named, best.steps), "similarity": best.similarity}


class Tally(Struct, kw_only=True):
    """Pairs served and pairs in all, by what would have been right; `near`: at cosine 0.9 and above."""

    true: int = 0
    false: int = 0
    served_true: int = 0
    served_false: int = 0
    true_near: int = 0
    served_true_near: int = 0

    def add(self, pair: Pair, *, served: bool, near: bool) -> None:
        self.true += pair.same
        self.false += not pair.same
        self.served_true += served and pair.same
        self.served_false += served and not pair.same
        self.true_near += near and pair.same
        self.served_true_near += served and near and pair.same

    def told(self) -> Told:
        rates: Mapping[str, Rate] = {
            "served_true_rate": share(self.served_true, self.true),
            "served_false_rate": share(self.served_false, self.false),
            "served_true_near_rate": share(self.served_true_near, self.true_near),
        }
        counts = {name: getattr(self, name) for name in self.__struct_fields__}
        return counts | {name: part for label, rate in rates.items() for name, part in rate.told(label).items()}


def run_pairs(path: Path, setting: Setting) -> Told:
    """Would `b` be served the answer of `a` in a scope that holds nothing else and has learned nothing?"""
    pairs = read_pairs(path, limit=setting.limit)
    embedder = Embedder(setting.folder)
    first, second = embedder.embed([pair.a for pair in pairs]), embedder.embed([pair.b for pair in pairs])
    decider = mind(setting.policy, encoder=embedder.digest, artefact=setting.artefact)
    readings = Readings(setting.folder)
    total, tags = Tally(), {tag: Tally() for tag in dict.fromkeys(pair.tag for pair in pairs)}
    for pair, similarity in zip(pairs, _cosines(first, second), strict=True):
        near = [Neighbour(entry_id=1, text=pair.a, similarity=similarity)]
        decide = partial(decider.decide, pair.b, budget=setting.budget)
        served = isinstance(read(decide, pair.b, near, readings.read), Serve)
        for tally in (total, tags[pair.tag]):
            tally.add(pair, served=served, near=similarity >= 0.9)
    readings.save()
    by_tag = {tag: tally.told() for tag, tally in tags.items()}
    return {"pairs": path.name, **setting.told(), **total.told(), "tags": by_tag}


def _cosines(first: Matrix, second: Matrix) -> Sequence[float]:
    return [min(1.0, float(a @ b)) for a, b in zip(first, second, strict=True)]
