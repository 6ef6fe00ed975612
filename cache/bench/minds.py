"""Policies by name, ready for a bench run: ours, the published one, and the fixed thresholds people ship.

Knows the names and where priors come from. Does not know data.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cache import priors
from cache.bench.data import Row
from cache.bench.figures import share
from cache.bench.replay import Fixed, Learning, Mind
from cache.index import load as load_index
from policies.reuse import Budget, guarded, learned, load, threshold, verified

# Squared distance 0.8 over unit vectors is cosine 0.60: what GPTCache serves when nothing is set.
FIXED = {"gptcache-default": 0.60, "cosine-80": 0.80, "cosine-90": 0.90, "cosine-95": 0.95}


def mind(name: str, *, encoder: str, artefact: Path | None = None) -> Mind:
    """Raises LookupError naming the known ones, or priors.Unfit for an artefact that cannot be used."""
    if name in FIXED:
        return Fixed(threshold.Policy(threshold.Params(similarity=FIXED[name])))
    if name == "learned":
        return Learning(learned.Policy(prior=priors.read(artefact) if artefact else priors.shipped(encoder)))
    if name == "cold":
        return Learning(learned.Policy())
    if name == "verified":
        return Learning(verified.Policy())
    if name == "guarded":
        return Fixed(guarded.Policy())
    return Fixed(load(name).Policy())


def hindsight(rows: Sequence[Row], vectors: NDArray[np.float32], budget: Budget) -> dict[str, float]:
    """The best fixed threshold of all, chosen after the fact: what no one can have. Every miss is kept."""
    best = {"similarity": 1.0, "hit_rate": 0.0, "wrong_per_request": 0.0, "wrong_per_hit": 0.0}
    for similarity in np.arange(0.70, 0.995, 0.01):
        hits, wrong = _fixed(rows, vectors, float(similarity))
        per_request, per_hit = wrong / len(rows), wrong / max(1, hits)
        fits = per_request <= budget.max_error_rate and per_hit <= budget.max_wrong_hit_rate
        if fits and hits / len(rows) > best["hit_rate"]:
            best = {
                "similarity": round(float(similarity), 2),
                "hit_rate": share(hits, len(rows)).value,
                "wrong_per_request": per_request,
                "wrong_per_hit": per_hit,
            }
    return best


def _fixed(rows: Sequence[Row], vectors: NDArray[np.float32], similarity: float) -> tuple[int, int]:
    index = load_index("flat").Index(vectors.shape[1])
    hits = wrong = 0
    for i, vector in enumerate(vectors):
        near = index.search(vector, 1)
        if near and near[0].similarity >= similarity:
            hits += 1
            wrong += rows[near[0].entry_id].kind != rows[i].kind
        else:
            index.add([i], vector[None])
    return hits, wrong
