"""Which days are out of line: what a person would point at, and nothing else."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.anomalies import causes, flags, part_flags, threshold_among

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


MONTHS = WEEK * 9


def test_a_small_key_that_spends_twenty_times_as_much_is_found() -> None:
    """It is a fifth of the day, which is in line as a whole: nobody saw it."""
    small, others = [usual * CENT // 100 for usual in MONTHS], [usual * CENT for usual in MONTHS]
    small[-7] *= 20
    whole = [a + b for a, b in zip(small, others, strict=True)]
    assert flags(whole, CENT) == []
    ((part, flag),) = part_flags({"small": small, "others": others}, whole, CENT)
    assert (part, flag.day, flag.amount, flag.expected) == ("small", len(MONTHS) - 7, 20 * CENT, CENT)


def test_what_goes_on_for_days_is_found_on_each_of_them_and_what_comes_back_is_the_keys_own_way() -> None:
    """An incident of a week is not over on its second day; a batch that is run every other week is none."""
    steady = [100 * CENT] * 70
    for days in ((40, 41, 42), (40, 54, 68)):
        key = [CENT] * 70
        for day in days:
            key[day] = 60 * CENT
        found = [flag.day for _, flag in part_flags({"key": key}, steady, CENT)]
        assert found == ([40, 41, 42] if days == (40, 41, 42) else [40])


def test_parts_that_are_new_fall_silent_or_matter_to_nobody_are_not_told() -> None:
    """The first two show in the day as a whole; the third is a hundred times as much and still nothing."""
    steady = [100 * CENT] * 40
    parts = {"new": [0] * 35 + [50 * CENT] * 5, "silent": [50 * CENT] * 39 + [0], "tiny": [CENT // 100] * 39 + [CENT]}
    assert part_flags(parts, steady, CENT) == []


def test_a_hundred_parts_that_vary_by_chance_are_told_once_in_weeks() -> None:
    """Each judged as a day is, seven a day would be told, and nobody would look at the page again."""
    told = alone = 0
    for seed in range(3):
        chance = random.Random(seed)
        parts = {
            part: [int(usual * CENT / (part + 1) * chance.lognormvariate(0, 0.4)) for usual in MONTHS]
            for part in range(100)
        }
        whole = [sum(day) for day in zip(*parts.values(), strict=True)]
        told += len(part_flags(parts, whole, CENT // 100))
        alone += sum(flag.score > 0 for amounts in parts.values() for flag in flags(amounts, CENT // 100))
    assert told <= 3 * len(MONTHS) // 14 < alone // 50


def test_more_comparisons_ask_for_more() -> None:
    """One series is judged as ever; the limit grows slowly, or nothing would be found among many."""
    assert threshold_among(1) == pytest.approx(3.5)
    assert 4.5 < threshold_among(101) < 4.7


@given(
    st.dictionaries(st.integers(0, 5), st.lists(st.integers(0, 10**12), min_size=45, max_size=45), max_size=4),
    st.integers(1, 10**9),
)
def test_parts_out_of_line_are_dearer_and_in_order(parts: dict[int, list[int]], floor: int) -> None:
    """Whatever the amounts: never cheaper, never before three weeks, twice the dearest day that is not told itself."""
    whole = [sum(amounts[day] for amounts in parts.values()) for day in range(45)]
    found = part_flags(parts, whole, floor)
    assert [flag.day for _, flag in found] == sorted(flag.day for _, flag in found)
    for part, flag in found:
        assert flag.day >= 21
        assert flag.amount == parts[part][flag.day]
        assert flag.amount - flag.expected >= floor - 1
