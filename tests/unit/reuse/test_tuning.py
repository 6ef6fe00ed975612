"""The arithmetic behind `nearhit cache tune`: other budgets over traffic that has passed."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.reuse import Budget
from policies.tuning import Seen, Start, as_it_was, replay, wilson, within_reach, wrong_share

SCOPE = "0123456789ab"


def traffic(count: int, seed: int = 7, *, judged: float = 0.5) -> list[Seen]:
    """Requests whose risk is what it says: half have something near, and a risk of r is wrong r of the time."""
    draw = random.Random(seed)
    found: list[Seen] = []
    for _ in range(count):
        if draw.random() < 0.5:
            found.append(Seen(scope=SCOPE, worth=1_000))
            continue
        risk = draw.choice([0.002, 0.01, 0.05, 0.2])
        wrong = draw.random() < risk
        told = wrong if draw.random() < judged else None
        found.append(Seen(scope=SCOPE, risk=risk, doubt=risk, worth=1_000, wrong=told))
    return found


def test_a_wider_budget_serves_and_saves_more_and_costs_more_errors() -> None:
    """An operator compares budgets; a curve that goes the wrong way would be believed."""
    seen = traffic(4_000)
    choices = [replay(seen, Budget(max_error_rate=rate, max_wrong_hit_rate=0.1)) for rate in (0.002, 0.01, 0.03)]
    assert [choice.hits for choice in choices] == sorted(choice.hits for choice in choices)
    assert choices[0].hits < choices[-1].hits
    assert [choice.saved_nano for choice in choices] == [1_000 * choice.hits for choice in choices]
    errors = [choice.wrong_per_request.rate or 0.0 for choice in choices]
    assert errors[0] < errors[-1]
    for choice in choices:
        assert (choice.wrong_per_request.rate or 0.0) <= choice.budget.max_error_rate * 1.5
        assert choice.wrong_per_hit.low <= (choice.wrong_per_hit.rate or 0.0) <= choice.wrong_per_hit.high


def test_a_new_scope_serves_what_the_prior_allows_and_later_what_its_own_window_does() -> None:
    """A small gateway that serves from its first request on was told that the same budget would have served nothing."""
    seen = [Seen(scope=SCOPE, risk=0.04, doubt=0.04, worth=1, wrong=False) for _ in range(30)]
    budget = Budget(max_error_rate=0.05, max_wrong_hit_rate=0.05)
    start = Start(threshold=0.05, labels=10, requests=10.0)
    assert replay(seen, budget, start=start).hits >= 10
    assert replay(seen[:10], budget, start=start).hits == 10
    assert replay(seen[:10], budget, start=Start(threshold=0.01, labels=10)).hits == 0
    assert replay(seen[:10], budget, start=Start(labels=10)).hits == 0


@pytest.mark.parametrize("budget", [Budget(max_error_rate=0.0), Budget(max_wrong_hit_rate=0.0)])
def test_a_budget_of_nothing_serves_nothing(budget: Budget) -> None:
    """Zero means exact only; also where the log says that nothing was ever wrong."""
    seen = [Seen(scope=SCOPE, risk=0.0, doubt=0.0, worth=5, wrong=False) for _ in range(500)]
    choice = replay(seen, budget)
    assert (choice.hits, choice.saved_nano, choice.wrong_per_hit.rate) == (0, 0, None)


def test_wrong_ones_found_by_audits_stop_a_scope_that_thought_itself_safe() -> None:
    """Estimates that audits have disproved must not promise savings."""
    lucky = [Seen(scope="lucky", risk=0.001, doubt=0.001, worth=1, wrong=False) for _ in range(600)]
    unlucky = [Seen(scope="unlucky", risk=0.001, doubt=0.001, worth=1, wrong=place % 2 == 0) for place in range(600)]
    budget = Budget(max_error_rate=0.01, max_wrong_hit_rate=0.05)
    assert replay(lucky, budget).hits > 500
    assert replay(unlucky, budget).hits < 100


def test_exact_hits_need_no_budget_and_guarded_neighbours_are_never_served() -> None:
    """Both would flatter every budget alike."""
    seen = [Seen(scope=SCOPE, exact=True, worth=9), Seen(scope=SCOPE, risk=None, worth=9)] * 50
    choice = replay(seen, Budget(max_error_rate=1.0, max_wrong_hit_rate=1.0))
    assert (choice.requests, choice.exact, choice.hits) == (100, 50, 0)


def test_what_was_served_is_told_as_it_was() -> None:
    """The line that is compared with must be the log itself, not a replay."""
    seen = [Seen(scope=SCOPE, served=True, risk=0.01, doubt=0.01, worth=7, wrong=place == 0) for place in range(10)]
    told = as_it_was([*seen, Seen(scope=SCOPE)], Budget())
    assert (told.hits, told.saved_nano, told.judged) == (10, 70, 10)
    assert told.wrong_per_hit.rate == pytest.approx(0.1)
    assert told.wrong_per_request.rate == pytest.approx(0.1 * 10 / 11)


def test_nobody_judged_means_the_widest_interval() -> None:
    """A model's own opinion of itself is no measurement."""
    found = wrong_share([Seen(scope=SCOPE, served=True, risk=0.01, doubt=0.004)] * 30)
    assert (found.rate, found.low, found.high) == (pytest.approx(0.004), 0.0, 1.0)


def test_a_part_judged_often_does_not_speak_for_one_judged_seldom() -> None:
    """Misses are compared nearly always, hits rarely: pooled, the misses' errors would count as the hits'."""
    hits = [Seen(scope=SCOPE, served=True, risk=0.01, wrong=False if place < 50 else None) for place in range(900)]
    misses = [Seen(scope=SCOPE, risk=0.2, wrong=place % 2 == 0) for place in range(100)]
    found = wrong_share([*hits, *misses])
    assert found.rate == pytest.approx(0.9 * 0.0 + 0.1 * 0.5)
    assert found.low < 0.05 < found.high < 0.12


def test_shadow_counts_the_least_risky_first_within_both_budgets() -> None:
    """What watching would have saved must be what serving could have saved, not everything that came near."""
    seen = [Seen(scope=SCOPE, risk=risk, worth=10) for risk in (0.9, 0.02, 0.04, 0.3)]
    assert within_reach(seen, 10, Budget(max_error_rate=0.01, max_wrong_hit_rate=0.05)) == (2, 20)
    assert within_reach(seen, 10, Budget(max_error_rate=0.01, max_wrong_hit_rate=0.01)) == (0, 0)
    assert within_reach([], 0, Budget()) == (0, 0)


@given(judged=st.integers(0, 400), share=st.floats(0, 1))
def test_the_interval_holds_its_share(judged: int, share: float) -> None:
    """Also at the ends, where the plain formula gives an interval of no width or beyond 0 to 1."""
    wrong = round(judged * share)
    found = wilson(wrong, judged)
    assert 0.0 <= found.low <= found.high <= 1.0
    if judged:
        assert found.rate is not None
        assert found.low <= found.rate <= found.high
        assert found.high > found.low
