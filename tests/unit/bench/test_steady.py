"""The arithmetic of the overload and soak runs: what they keep as figures must follow from what was seen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bench.faults import phases
from gateway.bench.overload import Asked, Judge, Kind, recovered, told
from gateway.bench.soak import slopes

UPSTREAM_MS = 450.0


def test_a_stream_takes_what_the_upstream_is_told_to_take() -> None:
    """What is subtracted as the upstream's own time must be what the upstream was started with."""
    assert Kind(stream=True).upstream_ms == UPSTREAM_MS
    assert Kind(stream=True).pace == ("--tokens", "51", "--ttft-ms", "200", "--tpot-ms", "5")
    assert Kind(stream=False).upstream_ms == 200.0
    assert Kind(stream=False).pace[-1] == "0"


def test_goodput_counts_what_was_answered_in_time() -> None:
    """An answer after a second is no good answer, and a refusal is not one either."""
    asked = [Asked(0.0, 0.0, 200, UPSTREAM_MS + own) for own in (1.0, 249.0, 251.0, 5_000.0)]
    asked += [Asked(0.0, 0.0, 503, 4.0), Asked(0.0, 2.0, 0, 9.0)]
    step = told(asked, 2.0, Judge(UPSTREAM_MS, capacity=1.0, seconds=2.0))
    assert (step.goodput_rps, step.goodput_share) == (1.0, 1.0)
    assert (step.answered, step.refused, step.failed) == (4, 1, 1)
    assert (step.refusal_p99_ms, step.p99_own_ms, step.late_p99_ms) == (4.0, 5_000.0, 2_000.0)
    assert step.offered_rps == 3.0


def test_a_refusal_is_told_without_what_the_generator_itself_was_late_by() -> None:
    """Both share two cores: a generator that reads late must not look like a gateway that refuses late."""
    hurried = Asked(due=1.0, sent=1.2, status=503, ms=300.0, unread=60.0)
    later = Asked(due=4.0, sent=4.0, status=503, ms=25.0)
    step = told([hurried, later], 5.0, Judge(UPSTREAM_MS, capacity=1.0, seconds=5.0))
    assert (step.refusal_p99_ms, step.refusal_gateway_p99_ms, step.refusal_later_p99_ms) == (300.0, 40.0, 25.0)


def test_recovery_is_the_first_calm_second() -> None:
    """One refusal, or one slow answer, and the second does not count."""
    calm = [Asked(2.5, 2.5, 200, UPSTREAM_MS + 2.0)]
    assert (
        recovered([Asked(0.2, 0.2, 503, 1.0), Asked(1.2, 1.2, 200, UPSTREAM_MS + 80.0), *calm], UPSTREAM_MS, 4.0) == 2.0
    )
    assert recovered([Asked(0.2, 0.2, 503, 1.0)], UPSTREAM_MS, 4.0) is None


@given(st.floats(-50, 50), st.lists(st.floats(-0.01, 0.01), min_size=20, max_size=60))
def test_a_slope_is_found_through_noise(per_hour: float, noise: list[float]) -> None:
    """A leak of a MiB an hour must show in a run of an hour, and jitter must not look like one."""
    points = [(number * 60.0, 200.0 + per_hour * number / 60.0 + off) for number, off in enumerate(noise)]
    slope, high = slopes(points)
    assert slope == pytest.approx(per_hour, abs=1.3)
    assert high >= slope


def test_one_wild_sample_moves_nothing() -> None:
    """A garbage collection or a copy of a page table is no leak."""
    points = [(number * 60.0, 200.0) for number in range(40)]
    points[20] = (1_200.0, 900.0)
    assert slopes(points)[0] == 0.0


def test_requests_are_told_apart_by_when_they_were_due() -> None:
    """One that came while a part hung, and was answered after, is what the hanging cost."""
    asked = [
        Asked(0.5, 0.5, 200, 3.0),
        Asked(1.0, 1.0, 200, 60.0),
        Asked(1.9, 1.9, 503, 5.0),
        Asked(2.0, 2.0, 200, 4.0),
    ]
    found = phases(asked, {"before": 1.0, "hung": 2.0, "after": 3.0})
    assert {name: (one.requests, one.worst_ms, one.failed) for name, one in found.items()} == {
        "before": (1, 3.0, 0),
        "hung": (2, 60.0, 1),
        "after": (1, 4.0, 0),
    }
    assert list(found) == ["before", "hung", "after"]
