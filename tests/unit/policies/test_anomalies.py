"""Which days are out of line: what a person would point at, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.anomalies import causes, flags

CENT = 10_000_000
WEEK = [100, 110, 105, 95, 100, 20, 10]  # a quiet weekend


def cents(*amounts: int) -> list[int]:
    return [amount * CENT for amount in amounts]


def test_a_day_that_costs_three_times_as_much_is_found() -> None:
    """The one thing the page is for."""
    days = cents(*WEEK * 5, 320)
    (flag,) = flags(days, CENT)
    assert (flag.day, flag.amount, flag.expected) == (35, 320 * CENT, 100 * CENT)
    assert flag.score > 0


def test_a_quiet_sunday_is_in_line_and_a_busy_one_is_not() -> None:
    """Compared with all days a Sunday at a tenth would be an anomaly every week."""
    assert flags(cents(*WEEK * 6), CENT) == []
    busy = [*WEEK * 5, *WEEK[:6], 100]
    assert [flag.day for flag in flags(cents(*busy), CENT)] == [41]


def test_a_day_on_which_nothing_was_spent_is_found_too() -> None:
    """An outage shows in the bill first."""
    (flag,) = flags(cents(*WEEK * 5, 0), CENT)
    assert flag.score < 0


@pytest.mark.parametrize("days", [[], cents(5), cents(*[100] * 20, 900)])
def test_without_three_weeks_of_days_nothing_is_judged(days: list[int]) -> None:
    """The first days of an installation would all be anomalies."""
    assert flags(days, CENT) == []


def test_cents_are_nothing_to_look_at() -> None:
    """From one cent to three is three times as much, and nobody's business."""
    assert flags(cents(*[1] * 30, 2), 2 * CENT) == []


@given(st.lists(st.integers(0, 10**12), max_size=60), st.integers(1, 10**9))
def test_flags_are_days_in_order_and_far_from_what_was_expected(days: list[int], floor: int) -> None:
    """Whatever the amounts: indices in order, and each further off than the floor."""
    found = flags(days, floor)
    assert [flag.day for flag in found] == sorted({flag.day for flag in found})
    for flag in found:
        assert flag.amount == days[flag.day]
        assert abs(flag.amount - flag.expected) >= floor - 1


def test_causes_are_what_moved_most_either_way() -> None:
    """A key that is new, and one that fell silent, explain a day as much as one that grew."""
    moved = causes({"new": 50, "same": 70, "grew": 90}, {"same": 70, "grew": 80, "gone": 30})
    assert moved == [("new", 50), ("gone", -30), ("grew", 10)]
