"""Which month an entry belongs to, and what keeps a month from being closed."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.months import (
    Process,
    Standing,
    blockers,
    booked_in,
    following,
    may_be_late,
    month_of,
    span,
)

INSTANT = st.floats(0, 4e9)


def at(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()


@given(INSTANT)
def test_every_instant_lies_in_its_month(instant: float) -> None:
    """An entry in no month, or in two, would be missing from a statement or stand in two of them."""
    its = span(month_of(instant))
    assert its.start <= instant < its.end
    assert span(following(month_of(instant))).start == its.end


@given(INSTANT, INSTANT)
def test_nothing_is_booked_in_a_closed_month(admitted: float, sealed_at: float) -> None:
    """A sealed month may never change, and what comes too late must land in exactly the first open one."""
    sealed = month_of(sealed_at)
    booked = booked_in(admitted, sealed)
    assert booked > sealed
    assert booked == max(month_of(admitted), following(sealed))
    assert booked_in(admitted, None) == month_of(admitted)


@given(INSTANT, st.floats(0, 86_399))
def test_what_could_be_late_is_always_asked_about(now: float, behind: float) -> None:
    """A process whose clock is hours behind would else post into a month that others have closed."""
    closed_month_end = span(month_of(now)).start
    assert may_be_late(closed_month_end - 1, now - behind)


@pytest.mark.parametrize(
    "text",
    [
        "2026-13",
        "2026-1",
        "202610",
        "2026-00",
        "",
        "0000-01",
        "2026-10-01",
        "9999-12",
        "2026-10\n",
        "\u0662\u0660\u0662\u0666-10",
    ],
)
def test_a_month_is_written_one_way(text: str) -> None:
    """Month names come from addresses and command lines."""
    with pytest.raises(ValueError, match="YYYY-MM"):
        span(text)


def kinds(standing: Standing, now: float = at(2026, 11, 2)) -> list[tuple[str, bool]]:
    return [(found.kind, found.forcible) for found in blockers("2026-10", standing, now, 60.0)]


def test_a_running_month_is_never_closed() -> None:
    """Not even by force: what is spent tomorrow has no other month to go to."""
    assert kinds(Standing(), at(2026, 10, 31, 23, 59, 59)) == [("running", False)]
    assert kinds(Standing(), at(2026, 11, 1)) == []


def test_a_quiet_month_can_be_closed() -> None:
    """A process that lives, has said so after the month's end and works on later attempts only, is no reason."""
    process = Process(id="b", host="h", seen=at(2026, 11, 2) - 5, journalled=True, oldest=at(2026, 11, 1, 4))
    assert kinds(Standing(processes=[process])) == []


@pytest.mark.parametrize(
    ("seen", "oldest", "kind"),
    [
        (at(2026, 11, 2) - 61, None, "lost"),
        (at(2026, 11, 2) - 5, at(2026, 10, 31, 23, 59), "process"),
    ],
)
def test_processes_that_may_still_owe_entries_are_named(seen: float, oldest: float | None, kind: str) -> None:
    """An attempt that was sent and is in no entry yet would be missing from the sealed sum."""
    process = Process(id="b", host="h", seen=seen, journalled=True, oldest=oldest)
    assert kinds(Standing(processes=[process])) == [(kind, True)]


def test_a_process_that_has_not_reported_since_the_end_is_named() -> None:
    """What it said before the end proves nothing about the last seconds of the month."""
    process = Process(id="b", host="h", seen=at(2026, 10, 31, 23, 59, 50), journalled=True)
    assert kinds(Standing(processes=[process]), at(2026, 11, 1, 0, 0, 5)) == [("process", True)]


def test_a_month_whose_usage_has_gone_is_closed_by_force_only() -> None:
    """What a seal says of savings would be nothing, and for good."""
    assert kinds(Standing(kept_from=at(2026, 10, 2))) == [("pruned", True)]
    assert kinds(Standing(kept_from=at(2026, 10, 1))) == []


def test_every_other_reason_is_told_and_the_order_is_not_a_matter_of_force() -> None:
    """Months are chained: closing one before the month before it would break the chain for good."""
    standing = Standing(earlier=["2026-09"], leases=1, leased_nano=5, conflicts=2)
    assert kinds(standing) == [("earlier", False), ("lease", True), ("conflict", True)]


def test_a_month_before_the_first_entry_is_a_mistyped_one() -> None:
    """Closing cannot be undone: 2006 for 2026 would list twenty years of empty months for ever."""
    assert kinds(Standing(first=at(2026, 11, 1))) == [("nothing", False)]
    assert kinds(Standing(first=at(2026, 10, 31, 23, 59, 59))) == []
