"""What stands after `instead of`, `before` and their like is another thing than what stands apart from it."""

import pytest

from policies.reuse.facts import analyse
from policies.reuse.phrases import changed_sides


@pytest.mark.parametrize(
    ("kept", "asked"),
    [
        ("Can I use butter instead of olive oil?", "Can I use olive oil in place of butter?"),
        (
            "How can I print the progress on the same line instead of a new line each time?",
            "How can I print the progress on a new line each time instead of the same line?",
        ),
        (
            "Should I cool the filling before it goes into the crust?",
            "Should I cool the crust before the filling goes in?",
        ),
        ("After the pump stops, is the valve closed?", "Does the pump stop after the valve is closed?"),
        ("May I ship the parcel without an invoice?", "May I send the invoice without the parcel?"),
        ("how long after a run can i eat", "how long after eating can i go for a run"),
        ("Did the bus stop because of the train?", "Did the train stop due to the bus?"),
    ],
)
def test_things_that_changed_sides_are_another_question(kept: str, asked: str) -> None:
    """Every word is the same, and so was the answer: 42 of 91 such pairs with `before` were left to the reader."""
    assert changed_sides(analyse(kept), analyse(asked))
    assert changed_sides(analyse(asked), analyse(kept))


@pytest.mark.parametrize(
    ("kept", "asked"),
    [
        ("Can I use butter instead of oil in brownies?", "In brownies, can butter be used in place of oil?"),
        ("Instead of butter, can I use oil?", "Can I use oil instead of butter?"),
        ("What must I do before I move house?", "Before moving house, what do I have to do?"),
        ("Can I eat before I run, and drink before I swim?", "Can I run before I eat?"),  # which of the two is not told
        ("Should I stretch before running?", "Should I stretch after running?"),  # for other guards
        ("After a run, can I eat a banana?", "Can I eat a banana after a run?"),
        ("Is it lighter without the case?", "Is it heavier?"),
    ],
)
def test_the_same_thing_said_otherwise_is_no_change_of_sides(kept: str, asked: str) -> None:
    """A rule that refuses rewordings costs the hits that it was to make safe."""
    assert not changed_sides(analyse(kept), analyse(asked))
