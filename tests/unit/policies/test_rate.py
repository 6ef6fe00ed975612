"""Token buckets: how much may pass in any stretch of time, and what a lease may take of it."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.rate_leases import Purse
from policies.rate import Bucket, portion, seconds_until, told

STEPS = st.lists(st.tuples(st.floats(0, 90), st.floats(0.1, 30)), max_size=60)


@given(limit=st.floats(1, 1_000), steps=STEPS)
def test_never_more_than_a_full_bucket_and_what_the_time_brought(
    limit: float, steps: list[tuple[float, float]]
) -> None:
    """A limit that lets more through is none."""
    bucket, now, passed = Bucket(limit, 0.0), 0.0, 0.0
    for pause, need in steps:
        now += pause
        if need <= limit and bucket.has(need, now):
            bucket.take(need)
            passed += need
    assert passed <= limit + limit * now / 60 + 1e-6


@given(limit=st.floats(1, 1_000), level=st.floats(-500, 1_000), need=st.floats(0.1, 2_000))
def test_after_the_time_told_the_request_passes(limit: float, level: float, need: float) -> None:
    """A client that obeys retry-after must not be refused again."""
    bucket = Bucket(limit, 0.0, min(level, limit))
    assert bucket.has(need, bucket.wait(need, 0.0) + 1e-6)


def test_a_request_beyond_a_whole_minute_waits_for_a_full_bucket_and_is_paid_back() -> None:
    """One huge request must be possible, and must not be free."""
    bucket = Bucket(60, 0.0)
    bucket.take(1)
    assert not bucket.has(100, 0.0)
    assert bucket.has(100, 1.0)
    bucket.take(100)
    assert not bucket.has(1, 41.0)
    assert bucket.has(1, 42.1)


def test_changing_a_limit_keeps_what_was_used() -> None:
    """Raising a limit must not open it twice, lowering it must take effect at once."""
    bucket = Bucket(60, 0.0)
    bucket.take(50)
    bucket.change(100, 0.0)
    assert bucket.left(0.0) == 50
    bucket.change(20, 0.0)
    assert not bucket.has(1, 0.0)


@given(
    level=st.floats(-10, 1_000),
    demand=st.floats(0.1, 500),
    least=st.floats(0.1, 500),
    limit=st.floats(1, 1_000),
    processes=st.integers(1, 64),
)
def test_a_portion_is_there_and_never_more_than_is(
    level: float, demand: float, least: float, limit: float, processes: int
) -> None:
    """Workers may only share out what exists; a worker that can be served at all is."""
    level = min(level, limit)
    got = portion(level, max(demand, least), least, limit, processes)
    assert got <= max(level, 0.0)
    assert (got > 0) == (level >= min(least, limit))


def test_durations_read_as_openai_writes_them() -> None:
    """Clients parse these headers."""
    assert [told(0.006), told(1.0), told(1.5), told(90.0), told(360.0)] == ["6ms", "1s", "1.5s", "1m30s", "6m0s"]


def test_a_limit_of_nothing_lets_nothing_through() -> None:
    """Whoever sets 0 wants a scope closed, not closed after one more request of every worker."""
    for meter in (Bucket(0, 0.0), Purse("x", 0, 0.0)):
        assert not meter.has(1.0, 0.0)
        assert not meter.has(1.0, 1e9)
    assert seconds_until(0, 1, 0) == 60.0
