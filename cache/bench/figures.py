"""Rates with 95 % intervals from what became of each request.

Knows counts and classes. Does not know policies. Requests of one class hang together, so rates of a stream are
resampled by class; where nothing happened at all, the interval is that of a plain share.
"""

import math
from collections import Counter
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


class Counts(Struct, frozen=True, kw_only=True):
    """Requests, hits and wrong hits of a stream by class, over `orders` orders of the same requests."""

    requests: Counter[str]
    hits: Counter[str]
    wrong: Counter[str]
    orders: int = 1

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            requests=self.requests + other.requests,
            hits=self.hits + other.hits,
            wrong=self.wrong + other.wrong,
            orders=self.orders + other.orders,
        )


def counted(rows: Sequence[Row], steps: Sequence[Step]) -> Counts:
    pairs = list(zip(rows, steps, strict=True))
    return Counts(
        requests=Counter(row.kind for row in rows),
        hits=Counter(row.kind for row, step in pairs if step.hit),
        wrong=Counter(row.kind for row, step in pairs if step.wrong),
    )


def by_class(top: Counter[str], bottom: Counter[str], *, seed: int = 0, orders: int = 1) -> Rate:
    """sum(top) / sum(bottom), classes resampled; never narrower than the plain interval.

    Several `orders` of the same requests tell hardly more than one: the plain interval is that of one of them, and all
    that became of a class in all of them is drawn together.
    """
    one = share(top.total() / orders, bottom.total() / orders)
    if not top.total() or top.total() == bottom.total():
        return one
    under = np.asarray(list(bottom.values()), np.float32)
    over = np.asarray([top[name] for name in bottom], np.float32)
    drawn = _drawn(len(bottom), seed)
    below = drawn @ under
    ratios = (drawn @ over)[below > 0] / below[below > 0]
    low, high = np.quantile(ratios, (0.025, 0.975))
    return Rate(one.value, min(one.low, float(low)), max(one.high, float(high)))


@lru_cache(maxsize=4)
def _drawn(classes: int, seed: int) -> NDArray[np.float32]:
    """How often each class is drawn, `(draws, classes)`: the same for all rates of a stream."""
    random = np.random.default_rng(seed)
    counts = [np.bincount(random.integers(classes, size=classes), minlength=classes) for _ in range(_DRAWS)]
    return np.asarray(counts, np.float32)


def rates(counts: Counts, *, seed: int = 0) -> dict[str, Any]:
    """Hits and wrong answers per request and per hit, each with its interval."""
    every = {"seed": seed, "orders": counts.orders}
    return {
        **by_class(counts.hits, counts.requests, **every).told("hit_rate"),
        **by_class(counts.wrong, counts.requests, **every).told("wrong_per_request"),
        **by_class(counts.wrong, counts.hits, **every).told("wrong_per_hit"),
    }


def figures(rows: Sequence[Row], steps: Sequence[Step], *, budget: Budget, seed: int) -> dict[str, Any]:
    """A stream in numbers.

    `violated`: budgets below which the observed rate is not, beyond doubt (plain interval). `over_time`: hit rate and
    wrong per request up to each mark. `first_hit`: the request it came at. `judged`: comparisons the judge made.
    """
    counts = counted(rows, steps)
    hits, wrong = counts.hits.total(), counts.wrong.total()
    violated: list[str] = []
    if share(wrong, len(steps)).low > budget.max_error_rate:
        violated.append("max_error_rate")
    if hits and share(wrong, hits).low > budget.max_wrong_hit_rate:
        violated.append("max_wrong_hit_rate")
    return {
        "requests": len(steps),
        "hits": hits,
        "wrong": wrong,
        **rates(counts, seed=seed),
        "violated": violated,
        "explored": sum(step.explored for step in steps),
        "audited": sum(step.audited for step in steps),
        "judged": sum(step.judged for step in steps),
        "first_hit": next((i + 1 for i, step in enumerate(steps) if step.hit), None),
        "over_time": _over_time(steps),
    }


def _over_time(steps: Sequence[Step]) -> dict[str, Any]:
    marks = [mark for mark in (500, 1_000, 2_000, 5_000) if mark < len(steps)] + [len(steps)]
    return {
        str(mark): {
            "hit_rate": round(sum(step.hit for step in steps[:mark]) / mark, 5),
            "wrong_per_request": round(sum(step.wrong for step in steps[:mark]) / mark, 5),
        }
        for mark in marks
        if mark
    }
