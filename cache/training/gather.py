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
from cache.bench.replay import Options, Replay
from policies.reuse import Budget, Evidence, Explore, Neighbour, Outcome, Regenerate, Verdict
from policies.reuse.pairs import WIDTH, candidates

Matrix = NDArray[np.float32]


class Examples(Struct, frozen=True):
    """`first`: the row is about the nearest answer of its request."""

    features: Matrix
    same: NDArray[np.bool_]
    first: NDArray[np.bool_]


class Looker:
    """A mind that only looks: it compares with the `compared` nearest answers and keeps what it saw."""

    aliases = True

    def __init__(self, floor: float, compared: int) -> None:
        self._floor = floor
        self._compared = compared
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


def from_stream(rows: Sequence[Row], vectors: Matrix, *, floor: float, compared: int, seed: int) -> Examples:
    """One scope, asked these rows in this order."""
    looker = Looker(floor, compared)
    cache = Replay(looker, vectors.shape[1], Options(budget=Budget(), seed=seed))
    for row, vector in zip(rows, vectors, strict=True):
        cache.ask(row, vector)
    return looker.examples()


def from_pairs(pairs: Sequence[Pair], vectors: tuple[Matrix, Matrix], *, seed: int) -> Examples:
    """Each pair twice: alone, as in a new scope, and among a few texts of other pairs, as in a scope in use."""
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
            found = candidates(pair.b, [own, *field], len(field) + 1)
            features += [item.features for item in found if item.nearest.entry_id == own.entry_id]
    same = np.repeat([pair.same for pair in pairs], 2)
    return Examples(np.asarray(features, np.float32), same, np.ones(len(features), bool))
