"""Examples for the prior: labelled streams run through the cache with every answer compared, and labelled pairs alone.

Knows how a scope fills up: features are taken as they are met at run time, from the first request to the last. Does
not know weights. Nothing is served here, so every comparison has a label.
"""

import random
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from cache.bench.data import Pair, Row
from cache.bench.memo import remembered
from cache.bench.nearest import Picked, Table
from cache.bench.replay import Options, Reader, Replay
from policies.reuse import Budget, Evidence, Explore, Neighbour, Outcome, Regenerate, Verdict, told
from policies.reuse.pairs import WIDTH, Candidate, candidates

# Farther ones are hardly ever served, whatever a reader says.
_READ_FROM = 0.75

Matrix = NDArray[np.float32]


class Examples(Struct, frozen=True):
    """`first`: the row is about the nearest answer of its request."""

    features: Matrix
    same: NDArray[np.bool_]
    first: NDArray[np.bool_]


class Looker:
    """A mind that only looks: it compares with the `compared` nearest answers and keeps what it saw.

    What is near enough to be served some day is read first.
    """

    aliases = True

    def __init__(self, floor: float, compared: int, reader: Reader) -> None:
        self._floor = floor
        self._compared = compared
        self._reader = reader
        self._nearest = -1
        self.features: list[bytes] = []
        self.same: list[bool] = []
        self.first: list[bool] = []

    def decide(self, text: str, neighbours: Sequence[Neighbour], budget: Budget) -> Verdict:
        del budget
        near = [neighbour for neighbour in neighbours if neighbour.similarity >= self._floor]
        found = candidates(text, near, self._compared)
        if not found:
            return Regenerate(reason="far")
        found = candidates(text, _read(text, near, found, self._reader), self._compared)
        self._nearest = found[0].nearest.entry_id
        evidence = tuple(
            Evidence(
                entry_id=item.nearest.entry_id,
                answer_id=item.nearest.answer,
                probability=item.nearest.similarity,
                features=item.features.tobytes(),
            )
            for item in found
        )
        return Explore(entry_id=self._nearest, evidence=evidence)

    def count(self, verdict: Verdict, *, served: bool) -> None:
        """Nothing is served."""

    def learn(self, outcome: Outcome) -> None:
        self.features.append(outcome.evidence.features)
        self.same.append(outcome.same)
        self.first.append(outcome.evidence.entry_id == self._nearest)

    def examples(self) -> Examples:
        features = np.frombuffer(b"".join(self.features), np.float32).reshape(-1, WIDTH)
        return Examples(features, np.asarray(self.same, bool), np.asarray(self.first, bool))


def _read(text: str, near: Sequence[Neighbour], found: Sequence[Candidate], reader: Reader) -> list[Neighbour]:
    """`near` with the readings of what may be read and stands near enough."""
    wanted = [item.nearest for item in found if item.readable and item.nearest.similarity >= _READ_FROM]
    odds = reader([(item.text, text) for item in wanted])
    return told(near, {item.entry_id: value for item, value in zip(wanted, odds, strict=True)})


def from_stream(
    rows: Sequence[Row], vectors: Matrix, reader: Reader, *, floor: float, compared: int, seed: int
) -> Examples:
    """One scope, asked these rows in this order; twice, since what is read makes no difference to what is met, and
    many pairs are read faster at once."""
    wanted: dict[tuple[str, str], None] = {}

    def note(pairs: Sequence[tuple[str, str]]) -> list[float]:
        wanted.update(dict.fromkeys(pairs))
        return [0.0] * len(pairs)

    def run(looker: Looker) -> Examples:
        cache = Replay(looker, vectors.shape[1], Options(budget=Budget(), seed=seed), Picked(table))
        for row, vector in zip(rows, vectors, strict=True):
            cache.ask(row, vector)
        return looker.examples()

    table = Table(vectors)
    with remembered():
        run(Looker(floor, compared, note))
        reader(list(wanted))
        return run(Looker(floor, compared, reader))


def from_pairs(pairs: Sequence[Pair], vectors: tuple[Matrix, Matrix], reader: Reader, *, seed: int) -> Examples:
    """Each pair twice: alone, as in a new scope, and among a few texts of other pairs, as in a scope in use."""
    reader([(pair.a, pair.b) for pair in pairs])  # at once is faster than one by one
    drawn = random.Random(seed)  # noqa: S311 - which other texts stand beside
    first, second = vectors
    features: list[NDArray[np.float32]] = []
    for i, pair in enumerate(pairs):
        others = drawn.sample(range(len(pairs)), min(60, len(pairs)))
        similar = {j: float(first[j] @ second[i]) for j in others if pairs[j].a != pair.a}
        near = sorted(similar, key=lambda j: -similar[j])[:7]
        own = Neighbour(entry_id=len(pairs), text=pair.a, similarity=float(first[i] @ second[i]))
        for beside in ((), near):
            field = [Neighbour(entry_id=j, text=pairs[j].a, similarity=similar[j]) for j in beside]
            keys = [own, *field]
            found = candidates(pair.b, _read(pair.b, keys, candidates(pair.b, [own], 1), reader), len(keys))
            features += [item.features for item in found if item.nearest.entry_id == own.entry_id]
    same = np.repeat([pair.same for pair in pairs], 2)
    return Examples(np.asarray(features, np.float32), same, np.ones(len(features), bool))
