"""How long a request was with upstreams, from the marks of its attempts."""

import pytest

from gateway.steps import away


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [([], 0.0), ([(1.0, 3.0)], 2.0), ([(1.0, 2.0), (5.0, 6.0)], 2.0), ([(2.0, 9.0), (1.0, 4.0), (3.0, 5.0)], 8.0)],
)
def test_attempts_beside_each_other_count_once(spans: list[tuple[float, float]], seconds: float) -> None:
    """A hedge is no second wait: counted twice, the gateway's own time would come out less than nothing."""
    assert away(spans) == pytest.approx(seconds)
