"""Policies by name, ready for a bench run: ours, the published one, and the fixed thresholds people ship.

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
from cache.bench.figures import share
from cache.bench.nearest import Picked, Table
from cache.bench.replay import Fixed, Learning, Mind
from policies.reuse import Budget, LearningPolicy, ReusePolicy, learned, load, threshold
from policies.reuse.prior import Prior

# Squared distance 0.8 over unit vectors is cosine 0.60: what GPTCache serves when nothing is set.
FIXED = {"gptcache-default": 0.60, "cosine-80": 0.80, "cosine-90": 0.90, "cosine-95": 0.95}


def policy(name: str, prior: Prior | None = None) -> ReusePolicy:
    """`prior`: for the policy that learns. Raises LookupError naming the known ones."""
    if name in FIXED:
        return threshold.Policy(threshold.Params(similarity=FIXED[name]))
    if name == "learned":
        return learned.Policy(prior=prior)
    if name == "cold":
        return learned.Policy()
    found: ReusePolicy = load(name).Policy()
    return found


def mind(name: str, *, encoder: str, artefact: Path | None = None) -> Mind:
    """Raises LookupError naming the known ones, or priors.Unfit for an artefact that cannot be used."""
    prior = priors.read(artefact) if artefact else priors.shipped(encoder)
    made = policy(name, prior)
    return Learning(cast("LearningPolicy[Any]", made)) if hasattr(made, "decide") else Fixed(made)


class Swept(Struct, frozen=True):
    """A fixed threshold over a stream, every miss kept."""

    similarity: float
    hits: int
    wrong: int


def sweep(rows: Sequence[Row], vectors: NDArray[np.float32], table: Table | None = None) -> list[Swept]:
    """Fixed thresholds from 0.70 to 0.99, each from an empty cache."""
    shared = table or Table(vectors)
    grid = [round(float(similarity), 2) for similarity in np.arange(0.70, 0.995, 0.01)]
    return [Swept(similarity, *_fixed(rows, vectors, similarity, shared)) for similarity in grid]


def hindsight(requests: int, swept: Sequence[Swept], budget: Budget) -> dict[str, float]:
    """The best fixed threshold of all, chosen after the fact: what no one can have."""
    best = Swept(1.0, 0, 0)
    for one in swept:
        fits = one.wrong <= budget.max_error_rate * requests and one.wrong <= budget.max_wrong_hit_rate * one.hits
        if fits and one.hits > best.hits:
            best = one
    return {
        "similarity": best.similarity,
        "hit_rate": share(best.hits, requests).value,
        "wrong_per_request": best.wrong / max(1, requests),
        "wrong_per_hit": best.wrong / max(1, best.hits),
    }


def _fixed(rows: Sequence[Row], vectors: NDArray[np.float32], similarity: float, table: Table) -> tuple[int, int]:
    picked = Picked(table)
    hits = wrong = 0
    for i, vector in enumerate(vectors):
        near = picked.search(i, vector, 1)
        if near and near[0].similarity >= similarity:
            hits += 1
            wrong += rows[near[0].entry_id].kind != rows[i].kind
        else:
            picked.add(i, i, vector)
    return hits, wrong
