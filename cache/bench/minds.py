"""Policies by name, ready for a bench run: ours, what came before it, the published one, and the fixed thresholds
people ship.

Knows the names and where priors come from. Does not know data.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from cache import priors
from cache.bench.data import Row
from cache.bench.nearest import Picked, Table
from cache.bench.pooled import Pooled
from cache.bench.replay import Fixed, Learning, Mind, Step
from policies.reuse import Budget, LearningPolicy, ReusePolicy, learned, load, threshold
from policies.reuse.prior import Prior

# Squared distance 0.8 over unit vectors is cosine 0.60: what GPTCache serves when nothing is set.
FIXED = {"gptcache-default": 0.60, "cosine-80": 0.80, "cosine-90": 0.90, "cosine-95": 0.95}


def policy(name: str, prior: Prior | None = None) -> ReusePolicy:
    """`prior`: for the policy that learns. Raises LookupError naming the known ones."""
    if name in FIXED:
        return fixed(FIXED[name])
    if name == "learned":
        return learned.Policy(prior=prior)
    if name == "cold":
        return learned.Policy()
    found: ReusePolicy = load(name).Policy()
    return found


def fixed(similarity: float) -> ReusePolicy:
    return threshold.Policy(threshold.Params(similarity=similarity))


def mind(name: str, *, encoder: str, artefact: Path | None = None) -> Mind:
    """Raises LookupError naming the known ones, or priors.Unfit for an artefact that cannot be used."""
    if name == "pooled":
        return Pooled()
    prior = priors.read(artefact) if artefact else priors.shipped(encoder)
    made = policy(name, prior)
    return Learning(cast("LearningPolicy[Any]", made)) if hasattr(made, "decide") else Fixed(made)


class Swept(Struct, frozen=True):
    """A fixed threshold over a stream, every miss kept."""

    similarity: float
    steps: list[Step]

    @property
    def hits(self) -> int:
        return sum(step.hit for step in self.steps)

    @property
    def wrong(self) -> int:
        return sum(step.wrong for step in self.steps)


def sweep(rows: Sequence[Row], vectors: NDArray[np.float32], table: Table | None = None) -> list[Swept]:
    """Fixed thresholds from 0.70 to 1.01, which serves nothing, each from an empty cache."""
    shared = table or Table(vectors)
    grid = [round(float(similarity), 2) for similarity in np.arange(0.70, 1.015, 0.01)]
    return [Swept(similarity, _fixed(rows, vectors, similarity, shared)) for similarity in grid]


def hindsight(swept: Sequence[Swept], budget: Budget) -> Swept:
    """The best fixed threshold of all, chosen after the fact: what no one can have. The strictest where none fits."""
    best = max(swept, key=lambda one: one.similarity)
    for one in swept:
        most = min(budget.max_error_rate * len(one.steps), budget.max_wrong_hit_rate * one.hits)
        if one.wrong <= most and one.hits > best.hits:
            best = one
    return best


def _fixed(rows: Sequence[Row], vectors: NDArray[np.float32], similarity: float, table: Table) -> list[Step]:
    picked = Picked(table)
    steps: list[Step] = []
    for i, vector in enumerate(vectors):
        near = picked.search(i, vector, 1)
        hit = bool(near) and near[0].similarity >= similarity
        steps.append(Step(hit, hit and rows[near[0].entry_id].kind != rows[i].kind, False, False, 0))
        if not hit:
            picked.add(i, i, vector)
    return steps
