"""The runs of one setting over all orders of a stream as one row: means with intervals, and the worst order.

Knows the figures of `cache.bench.figures`. Does not know which settings there are (`gateway.bench.cache_suite`) or how
rows are shown (`gateway.bench.cache_table`).
"""

from statistics import median
from typing import Any

from cache.bench.figures import Counts, rates

Told = dict[str, Any]
BUDGETS = {"max_error_rate": "wrong_per_request", "max_wrong_hit_rate": "wrong_per_hit"}
_NAMED = ("part", "stream", "policy", "budget", "max_wrong_hit_rate", "artefact", "flip", "seen")


class Orders:
    """All orders of all settings so far; a setting is what `_NAMED` says of a run."""

    def __init__(self) -> None:
        self._runs: dict[tuple[Any, ...], list[Told]] = {}
        self._counts: dict[tuple[Any, ...], Counts] = {}
        self._told: dict[tuple[Any, ...], Told] = {}

    def add(self, run: Told, counts: Counts) -> None:
        name = tuple(run.get(part) for part in _NAMED)
        self._runs.setdefault(name, []).append(run)
        self._counts[name] = self._counts[name] + counts if name in self._counts else counts
        self._told.pop(name, None)

    def told(self) -> list[Told]:
        """A row per setting, in the order they came; intervals are costly and made once."""
        for name, runs in self._runs.items():
            if name not in self._told:
                self._told[name] = {**dict(zip(_NAMED, name, strict=True)), **_summed(runs, self._counts[name])}
        return [self._told[name] for name in self._runs]


def _summed(runs: list[Told], counts: Counts) -> Told:
    """`above`: orders whose observed rate exceeds the budget; `violated`: beyond doubt. Such an order scores no hits in
    `scored_hit_rate`. `first_hit`: the request it came at, in half of the orders and in the slowest; None: never."""
    first = [run["first_hit"] or float("inf") for run in runs]
    allowed = {"max_error_rate": runs[0]["budget"], "max_wrong_hit_rate": runs[0]["max_wrong_hit_rate"]}
    broken = {budget: sum(budget in run["violated"] for run in runs) for budget in BUDGETS}
    return {
        "orders": len(runs),
        "requests": runs[0]["requests"],
        "hits": counts.hits.total(),
        "wrong": counts.wrong.total(),
        **rates(counts),
        "least_hit_rate": min(run["hit_rate"] for run in runs),
        "most_hit_rate": max(run["hit_rate"] for run in runs),
        "worst_per_request": max(run["wrong_per_request"] for run in runs),
        "worst_per_hit": max(run["wrong_per_hit"] for run in runs),
        "above": {budget: sum(run[rate] > allowed[budget] for run in runs) for budget, rate in BUDGETS.items()},
        "violated": broken,
        "scored_hit_rate": sum(run["hit_rate"] for run in runs if not run["violated"]) / len(runs),
        "first_hit": [_request(median(first)), _request(max(first))],
        **({"similarity": [run["similarity"] for run in runs]} if "similarity" in runs[0] else {}),
    }


def _request(at: float) -> int | None:
    return None if at == float("inf") else int(at)
