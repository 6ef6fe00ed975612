"""When an upstream is left alone, and how it is found again."""

from hypothesis import given
from hypothesis import strategies as st

from policies.routing.circuit import IN_A_ROW, LONGEST_OPEN, Circuit
from policies.routing.samples import Samples


def _opened(now: float = 0.0) -> Circuit:
    circuit = Circuit()
    for _ in range(IN_A_ROW):
        circuit.sent(now)
        circuit.failed(now)
    return circuit


def test_failures_in_a_row_open_it_and_one_success_starts_the_count_anew() -> None:
    """A single failure is not an outage."""
    circuit = Circuit()
    for _ in range(IN_A_ROW - 1):
        circuit.failed(0.0)
    circuit.succeeded(0.0)
    circuit.failed(0.0)
    assert circuit.state(0.0) == "closed"
    assert _opened().state(0.5) == "open"


def test_half_of_many_opens_it_although_some_succeed() -> None:
    """An upstream that fails every other request never fails five times in a row."""
    circuit = Circuit()
    for number in range(40):
        if number % 3:
            circuit.failed(1.0)
        else:
            circuit.succeeded(1.0)
        if circuit.state(1.0) == "open":
            break
    assert circuit.state(1.0) == "open"


def test_one_probe_at_a_time_finds_out() -> None:
    """While half open a crowd must not fall upon what may just be getting up."""
    circuit = _opened()
    assert not circuit.allows(0.9)
    assert circuit.allows(1.1)
    circuit.sent(1.1)
    assert not circuit.allows(1.2)
    circuit.succeeded(1.3)
    assert circuit.state(1.3) == "closed"
    assert circuit.allows(1.3)


def test_a_probe_that_fails_doubles_the_pause_up_to_its_bound() -> None:
    """Recovery is found within half a minute at the latest, and a dead upstream costs two calls a minute."""
    circuit, now, pauses = _opened(), 0.0, []
    for _ in range(8):
        now = circuit.open_until
        circuit.sent(now)
        circuit.failed(now)
        pauses.append(circuit.open_until - now)
    assert pauses[:3] == [2.0, 4.0, 8.0]
    assert max(pauses) == LONGEST_OPEN


def test_a_place_that_says_it_has_come_back_is_tried_at_once() -> None:
    """What failed while it was being started again says nothing; that it is closed must still be found out."""
    circuit, now = _opened(1.0), 1.0
    for _ in range(6):
        now = circuit.open_until
        circuit.sent(now)
        circuit.failed(now)
    assert circuit.open_until - now == LONGEST_OPEN
    circuit.came_back(now + 1)
    assert circuit.state(now + 1) == "half-open"
    circuit.sent(now + 1)
    assert not circuit.allows(now + 1)
    circuit.failed(now + 2)
    assert circuit.open_until == now + 3
    well = Circuit()
    well.came_back(5.0)
    assert well == Circuit()


def test_a_probe_nobody_hears_of_is_given_up() -> None:
    """A probe whose client left must not leave the circuit open for ever."""
    circuit = _opened()
    circuit.sent(1.5)
    circuit.unknown()
    assert circuit.allows(1.6)


@given(st.lists(st.tuples(st.sampled_from(["sent", "failed", "succeeded", "unknown"]), st.floats(0, 5)), max_size=60))
def test_it_can_always_be_tried_again_within_the_longest_pause(steps: list[tuple[str, float]]) -> None:
    """No history may close an upstream out for good."""
    circuit, now = Circuit(), 0.0
    for step, wait in steps:
        now += wait
        getattr(circuit, step)(*(() if step == "unknown" else (now,)))
    assert circuit.allows(now + LONGEST_OPEN + 60.0)


def test_percentiles_are_of_late() -> None:
    """What an upstream was like an hour ago says nothing."""
    samples = Samples(most=4, oldest=10.0)
    for value in (100.0, 1.0, 2.0, 3.0, 4.0):
        samples.add(value, 0.0)
    assert samples.percentiles(1.0, 0.5, 0.9) == [3.0, 4.0]
    assert samples.percentiles(11.0, 0.5) == [-1.0]
