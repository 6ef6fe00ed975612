"""Scheduled exports leave no period out and write none that still runs."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from policies.periods import Every, day_span, month_around, next_due


def at(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()


def test_the_first_run_writes_what_is_over() -> None:
    """Nothing is made up for the time before the export was set."""
    assert next_due("day", None, at(2026, 11, 1, 0, 20)) == "2026-10-31"
    assert (
        next_due("day", None, at(2026, 11, 1, 0, 10)) == "2026-10-30"
    )  # yesterday's last requests may still be written
    assert next_due("month", None, at(2026, 11, 1, 0, 20)) == "2026-10"
    assert next_due("month", None, at(2026, 11, 1, 0, 10)) == "2026-09"


@given(st.sampled_from(["day", "month"]), st.floats(1e8, 4e9), st.integers(0, 100), st.integers(0, 3_000_000))
def test_periods_follow_each_other(every: Every, start: float, count: int, step: int) -> None:
    """A gateway that was down for a week catches up day by day."""
    last, now, written = next_due(every, None, start), start, []
    for _ in range(min(count, 20)):
        now += step
        while (due := next_due(every, last, now)) is not None and len(written) < 50:
            written.append(due)
            last = due
    assert written == sorted(set(written))
    for period in written:
        end = day_span(period)[1] if every == "day" else at(int(period[:4]), int(period[5:]), 1)
        assert end <= now
        assert month_around(period) <= datetime.fromtimestamp(now, UTC).strftime("%Y-%m")
