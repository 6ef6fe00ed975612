"""What a new scope believes before its first label: weights learned elsewhere, and how far they are to be trusted.

Knows the shape of that knowledge. Does not know where it is kept (`cache.priors` reads it) or how it was made
(`cache.training`). It holds for one encoder: cosines of another mean something else.
"""

import hashlib

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from policies.reuse import Budget


class Bound(Struct, frozen=True, kw_only=True):
    """Serving what bears at most `risk`, without any label of the scope: upper bounds of what was found on held-out
    data, the worst source counting."""

    risk: float
    wrong_per_request: float
    wrong_per_hit: float


class Prior(Struct, frozen=True, kw_only=True):
    """`names`: the features in order; each enters as (x - center) / scale, cut at ±`cut`.

    `mean` of each weight in a new scope, first of the features, then of the bends: how much steeper the logit gets
    above each of `knots` than the features alone say (their sum under `mean` is what bends, in every scope alike).
    In a new scope each lies `deviation` from its mean, and all of the features' together are wrong in scale by the
    share `slope`. `bounds`: ascending in risk. `encoder`: whose cosines these are. `reader`: digest of the model that
    reads two texts together, without whose word nothing is served; empty: made without one. `about`: seed, data,
    licences.
    """

    names: tuple[str, ...]
    center: tuple[float, ...]
    scale: tuple[float, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    slope: float = 0.0
    knots: tuple[float, ...] = ()
    bounds: tuple[Bound, ...] = ()
    cut: float = 4.0
    encoder: str = ""
    reader: str = ""
    about: dict[str, str] = {}

    @property
    def basis(self) -> str:
        """A digest of all that says what learned weights are about: features, scales, bends, encoder and reader."""
        told = msgspec.json.encode(replace(self, bounds=(), about={}))
        return hashlib.sha256(told).hexdigest()[:12]

    def threshold(self, budget: Budget) -> float:
        """The highest risk whose held-out bound meets both budgets; -1 when none does."""
        fits = [
            bound.risk
            for bound in self.bounds
            if bound.wrong_per_request <= budget.max_error_rate and bound.wrong_per_hit <= budget.max_wrong_hit_rate
        ]
        return max(fits, default=-1.0)
