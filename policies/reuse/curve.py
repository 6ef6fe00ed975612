"""What a scope's own labels say about estimated logits: the true logit as a straight line of the estimated one.

Knows pairs of logit and label, of the least risky answer of each request only: that one is served or not, and it was
picked, which the model that made the estimate does not know. Does not know where estimates come from. The labels of
what was not served lie just beyond the threshold and carry the line across it; audits hold its other end.

A line and no table of bins: below the threshold only audits tell, far too few to fill bins. (Platt 1999, with a normal
prior at "the estimate is right".)
"""

import math

from msgspec import Struct

from policies.reuse.logistic import sigmoid

# Below this logit nothing is ever served, and lines need not hold for what is hopeless.
_LEAST = -1.0
# However odd the labels, a higher estimate never means a higher risk.
_FLATTEST = 0.25
# Standard deviations of intercept and slope in a new scope.
_INTERCEPT, _SLOPE = 0.5, 0.3
_NEW = (_INTERCEPT**-2, 0.0, _SLOPE**-2)


class Curve(Struct, frozen=True, kw_only=True):
    """`precision`: of intercept, of both together, of slope (the inverse of their covariance matrix)."""

    intercept: float = 0.0
    slope: float = 1.0
    precision: tuple[float, float, float] = _NEW


def risk(curve: Curve, logit: float, caution: float) -> float:
    """The probability that an answer with this estimated `logit` is wrong, `caution` deviations above its mean."""
    z = max(logit, _LEAST)
    a, b, c = curve.precision
    spread = math.sqrt(max(0.0, (c - 2.0 * b * z + a * z * z) / (a * c - b * b)))
    return sigmoid(caution * spread - curve.intercept - max(_FLATTEST, curve.slope) * z)


def learn(curve: Curve, logit: float, same: bool, *, flip: float = 0.0, memory: float = 1.0) -> Curve:
    """The curve after one label, one Newton step of the log posterior.

    `flip`: chance that the label is the wrong one. `memory` below 1: by that factor older labels fade towards the
    curve of a new scope.
    """
    if logit < _LEAST:
        return curve
    z = logit
    fresh = 1.0 - memory
    a, b, c = (memory * held + fresh * new for held, new in zip(curve.precision, _NEW, strict=True))
    # The mean of both normals together: the labels' so far, and the new scope's at (0, 1).
    held_a, held_b, held_c = curve.precision
    pull_0 = memory * (held_a * curve.intercept + held_b * curve.slope)
    pull_1 = memory * (held_b * curve.intercept + held_c * curve.slope) + fresh * _NEW[2]
    intercept, slope = _solved((a, b, c), pull_0, pull_1)
    p = sigmoid(intercept + slope * z)
    seen = flip + (1.0 - 2.0 * flip) * p
    steep = (1.0 - 2.0 * flip) * p * (1.0 - p)
    doubt = max(seen * (1.0 - seen), 1e-6)
    gradient, curvature = steep * (float(same) - seen) / doubt, steep * steep / doubt
    a, b, c = a + curvature, b + curvature * z, c + curvature * z * z
    step_0, step_1 = _solved((a, b, c), gradient, gradient * z)
    return Curve(intercept=intercept + step_0, slope=slope + step_1, precision=(a, b, c))


def _solved(matrix: tuple[float, float, float], first: float, second: float) -> tuple[float, float]:
    """The solution of [[a, b], [b, c]] x = [first, second]."""
    a, b, c = matrix
    determinant = a * c - b * b
    return (c * first - b * second) / determinant, (a * second - b * first) / determinant
