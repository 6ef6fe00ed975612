"""A logistic model that knows how sure it is: a Gaussian over its weights, moved a little by every label.

Knows vectors and labels. Does not know what they mean. One label costs one rank-one update (no refit, no history kept),
and the labels of a judge who is wrong now and then count as what they are.
"""

import math
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Belief(Struct, frozen=True, kw_only=True):
    """Weights: `mean` of `width` and covariance of `width` squared numbers, float32 little-endian."""

    mean: bytes
    covariance: bytes

    @property
    def width(self) -> int:
        return len(self.mean) // 4


class Guess(NamedTuple):
    """The logit's mean and standard deviation."""

    logit: float
    spread: float


def believe(mean: Array, covariance: Array) -> Belief:
    return Belief(mean=mean.astype("<f4").tobytes(), covariance=covariance.astype("<f4").tobytes())


def weights(belief: Belief) -> tuple[Array, Array]:
    """The mean and the covariance as arrays of their own."""
    mean = np.frombuffer(belief.mean, "<f4").astype(np.float64)
    covariance = np.frombuffer(belief.covariance, "<f4").astype(np.float64).reshape(len(mean), len(mean))
    return mean, covariance


def guess(belief: Belief, x: Array) -> Guess:
    mean = np.frombuffer(belief.mean, "<f4")
    covariance = np.frombuffer(belief.covariance, "<f4").reshape(len(mean), len(mean))
    short = x.astype(np.float32)
    return Guess(float(mean @ short), math.sqrt(max(0.0, float(short @ covariance @ short))))


def sigmoid(z: float) -> float:
    return 1.0 / (1.0 + math.exp(-z)) if z > -30.0 else math.exp(max(z, -700.0))


def learn(
    belief: Belief, x: Array, same: bool, *, flip: float = 0.0, memory: float = 1.0, weight: float = 1.0
) -> Belief:
    """The belief after one label.

    One Newton step of the log posterior (extended Kalman). `flip`: chance that the label is the wrong one. `memory`
    below 1 lets old labels fade: the covariance grows by 1/memory before the step. `weight`: as how many labels it
    counts.
    """
    mean, covariance = weights(belief)
    covariance /= memory
    p = sigmoid(float(mean @ x))
    seen = flip + (1.0 - 2.0 * flip) * p
    slope = (1.0 - 2.0 * flip) * p * (1.0 - p)
    gradient = weight * slope * (float(same) - seen) / max(seen * (1.0 - seen), 1e-6)
    curvature = weight * slope * slope / max(seen * (1.0 - seen), 1e-6) + 1e-9
    reach = covariance @ x
    gain = 1.0 / (1.0 + curvature * float(x @ reach))
    covariance -= np.outer(reach, reach) * (curvature * gain)
    return believe(mean + reach * (gradient * gain), covariance)
