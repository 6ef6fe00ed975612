"""Rates with 95 % intervals from what became of each request.

Knows counts and classes. Does not know policies. Requests of one class hang together, so rates of a stream are
resampled by class; where nothing happened at all, the interval is that of a plain share.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from cache.bench.data import Row
from cache.bench.replay import Step
from policies.reuse import Budget

_Z = 1.959964
_DRAWS = 1_000


class Rate(Struct, frozen=True):
    """`low` and `high`: the 95 % interval."""

    value: float
    low: float
    high: float

    def told(self, name: str) -> dict[str, Any]:
        return {name: round(self.value, 6), f"{name}_95": [round(self.low, 6), round(self.high, 6)]}


def share(count: float, total: float) -> Rate:
    """Wilson's interval of `count` in `total` independent tries."""
    if total <= 0:
        return Rate(0.0, 0.0, 1.0)
    p = count / total
    centre = (p + _Z**2 / (2 * total)) / (1 + _Z**2 / total)
    reach = _Z * math.sqrt(p * (1 - p) / total + _Z**2 / (4 * total**2)) / (1 + _Z**2 / total)
    return Rate(p, max(0.0, centre - reach), min(1.0, centre + reach))


def by_class(rows: Sequence[Row], top: Sequence[bool], bottom: Sequence[bool], *, seed: int) -> Rate:
    """sum(top) / sum(bottom), classes resampled; never narrower than the plain interval."""
    plain = share(sum(top), sum(bottom))
    names = {name: i for i, name in enumerate(dict.fromkeys(row.kind for row in rows))}
    at = np.asarray([names[row.kind] for row in rows], int)
    over = np.bincount(at, weights=np.asarray(top, float), minlength=len(names))
    under = np.bincount(at, weights=np.asarray(bottom, float), minlength=len(names))
    if not over.sum() or over.sum() == under.sum():
        return plain
    drawn = _drawn(len(names), seed)
    below = drawn @ under
    ratios = (drawn @ over)[below > 0] / below[below > 0]
    low, high = np.quantile(ratios, (0.025, 0.975))
    return Rate(plain.value, min(plain.low, float(low)), max(plain.high, float(high)))


@lru_cache(maxsize=1)
def _drawn(classes: int, seed: int) -> NDArray[np.float32]:
    """How often each class is drawn, `(draws, classes)`: the same for all rates of a stream."""
    drawn = np.random.default_rng(seed).multinomial(classes, np.full(classes, 1 / classes), size=_DRAWS)
    return drawn.astype(np.float32)


def figures(rows: Sequence[Row], steps: Sequence[Step], *, budget: Budget, seed: int) -> dict[str, Any]:
    """A stream in numbers.

    `violated`: budgets below which the observed rate is not, beyond doubt (plain interval). `over_time`: hit rate and
    wrong per request up to each mark. `first_hit`: the request it came at. `judged`: comparisons the judge made.
    """
    hits, wrong = [step.hit for step in steps], [step.wrong for step in steps]
    everything = [True] * len(steps)
    violated: list[str] = []
    if share(sum(wrong), len(steps)).low > budget.max_error_rate:
        violated.append("max_error_rate")
    if sum(hits) and share(sum(wrong), sum(hits)).low > budget.max_wrong_hit_rate:
        violated.append("max_wrong_hit_rate")
    marks = [mark for mark in (500, 1_000, 2_000, 5_000) if mark < len(steps)] + [len(steps)]
    return {
        "requests": len(steps),
        "hits": sum(hits),
        **by_class(rows, hits, everything, seed=seed).told("hit_rate"),
        "wrong": sum(wrong),
        **by_class(rows, wrong, everything, seed=seed).told("wrong_per_request"),
        **by_class(rows, wrong, hits, seed=seed).told("wrong_per_hit"),
        "violated": violated,
        "explored": sum(step.explored for step in steps),
        "audited": sum(step.audited for step in steps),
        "judged": sum(step.judged for step in steps),
        "first_hit": next((i + 1 for i, hit in enumerate(hits) if hit), None),
        "over_time": {
            str(mark): {
                "hit_rate": round(sum(hits[:mark]) / mark, 5),
                "wrong_per_request": round(sum(wrong[:mark]) / mark, 5),
            }
            for mark in marks
            if mark
        },
    }
