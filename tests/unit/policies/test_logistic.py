"""The online logistic model: it must find what a batch fit finds, and know what it does not know."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from policies.reuse import logistic


def fresh(width: int, deviation: float = 1.0) -> logistic.Belief:
    return logistic.believe(np.zeros(width), np.eye(width) * deviation**2)


def test_it_finds_the_weights_that_made_the_labels() -> None:
    """One step per label must do what a refit would, or the boundary never gets sharp."""
    rng = np.random.default_rng(0)
    truth = np.array([0.5, -1.0, 2.0])
    belief = fresh(3, 2.0)
    for _ in range(4_000):
        x = np.concatenate([[1.0], rng.normal(size=2)])
        belief = logistic.learn(belief, x, bool(rng.random() < logistic.sigmoid(float(truth @ x))))
    mean, covariance = logistic.weights(belief)
    assert np.abs(mean - truth).max() < 0.25
    assert np.sqrt(np.diag(covariance)).max() < 0.1


def test_a_known_flip_rate_is_taken_out() -> None:
    """A judge wrong one time in ten must not cap every probability at 0.9."""
    rng = np.random.default_rng(1)
    told, untold = fresh(1, 3.0), fresh(1, 3.0)
    for _ in range(3_000):
        same = bool((rng.random() < 0.99) != (rng.random() < 0.1))
        told = logistic.learn(told, np.ones(1), same, flip=0.1)
        untold = logistic.learn(untold, np.ones(1), same)
    assert logistic.sigmoid(logistic.guess(told, np.ones(1)).logit) > 0.97
    assert logistic.sigmoid(logistic.guess(untold, np.ones(1)).logit) < 0.93


@given(st.lists(st.tuples(st.floats(-4, 4), st.booleans()), max_size=50), st.floats(0.0, 0.3))
def test_any_labels_leave_a_proper_belief(labels: list[tuple[float, bool]], flip: float) -> None:
    """Contradictory or endless labels must never give a number that is none, or a negative variance."""
    belief = fresh(2)
    for value, same in labels:
        belief = logistic.learn(belief, np.array([1.0, value]), same, flip=flip, memory=0.999)
    mean, covariance = logistic.weights(belief)
    assert np.isfinite(mean).all()
    assert np.linalg.eigvalsh((covariance + covariance.T) / 2).min() > -1e-5
    assert 0.0 <= logistic.sigmoid(logistic.guess(belief, np.array([1.0, 100.0])).logit) <= 1.0
