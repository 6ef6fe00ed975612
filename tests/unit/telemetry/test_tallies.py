"""Sums that are poured must be what adding one by one would have been."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from gateway.tallies import Tallies

BOUNDS = (0.125, 0.5, 1, 2.5)
# binary fractions, so that the order of adding makes no difference
VALUES = st.lists(st.sampled_from([0.0, 0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 2.5, 2.75, 1024.0]), max_size=30)


def shown(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


@given(st.lists(VALUES, max_size=5))
def test_pouring_equals_adding_one_by_one(batches: list[list[float]]) -> None:
    """The short cut uses the library's own parts; whatever a new version does to them shows here."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    tallies = Tallies()
    observe = tallies.spread(Histogram("h", "h", ("x",), buckets=BOUNDS, registry=ours).labels("a"))
    add = tallies.sum(Counter("c", "c", registry=ours))
    histogram = Histogram("h", "h", ("x",), buckets=BOUNDS, registry=theirs).labels("a")
    counter = Counter("c", "c", registry=theirs)
    for batch in batches:
        for value in batch:
            observe(value)
            add(value)
            histogram.observe(value)
        counter.inc(sum(batch))
        tallies.pour()
        tallies.pour()
        assert shown(ours) == shown(theirs)
