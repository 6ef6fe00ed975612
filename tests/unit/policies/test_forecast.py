"""The forecast of spending: right on steady spending, honest about its range, never absurd."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.forecast import FEWEST, _quantile, forecast

DAY = 86_400.0


def test_steady_spending_is_a_straight_line() -> None:
    """10 a day for ten more days from 40: 140, and a limit of 100 is met after six days, with no doubt about it."""
    found = forecast([10] * 7, DAY, 40, 100, 0.0, 10 * DAY)
    assert found is not None
    assert (found.spent, found.low, found.high) == (140, 140, 140)
    assert found.runs_out == pytest.approx(6 * DAY)
    assert found.earliest == pytest.approx(6 * DAY)
    assert found.latest == pytest.approx(6 * DAY)


def test_a_limit_that_is_far_is_not_reached() -> None:
    """None says that the window ends first."""
    found = forecast([10] * 7, DAY, 40, 1_000, 0.0, 10 * DAY)
    assert found is not None
    assert (found.runs_out, found.earliest, found.latest) == (None, None, None)


def test_too_little_of_the_past_is_no_forecast() -> None:
    """Two days have no spread worth a range; a window that is over has no future."""
    assert forecast([10] * (FEWEST - 1), DAY, 40, 100, 0.0, DAY) is None
    assert forecast([10] * 9, DAY, 40, 100, DAY, DAY) is None


@given(
    past=st.lists(st.integers(0, 10**12), min_size=FEWEST, max_size=60),
    spent=st.integers(0, 10**13),
    limit=st.integers(0, 10**13),
    ahead=st.floats(0.01, 400),
)
def test_the_range_holds_the_middle_and_the_order_of_instants(
    past: list[int], spent: int, limit: int, ahead: float
) -> None:
    """A range that does not hold its own middle, or falls below what is spent, would be shown to people as it is."""
    found = forecast(past, DAY, spent, limit, 0.0, ahead * DAY)
    assert found is not None
    assert spent <= found.low <= found.spent <= found.high
    order = [found.earliest, found.runs_out, found.latest]
    known = [one for one in order if one is not None]
    assert known == sorted(known)
    assert order == known + [None] * (3 - len(known))
    assert all(0 <= one <= ahead * DAY + 1 for one in known)


def test_the_range_covers_what_happens_about_as_often_as_it_says() -> None:
    """80 % is a promise; measured on made-up spending of several shapes."""
    seeded, inside, runs = random.Random(5), 0, 2_000
    for _ in range(runs):
        draw = seeded.choice(
            [lambda: seeded.gauss(100, 20), lambda: seeded.uniform(0, 200), lambda: seeded.expovariate(0.01)]
        )
        past = [max(0, round(draw() * 1e6)) for _ in range(seeded.choice([5, 14, 28]))]
        future = sum(max(0, round(draw() * 1e6)) for _ in range(10))
        found = forecast(past, DAY, 0, None, 0.0, 10 * DAY)
        assert found is not None
        inside += found.low <= future <= found.high
    assert 0.75 <= inside / runs <= 0.88


@pytest.mark.parametrize(("freedom", "right"), [(1, 3.0777), (2, 1.8856), (3, 1.6377), (5, 1.4759), (30, 1.3104)])
def test_students_quantile(freedom: int, right: float) -> None:
    """Against the table in any textbook."""
    assert _quantile(freedom) == pytest.approx(right, rel=3e-3)
