"""What a prior may serve before a scope has labels: upper bounds of the error found on requests it was not fitted to.

Knows a prior, held-out examples and shares. Requests that were fitted to must not be measured with the same fit.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from cache.bench.figures import share
from cache.training.gather import Examples
from policies.reuse.learned import Params, Policy
from policies.reuse.pairs import GUARD_NAMES, HARD, NAMES
from policies.reuse.prior import Bound, Prior

RISKS = (0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4)
_VETOES = [NAMES.index(f"guard_{name}") for name in GUARD_NAMES if name in HARD]


class Held(Struct, frozen=True):
    """One source against the prior fitted without it: the least risk in each request that had candidates, and whether
    that one was right. `requests` in all."""

    risk: NDArray[np.float64]
    right: NDArray[np.bool_]
    requests: int


def halves(examples: Examples) -> tuple[Examples, Examples]:
    """The requests that came first, and those that came later."""
    request = np.cumsum(examples.first) - 1
    late = request >= (request[-1] + 1) // 2
    first, second = (
        Examples(examples.features[part], examples.same[part], examples.first[part]) for part in (~late, late)
    )
    return first, second


def held(prior: Prior, examples: Examples, requests: int) -> Held:
    risk = Policy(Params(), prior).risks(examples.features)
    risk[examples.features[:, _VETOES].any(axis=1)] = 1.0
    request = np.cumsum(examples.first) - 1
    order = np.lexsort((risk, request))
    best = order[np.r_[True, request[order][1:] != request[order][:-1]]]
    return Held(risk[best], examples.same[best], requests)


def bounded(prior: Prior, sources: Sequence[Held]) -> Prior:
    """The prior with a bound per risk: the sources pooled with equal say, upper ends of 95 % intervals.

    Pooled and not the worst, since each source has labels of its own faults; audits watch what this leaves open.
    """
    bounds: list[Bound] = []
    for risk in RISKS:
        per_request = per_hit = 0.0
        hits = wrong = weight = 0.0
        for source in sources:
            served = source.risk <= risk
            hits += served.sum() / source.requests
            wrong += (served & ~source.right).sum() / source.requests
            per_request += share(float((served & ~source.right).sum()), source.requests).high / len(sources)
            weight += served.sum()
        if hits > 0.0:
            # As many independent hits as there were, at the pooled share of wrong ones.
            per_hit = share(float(wrong / hits * weight), float(weight)).high
            bounds.append(
                Bound(risk=risk, wrong_per_request=round(float(per_request), 5), wrong_per_hit=round(per_hit, 5))
            )
    return replace(prior, bounds=tuple(bounds))
