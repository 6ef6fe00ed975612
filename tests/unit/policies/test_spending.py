"""Two error budgets as one threshold: whatever comes, what is owed stays within them."""

import random

from hypothesis import given
from hypothesis import strategies as st

from policies.reuse import Budget
from policies.reuse.spending import Limits, Window, add, affordable, alarmed, check, scale, threshold

LIMITS = Limits()
risks = st.lists(st.one_of(st.just(1.0), st.floats(0.0, 0.6)), max_size=300)
rates = st.floats(0.001, 0.2)


def serve(seen: list[float], budget: Budget) -> Window:
    window = Window()
    for risk in seen:
        limit = threshold(window, budget, LIMITS)
        wanted = (risk <= limit or limit < 0) and risk <= 0.5 and affordable(window, risk, budget, LIMITS)
        window = add(window, risk, served=wanted, limits=LIMITS)
    return window


@given(risks, rates, rates)
def test_owed_risk_stays_within_both_budgets(seen: list[float], per_request: float, per_hit: float) -> None:
    """The promise of the module, for any traffic at all."""
    window = serve(seen, Budget(max_error_rate=per_request, max_wrong_hit_rate=per_hit))
    owed = scale(window, LIMITS) * window.spent
    assert owed <= per_request * window.requests + LIMITS.slack + 1e-6
    assert owed <= per_hit * window.served + LIMITS.slack + 1e-6


@given(risks, rates, rates)
def test_a_smaller_budget_never_allows_more(seen: list[float], per_request: float, per_hit: float) -> None:
    """A client's stricter header meets the same window."""
    loose = Budget(max_error_rate=2 * per_request, max_wrong_hit_rate=2 * per_hit)
    strict = Budget(max_error_rate=per_request, max_wrong_hit_rate=per_hit)
    window = serve(seen, loose)
    assert threshold(window, strict, LIMITS) <= threshold(window, loose, LIMITS)
    assert not affordable(window, 0.1, strict, LIMITS) or affordable(window, 0.1, loose, LIMITS)


def test_safe_traffic_is_served_and_hopeless_is_not() -> None:
    """The knapsack: a budget of 1 % buys all requests of risk 0.001 and none of risk 0.4 beside them."""
    window = Window()
    for i in range(2_000):
        window = add(window, 0.001 if i % 2 else 0.4, served=bool(i % 2), limits=LIMITS)
    limit = threshold(window, Budget(max_error_rate=0.01, max_wrong_hit_rate=1.0), LIMITS)
    assert 0.001 <= limit < 0.4


def test_what_stands_out_is_not_among_the_first_hits() -> None:
    """An average over many hits bears an answer of twice the allowed risk; the first twenty do not."""
    budget = Budget(max_error_rate=1.0, max_wrong_hit_rate=0.05)
    few = many = Window()
    for i in range(2_000):
        risk = 0.09 if i % 5 == 0 else 0.001
        few, many = (add(window, risk, served=served, limits=LIMITS) for window, served in ((few, False), (many, True)))
    assert 0.001 <= threshold(few, budget, LIMITS) <= 0.05
    assert threshold(many, budget, LIMITS) >= 0.09


def test_the_brake_fires_on_wrong_hits_and_not_by_itself() -> None:
    """Audits that find one wrong in four stop a budget of 5 %; those that find one in fifty do not, nearly ever."""
    budget = Budget(max_error_rate=0.05, max_wrong_hit_rate=0.05)
    drawn = random.Random(3)

    def fired(share: float) -> bool:
        window = Window(requests=1_000.0, served=500.0)
        for _ in range(200):
            window = check(window, 0.02, wrong=drawn.random() < share)
            if alarmed(window, budget, LIMITS):
                return True
        return False

    assert all(fired(0.25) for _ in range(20))
    assert sum(fired(0.02) for _ in range(40)) <= 2


def test_audits_scale_what_is_feared() -> None:
    """Three times as many wrong as feared must shrink what may be served, and none at all must let it grow."""
    worse = better = Window()
    for i in range(200):
        worse = check(worse, 0.05, wrong=i % 7 == 0)
        better = check(better, 0.05, wrong=False)
    assert scale(worse, LIMITS) > 1.5
    assert scale(better, LIMITS) == LIMITS.trust < 1.0


def test_a_judge_who_errs_is_not_taken_for_wrong_hits() -> None:
    """One in twenty called wrong by a judge who errs that often proves nothing; the same from a judge who does not is
    an alarm. And a judge who errs must not hide hits that really are wrong."""
    budget = Budget(max_error_rate=0.01, max_wrong_hit_rate=0.01)
    known = unknown = worse = Window(requests=1_000.0, served=900.0)
    for i in range(600):
        unknown = check(unknown, 0.005, wrong=i % 20 == 0)
        known = check(known, 0.005, wrong=i % 20 == 0, flip=0.05)
        worse = check(worse, 0.005, wrong=i % 5 == 0, flip=0.05)
    assert alarmed(unknown, budget, LIMITS)
    assert not alarmed(known, budget, LIMITS)
    assert alarmed(worse, budget, LIMITS)
    assert scale(known, LIMITS) == LIMITS.trust
    assert scale(unknown, LIMITS) > 3.0
    assert scale(worse, LIMITS) > 3.0
