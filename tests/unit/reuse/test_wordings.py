"""The manner of asking goes, the matter stays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.reuse.wordings import core


@pytest.mark.parametrize(
    "text",
    [
        "How do I reset my password?",
        "how can I reset my password",
        "What's the best way to reset my password?",
        "Hi, could you please tell me how to reset my password, thanks",
        "I'd like to know how to reset my password",
        "steps to reset my password",
    ],
)
def test_one_question_has_one_core_however_politely_it_is_put(text: str) -> None:
    """Half of all rewordings are of this sort: each that is not seen through is a hit lost."""
    assert core(text).tokens == ("HOW", "reset", "my", "password")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Is it possible to export chats?", "Can I export chats?"),
        ("Do I need to pay tax?", "Is it necessary to pay tax?"),
        ("At what time does it open?", "What time does it open?"),
        ("How far away is the moon?", "How far is the moon?"),
        ("What's the number of employees?", "How many employees?"),
        ("the day prior to the exam", "the day before the exam"),
        ("tea in lieu of coffee", "tea instead of coffee"),
        ("people older than 30", "people over 30"),
        ("every file", "all file"),
        ("twice each week", "twice a week"),
    ],
)
def test_phrases_that_stand_for_one_another_are_one(one: str, other: str) -> None:
    """What a phrase is worth must not depend on which of its forms somebody chose."""
    assert core(one).tokens == core(other).tokens


def test_nothing_is_peeled_to_nothing() -> None:
    """A text that is all politeness is still a text: an empty core would equal every other empty one."""
    assert core("thanks").tokens == ("thanks",)
    assert core("please").tokens == ("please",)


def test_owners_and_leading_words_are_known_by_place() -> None:
    """They say whose a thing is and to what a phrase belongs."""
    text = core("How do I open my brother's door with three keys in Berlin?")
    places = {base: at for at, base in text.topics}
    assert text.owner(places["brother"]) == "i"
    assert "brother" in text.owning
    assert text.led(places["key"])[0] == "with"
    assert text.led(places["berlin"])[0] == "in"
    assert text.led(places["door"]) == ("", -1)


@given(st.text(max_size=200))
def test_any_text_has_a_core(text: str) -> None:
    """Texts come from strangers: none may raise, none may take a token out of nothing."""
    found = core(text)
    assert all(0 <= at < len(found.tokens) for at, _ in found.topics)
    assert found.nominal >= {at for at, _ in found.topics}
