"""Which differences between ledger and invoice have an explanation."""

import pytest

from policies.invoices import Charged, canonical, compare


def charged(amount: int, estimated: int = 0, entries: int = 1) -> Charged:
    return Charged(amount_nano=amount, estimated_nano=estimated, entries=entries)


@pytest.mark.parametrize(
    ("mine", "theirs", "why"),
    [
        (charged(1_000_000), 1_000_000, "agrees"),
        (charged(1_000_900), 1_000_000, "agrees"),
        (charged(1_001_100), 1_000_000, "unexplained"),
        (charged(998_900), 1_000_000, "unexplained"),
        (charged(1_300_000, estimated=400_000), 1_000_000, "estimated"),
        (charged(1_500_000, estimated=400_000), 1_000_000, "unexplained"),
        (charged(700_000, estimated=400_000), 1_000_000, "unexplained"),
        (charged(100, entries=100), 1, "agrees"),
        (charged(0), 5_000, "unexplained"),
    ],
)
def test_a_difference_is_explained_or_not(mine: Charged, theirs: int, why: str) -> None:
    """Estimates may be above the bill and never below it; rounding makes a nano-USD per entry."""
    (row,) = compare({(1, "m"): mine}, {(1, "m"): theirs}, 0.001)
    assert (row.why, row.difference_nano) == (why, mine.amount_nano - theirs)


def test_attempts_around_midnight_are_billed_on_the_other_day() -> None:
    """Two differences that cancel out within a model are one attempt seen by two clocks."""
    ledger = {(1, "m"): charged(1_000_000), (2, "m"): charged(500_000), (2, "other"): charged(7)}
    invoice = {(1, "m"): 900_000, (2, "m"): 600_000, (2, "other"): 900_007}
    found = {(row.day, row.model): row.why for row in compare(ledger, invoice, 0.0)}
    assert found == {(1, "m"): "another day", (2, "m"): "another day", (2, "other"): "unexplained"}


def test_what_only_one_side_has_is_told() -> None:
    """A model that is missing on the invoice is a difference as well."""
    rows = compare({(1, "a"): charged(5_000)}, {(1, "b"): 6_000}, 0.1)
    assert [(row.model, row.difference_nano, row.why) for row in rows] == [
        ("a", 5_000, "unexplained"),
        ("b", -6_000, "unexplained"),
    ]


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("Claude Haiku 4.5", "claude-haiku-4-5-20251001"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("openai/gpt-5-mini", "openai-gpt-5-mini"),
        ("chatgpt-4o-latest", "chatgpt-4o"),
    ],
)
def test_one_model_has_many_names(name: str, same: str) -> None:
    """Invoices name dated versions and display names."""
    assert canonical(name) == canonical(same)


def test_versions_are_not_dates() -> None:
    """`gpt-4` and `gpt-4.1` cost different amounts."""
    assert len({canonical(name) for name in ("gpt-4", "gpt-4.1", "gpt-4-1106", "o3", "o3-mini")}) == 5
