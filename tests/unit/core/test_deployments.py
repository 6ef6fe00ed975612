"""What is known of places: bounded, and nothing that was known of one is taken for another's."""

from gateway.catalog import Target
from gateway.deployments import Deployments


def test_the_oldest_idle_ones_make_room_and_their_numbers_are_used_again() -> None:
    """Pods come and go under new addresses for months; a place must not inherit what another had in its cache."""
    known = Deployments(monotonic=lambda: 0.0)
    first = known.of(Target("pods", "m", "0"))
    known.held.note([1, 2], first.number, 0.0)
    busy = known.of(Target("pods", "m", "1"))
    busy.sent(10, 0.0)
    for number in range(2, 6_000):
        known.of(Target("pods", "m", str(number)))
    there = list(known)
    assert len(there) <= 4_096 + 1
    assert busy in there
    assert first not in there
    assert len({deployment.number for deployment in there}) == len(there)
    assert max(deployment.number for deployment in there) <= 4_096
    assert not known.held.matched([1, 2], 0.0)


def test_who_names_no_time_takes_nothing_off_the_time_that_was_named() -> None:
    """Of refusals that come together one without a header ended a minute's rest after a second."""
    place = Deployments(monotonic=lambda: 0.0).of(Target("up", "m"))
    for patience, until in ((60.0, 60.0), (None, 60.0), (5.0, 5.0)):
        place.sent(1, 0.0)
        place.ended("patience", 0.0, prompt=1, patience=patience)
        assert (place.allows(until - 0.1), place.allows(until)) == (False, True)
