"""Weights of the prior from examples of several sources, every source with equal say.

Knows numbers and which features are guards. Three steps, each for a reason that was measured (`docs/decisions.md`):
a strong penalty on natural streams (what is shared by all of them transfers, what is peculiar to one does not), a new
scale so that scores are probabilities again, and guards and readings alone learned from near misses.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from cache.training.gather import Examples
from policies.reuse.pairs import NAMES
from policies.reuse.prior import Prior

Array = NDArray[np.float64]
_GUARDS = [i for i, name in enumerate(NAMES) if name.startswith("guard_") or name == "objections"]
_READ = NAMES.index("read")
_READING = [NAMES.index("reading"), NAMES.index("reading_sure")]
# What near misses teach: guards are never praise, a reading never blame.
_TAUGHT = [*_GUARDS, *_READING]
_SIGN = np.asarray([-1.0] * len(_GUARDS) + [1.0] * len(_READING))


class Recipe(Struct, frozen=True, kw_only=True):
    """`each`: examples a source counts as; `penalty`, `reading_penalty`, `guard_penalty`: per squared weight. In a new
    scope a weight may lie `deviation` from its mean, the intercept `bias`, a bend at one of `knots` `bend`, and all
    together be wrong in scale by the share `slope`."""

    each: float = 3_000.0
    penalty: float = 2_000.0
    reading_penalty: float = 100.0
    guard_penalty: float = 100.0
    deviation: float = 0.2
    bias: float = 0.7
    slope: float = 0.6
    knots: tuple[float, ...] = (1.0, 3.0)
    bend: float = 0.6


class Scaling(Struct, frozen=True):
    """Features enter as (x - center) / scale, cut at ±`cut`."""

    center: Array
    scale: Array
    cut: float = 4.0

    def apply(self, features: NDArray[np.float32]) -> Array:
        return np.clip((features - self.center) / self.scale, -self.cut, self.cut)


def scaling(groups: Sequence[Examples]) -> Scaling:
    """Zero mean and unit spread over the groups, each counting alike; the first column (all ones) stays."""
    means = np.mean([group.features.mean(0) for group in groups], axis=0)
    squares = np.mean([(np.square(group.features - means)).mean(0) for group in groups], axis=0)
    # A flag hardly ever on would get a scale that makes it shout.
    scale = np.maximum(np.sqrt(squares), np.where(np.asarray(NAMES) == "bias", 1.0, 0.02))
    scale[_GUARDS] = np.maximum(scale[_GUARDS], 0.25)
    means[_GUARDS] = 0.0
    means[0], scale[0] = 0.0, 1.0
    return Scaling(means.astype(np.float64), scale.astype(np.float64))


def logistic(x: Array, same: Array, weight: Array, penalty: Array) -> Array:
    """The maximum of sum weight * log likelihood - penalty/2 * b², by damped Newton steps."""
    b = np.zeros(x.shape[1])
    for _ in range(60):
        p = 1.0 / (1.0 + np.exp(-(x @ b)))
        curvature = x.T @ (x * (weight * p * (1.0 - p) + 1e-9)[:, None]) + np.diag(penalty)
        step = np.linalg.solve(curvature, x.T @ (weight * (same - p)) - penalty * b)
        longest = np.abs(step).max()
        b = b + step * min(1.0, 3.0 / max(longest, 1e-12))
        if longest < 1e-7:
            break
    return b


def weights(streams: Mapping[str, Examples], misses: Mapping[str, Examples], recipe: Recipe) -> tuple[Scaling, Array]:
    """The scaling and one set of weights."""
    scaled = scaling(list(streams.values()))
    x, same, weight = _stacked(streams, scaled, recipe.each)
    penalty = np.full(x.shape[1], recipe.penalty)
    penalty[0] = 1e-3
    penalty[[_READ, *_READING]] = recipe.reading_penalty  # one reader for all: what it says transfers
    found = logistic(x, same, weight, penalty)
    score = x @ found
    shift, slope = logistic(np.stack([np.ones_like(score), score], axis=1), same, weight, np.full(2, 1e-3))
    found *= slope
    found[0] += shift
    if misses:
        found[_TAUGHT] = _taught(found, (x, same, weight), _stacked(misses, scaled, recipe.each), recipe.guard_penalty)
    return scaled, found


def prior(streams: Mapping[str, Examples], misses: Mapping[str, Examples], recipe: Recipe) -> Prior:
    """A prior without bounds, encoder and description."""
    scaled, found = weights(streams, misses, recipe)
    mean = np.concatenate([found, _bends(streams, scaled, found, recipe)])
    deviation = np.full(len(mean), recipe.deviation)
    deviation[0], deviation[len(found) :] = recipe.bias, recipe.bend
    return Prior(
        names=NAMES,
        center=_numbers(scaled.center),
        scale=_numbers(scaled.scale),
        mean=_numbers(mean),
        deviation=_numbers(deviation),
        slope=recipe.slope,
        knots=recipe.knots,
        cut=scaled.cut,
    )


def _bends(streams: Mapping[str, Examples], scaled: Scaling, found: Array, recipe: Recipe) -> Array:
    """How the logit bends above each knot of the score, on the streams the score was fitted to."""
    x, same, weight = _stacked(streams, scaled, recipe.each)
    score = x @ found
    bends = np.maximum(0.0, score[:, None] - np.asarray(recipe.knots))
    design = np.concatenate([np.ones((len(score), 1)), score[:, None], bends], axis=1)
    penalty = np.asarray([1e-3, 1e-3, *(10.0 for _ in recipe.knots)])
    return logistic(design, same, weight, penalty)[2:]


def _numbers(values: Array) -> tuple[float, ...]:
    return tuple(float(f"{value:.6g}") for value in values)


def _stacked(groups: Mapping[str, Examples], scaled: Scaling, each: float) -> tuple[Array, Array, Array]:
    x = np.concatenate([scaled.apply(group.features) for group in groups.values()])
    same = np.concatenate([group.same for group in groups.values()]).astype(np.float64)
    weight = np.concatenate([np.full(len(group.same), each / len(group.same)) for group in groups.values()])
    return x, same, weight


def _taught(
    found: Array, streams: tuple[Array, Array, Array], misses: tuple[Array, Array, Array], penalty: float
) -> Array:
    """Guards' and readings' weights, the others held. Near misses have an intercept of their own: how many of them are
    right was chosen by whoever wrote them."""
    x = np.concatenate([streams[0], misses[0]])
    same, weight = (np.concatenate([streams[i], misses[i]]) for i in (1, 2))
    ours = np.concatenate([np.zeros(len(streams[0])), np.ones(len(misses[0]))])
    held = x @ found - x[:, _TAUGHT] @ found[_TAUGHT]
    design = np.concatenate([ours[:, None], x[:, _TAUGHT]], axis=1)
    start = np.concatenate([[0.0], found[_TAUGHT]])
    ridge = np.diag(np.concatenate([[1e-3], np.full(len(_TAUGHT), penalty)]))
    b: Array = start.copy()
    for _ in range(100):
        p = 1.0 / (1.0 + np.exp(-(held + design @ b)))
        curvature = design.T @ (design * (weight * p * (1.0 - p))[:, None]) + ridge
        step = np.linalg.solve(curvature, design.T @ (weight * (same - p)) - ridge @ (b - start))
        b = b + step * min(1.0, 1.0 / max(float(np.abs(step).max()), 1e-12))
        b[1:] = _SIGN * np.maximum(_SIGN * b[1:], 0.0)
    return b[1:]
