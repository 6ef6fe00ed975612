"""The curve between what was estimated and what came true."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.reuse.curve import Curve, learn, risk
from policies.reuse.logistic import sigmoid

logits = st.floats(-8.0, 8.0)


def taught(steepness: float, count: int, *, most: float = 4.0, flip: float = 0.0, told: float = 0.0) -> Curve:
    """After `count` labels of logits up to `most`, whose truth is `steepness` times as steep as estimated."""
    drawn = random.Random(1)
    curve = Curve()
    for _ in range(count):
        logit = drawn.uniform(-1.0, most)
        same = drawn.random() < sigmoid(steepness * logit)
        curve = learn(curve, logit, same != (drawn.random() < flip), flip=told, memory=0.9995)
    return curve


def test_a_new_scope_takes_estimates_at_their_word() -> None:
    """The prior of the curve must not move what the prior of the weights says, but for caution."""
    assert risk(Curve(), 3.0, 0.0) == pytest.approx(1.0 - sigmoid(3.0))
    assert risk(Curve(), 3.0, 0.5) > risk(Curve(), 3.0, 0.0)


@pytest.mark.parametrize("steepness", [0.6, 1.0, 1.5])
def test_labels_of_what_was_not_served_tell_of_what_was(steepness: float) -> None:
    """The point of a line: risks beyond the labels follow the labels, not the estimate."""
    curve = taught(steepness, 3_000, most=2.0)
    assert risk(curve, 3.5, 0.0) == pytest.approx(1.0 - sigmoid(3.5 * steepness), rel=0.5)


def test_a_judge_who_errs_does_not_flatten_it_once_that_is_known() -> None:
    """Flips make right answers look wrong at any logit; told of them, the curve looks through."""
    blind, told = taught(1.0, 3_000, flip=0.1), taught(1.0, 3_000, flip=0.1, told=0.1)
    assert risk(blind, 3.5, 0.0) > 2 * (1.0 - sigmoid(3.5))
    assert risk(told, 3.5, 0.0) < risk(blind, 3.5, 0.0) / 1.5


@given(st.lists(st.tuples(logits, st.booleans(), st.floats(0.0, 0.3)), max_size=80), st.lists(logits, min_size=2))
def test_a_higher_estimate_is_never_the_higher_risk(
    labels: list[tuple[float, bool, float]], asked: list[float]
) -> None:
    """Whatever the labels: the mean is monotone, risks are probabilities, and caution only adds to them."""
    curve = Curve()
    for logit, same, flip in labels:
        curve = learn(curve, logit, same, flip=flip, memory=0.9995)
    found = [risk(curve, logit, 0.0) for logit in sorted(asked)]
    assert found == sorted(found, reverse=True)
    assert all(0.0 <= low <= risk(curve, z, 1.0) <= 1.0 for low, z in zip(found, sorted(asked), strict=True))


def test_it_forgets_towards_the_curve_of_a_new_scope() -> None:
    """Traffic changes: knowledge of long ago must not stay as firm as on its first day."""
    old = taught(2.0, 2_000)
    later = old
    for _ in range(20_000):
        later = learn(later, -0.9, False, flip=0.499, memory=0.9995)
    assert later.precision[2] < old.precision[2]
    assert abs(later.slope - 1.0) < abs(old.slope - 1.0)
