"""Windows of budgets: pure functions of kind, zone and instant, over every zone and every oddity of the calendar."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.budget import (
    FOREVER,
    KINDS,
    Budget,
    Period,
    WindowKind,
    check_scope,
    crossed,
    is_roomy,
    lease_amount,
    parse_window_id,
    period,
    runs_out,
    scopes_of,
    told,
    window_id,
)
from tests.proofs import examples

ZONES = st.sampled_from(sorted(available_timezones()))
INSTANTS = st.floats(0, 2_500_000_000)  # 1970 to 2049
KIND = st.sampled_from(KINDS)


@settings(max_examples=examples(300))
@given(KIND, ZONES, INSTANTS)
def test_windows_hold_their_instant_and_touch_each_other(kind: WindowKind, name: str, instant: float) -> None:
    """No instant is in no window or in two, and no window is empty, in any zone, through every change of clocks."""
    zone = ZoneInfo(name)
    found = period(kind, zone, instant)
    assert found.start <= instant < found.end
    if kind != "total":
        assert period(kind, zone, found.end).start == found.end
        assert period(kind, zone, found.start - 1).end == found.start
        assert period(kind, zone, found.end - 1) == found


@settings(max_examples=examples(200))
@given(st.sampled_from(["day", "week", "month", "quarter", "year"]), ZONES, st.floats(1e9, 2.5e9))
def test_windows_start_where_the_local_calendar_does(kind: WindowKind, name: str, instant: float) -> None:
    """A window starts at the first second that the local calendar shows its first date."""
    zone = ZoneInfo(name)
    start = period(kind, zone, instant).start
    first, before = (datetime.fromtimestamp(at, zone).date() for at in (start, start - 1))
    assert before < first
    if kind == "week":
        assert first.isoweekday() == 1 or before < first - timedelta(days=1)
    if kind in ("month", "quarter", "year"):
        assert first.day == 1
        assert kind != "quarter" or first.month in (1, 4, 7, 10)
        assert kind != "year" or first.month == 1


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", "2026-03-29", 23),
        ("Europe/Berlin", "2026-10-25", 25),
        ("America/Sao_Paulo", "2018-11-04", 23),  # midnight itself was skipped
        ("Asia/Beirut", "2022-03-27", 23),
        ("Australia/Lord_Howe", "2026-10-04", 23.5),
        ("Pacific/Apia", "2011-12-29", 24),  # followed by a date that never happened
        ("Australia/Lord_Howe", "2026-04-05", 24.5),
        ("Pacific/Chatham", "2026-09-27", 23),  # at 02:45
        ("Pacific/Chatham", "2026-04-05", 25),
        ("Africa/Casablanca", "2026-02-15", 25),  # Ramadan: back to UTC, which tzdata calls the summer time of UTC+1
        ("Africa/Casablanca", "2026-03-22", 23),
        ("America/Asuncion", "2024-10-06", 23),  # midnight itself, for the last time
        ("America/Asuncion", "2024-03-23", 25),
        ("Asia/Kathmandu", "1986-01-01", 23.75),  # from +05:30 to +05:45
        ("UTC", "2026-06-01", 24),
    ],
)
def test_days_are_as_long_as_they_were(zone: str, day: str, hours: float) -> None:
    """Days are not 24 hours long, and a limit per day means the day that people there lived."""
    noon = datetime.fromisoformat(f"{day}T12:00").replace(tzinfo=ZoneInfo(zone)).timestamp()
    found = period("day", ZoneInfo(zone), noon)
    assert (found.end - found.start) / 3600 == hours


def test_a_date_that_never_happened_makes_no_window() -> None:
    """Samoa went from the 29th to the 31st of December 2011: the days around the gap touch."""
    zone = ZoneInfo("Pacific/Apia")
    before = period("day", zone, datetime(2011, 12, 29, 12, tzinfo=zone).timestamp())
    after = period("day", zone, datetime(2011, 12, 31, 12, tzinfo=zone).timestamp())
    assert before.end == after.start


def test_an_hour_that_happens_twice_around_midnight_stays_in_one_day() -> None:
    """Where clocks go back over midnight the new date has begun already, and does not begin again."""
    zone = ZoneInfo("America/Havana")  # 2025-11-02 01:00 -> 00:00
    midnight = int(datetime(2025, 11, 2, tzinfo=zone).timestamp())
    first = period("day", zone, midnight)
    assert first.start == midnight
    assert (first.end - first.start) / 3600 == 25
    assert period("day", zone, midnight + 5_400) == first


@given(
    st.sampled_from(["org", "team:a", "project:a/b", "tag:k=v|w"]), KIND, st.integers(0, 10**9), st.integers(1, 10**9)
)
def test_a_window_is_told_by_its_id(scope: str, kind: WindowKind, start: int, length: int) -> None:
    """A journal that outlives its process names windows by id only, so the id must hold everything."""
    budget = Budget(scope=scope, limit_nano=1, window=kind)
    span = Period(start, start + length)
    assert parse_window_id(window_id(budget, span)) == (scope, kind, span)


@pytest.mark.parametrize(
    "scope", ["org", "team:acme", "project:acme/app", "key:k", "user:u 1", "model:gpt/5", "tag:k=v"]
)
def test_known_scopes_are_accepted(scope: str) -> None:
    """Every scope that the contract names can carry a budget."""
    assert check_scope(scope) == scope


@pytest.mark.parametrize(
    "scope", ["", "orga", "team:", "team", "project:app", "tag:k", "key:" + "x" * 300, "user:a|b", "pet:x"]
)
def test_unknown_scopes_are_refused(scope: str) -> None:
    """A budget that no request could ever fall under is a mistake, told at once."""
    with pytest.raises(ValueError, match="scope"):
        check_scope(scope)


def test_a_request_falls_under_all_its_scopes() -> None:
    """Limits of every kind apply at the same time."""
    found = scopes_of("acme", "app", "k1", "u1", ["smart", "gpt", "openai/gpt", "gpt"], [("a", "b"), ("a", "b")])
    assert sorted(found) == sorted(
        [
            "org",
            "team:acme",
            "project:acme/app",
            "key:k1",
            "user:u1",
            "model:smart",
            "model:gpt",
            "model:openai/gpt",
            "tag:a=b",
        ]
    )
    assert all(check_scope(scope) for scope in found)


AMOUNT = st.integers(0, 10**12)


@given(AMOUNT, AMOUNT, AMOUNT, AMOUNT, AMOUNT, st.integers(1, 64))
def test_a_lease_never_exceeds_what_is_free(
    limit: int, free: int, demand: int, least: int, appetite: int, processes: int
) -> None:
    """No lease is larger than what is left, so the limit holds; near it none is larger than needed, so it is sharp."""
    demand = max(demand, least)
    amount = lease_amount(limit, free, demand, least, appetite, processes)
    assert 0 <= amount <= max(0, free)
    assert amount == 0 or amount >= min(least, free)
    if free >= least:
        assert amount >= min(demand, free)
    if not is_roomy(limit, free):
        assert amount <= demand


def test_alerts_fire_when_they_are_crossed() -> None:
    """A threshold is told when spending goes over it, not before and not again."""
    assert crossed((0.5, 0.8, 0.95), 100, 0, 49) == []
    assert crossed((0.5, 0.8, 0.95), 100, 49, 80) == [0.5, 0.8]
    assert crossed((0.5, 0.8, 0.95), 100, 80, 81) == []


def test_the_pace_tells_when_money_runs_out() -> None:
    """Half the money in a tenth of the window: it is gone after two tenths."""
    span = Period(0, 1_000)
    assert runs_out(span, 100, 50, 100.0) == 200.0
    assert runs_out(span, 100, 5, 100.0) is None
    assert runs_out(span, 100, 0, 100.0) is None
    assert runs_out(span, 100, 100, 100.0) == 100.0


def test_the_pace_of_a_budget_for_good_counts_from_its_beginning() -> None:
    """What was spent before it was set is spent, and says nothing of how fast it goes on."""
    since = Period(1_000, FOREVER)
    assert runs_out(since, 100, 70, 1_100.0, opening=60) == 1_100 + 30 * 10
    assert runs_out(since, 100, 60, 1_100.0, opening=60) is None


def test_ends_are_told_in_utc() -> None:
    """A reset time must mean the same to whoever reads the message."""
    assert told(int(datetime(2026, 3, 1, tzinfo=UTC).timestamp())) == "2026-03-01T00:00:00Z"
    assert told(FOREVER) == "never"
