"""Prompts that end an engine's process are told from those that were there by chance."""

from hypothesis import given
from hypothesis import strategies as st

from policies.quarantine import SHUT_FOR, Quarantine


def test_who_is_there_twice_is_shut_out_for_an_hour() -> None:
    """Each restart costs everybody seconds: the third one must not come."""
    found = Quarantine()
    assert found.was_there(b"bad", 10.0, alone=False) == "suspect"
    assert found.was_there(b"bad", 20.0, alone=True) == "shut"
    assert found.standing(b"bad", 20.0 + SHUT_FOR - 1) == "shut"
    assert found.standing(b"bad", 20.0 + SHUT_FOR) == "clear"
    assert not found


def test_who_is_answered_is_cleared() -> None:
    """One accident is none of its doing."""
    found = Quarantine()
    found.was_there(b"good", 10.0, alone=False)
    found.answered(b"good")
    assert found.was_there(b"good", 20.0, alone=False) == "suspect"


@given(st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), min_size=1), st.booleans())
def test_only_who_runs_alone_is_found_guilty(there: list[bytes], first: bool) -> None:
    """Suspects run one at a time, so in whatever order the news comes nobody else is blamed for the second end."""
    found = Quarantine()
    for digest in there:  # the same one more than once, too: of several tenants, or asked several times at once
        assert found.was_there(digest, 1.0, alone=False) == "suspect"
    bad, others = there[0], [b"x", b"y", b"y"]
    order = [bad, *others] if first else [*others, bad]
    for digest in order:
        found.was_there(digest, 5.0, alone=digest == bad)
    assert found.standing(bad, 6.0) == "shut"
    assert all(found.standing(digest, 6.0) != "shut" for digest in [*there, *others] if digest != bad)


def test_what_is_remembered_is_bounded() -> None:
    """Somebody could end it with a new prompt each time."""
    found = Quarantine()
    for number in range(10_000):
        found.was_there(number.to_bytes(4, "big"), float(number), alone=False)
    assert found.standing((0).to_bytes(4, "big"), 10_000.0) == "clear"
    assert found.standing((9_999).to_bytes(4, "big"), 10_000.0) == "suspect"
