"""What is sent again, when, and how seldom."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.retry import LONGEST_PAUSE, RetryBudget, pause, worth_retrying


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 409, 413, 422, 451])
def test_a_refusal_is_never_repeated(status: int) -> None:
    """The same request gets the same no, and somebody waits for it."""
    assert not worth_retrying(status, refused=True)


@pytest.mark.parametrize("status", [408, 429])
def test_patience_is_asked_for_by_two_refusals(status: int) -> None:
    """These two say that a later attempt may succeed."""
    assert worth_retrying(status, refused=True)


@pytest.mark.parametrize(
    ("status", "worth"), [(500, True), (502, True), (503, True), (504, True), (529, True), (501, False)]
)
def test_failures_are_repeated_unless_they_are_for_ever(status: int, worth: bool) -> None:
    """A server that does not implement something will not have implemented it in a second."""
    assert worth_retrying(status, refused=False) is worth


@given(st.integers(0, 100), st.floats(0, 1, exclude_max=True), st.none() | st.floats(0, 1_000))
def test_a_pause_is_bounded_and_never_shorter_than_asked(again: int, random: float, asked: float | None) -> None:
    """Coming back earlier than told earns the next refusal; waiting for ever is none better."""
    wait = pause(again, random, retry_after=asked)
    assert (asked or 0.0) <= wait <= (asked or 0.0) + LONGEST_PAUSE


def test_pauses_grow_and_spread() -> None:
    """Full jitter: the longest pause doubles, the shortest is nothing."""
    assert [pause(again, 0.999_999) for again in range(3)] == pytest.approx([0.25, 0.5, 1.0], rel=1e-3)
    assert pause(5, 0.0) == 0.0


@given(st.integers(1, 3_000))
def test_an_outage_is_not_multiplied(requests: int) -> None:
    """When everything fails, retries stay a fifth of the requests, beyond the first few."""
    budget = RetryBudget()
    retries = 0
    for _ in range(requests):
        budget.began()
        while budget.allows():
            retries += 1
        budget.ended()
    assert retries <= 3 + 0.2 * requests + 1e-6


@given(st.lists(st.sampled_from(["began", "ended", "allows"]), max_size=200))
def test_the_budget_never_runs_below_nothing(steps: list[str]) -> None:
    """Whatever the order of events, nobody retries on credit and nobody saves up without end."""
    budget = RetryBudget()
    for step in steps:
        getattr(budget, step)()
        assert 0.0 <= budget.balance <= max(3.0, 0.2 * len(steps))


@given(st.integers(15, 1_000))
def test_a_quiet_day_pays_for_no_storm(requests: int) -> None:
    """Whatever was saved up: of requests that come at once a fifth is sent again, not that and the savings."""
    budget = RetryBudget()
    for _ in range(1_000):
        budget.began()
        budget.ended()
    for _ in range(requests):
        budget.began()
    assert sum(budget.allows() for _ in range(requests)) <= 0.2 * requests


def test_what_is_borrowed_is_paid_by_those_that_follow() -> None:
    """Finding out about a place is never refused, and yet no way around the budget."""
    budget = RetryBudget(reserve=1.0)
    assert budget.finds_out()
    assert budget.finds_out()
    for _ in range(9):
        budget.began()
        assert not budget.allows()
        budget.ended()
    budget.repay()
    assert budget.allows()
    assert not budget.allows()


@given(st.integers(15, 200), st.integers(1, 50))
def test_a_crowd_finds_out_with_its_share_and_not_on_credit(requests: int, places: int) -> None:
    """With credit for every place twenty requests before six places made a quarter more calls than there were."""
    budget = RetryBudget()
    for _ in range(requests):
        budget.began()
    assert sum(budget.finds_out() for _ in range(places)) <= 0.2 * requests


def test_what_is_to_be_spared_stays() -> None:
    """A second try here must not cost the only try elsewhere."""
    budget = RetryBudget(reserve=3.0)
    assert budget.allows(2)
    assert not budget.allows(2)
    assert budget.allows(1)
