"""What belongs together: pairs that exchanged their company, another thing after a preposition, what is whose."""

import pytest

from policies.reuse.bonds import crossed, governed_by_other, named_oftener, owned_by_other
from policies.reuse.facts import analyse
from policies.reuse.guards import forbids

EXCHANGED = [
    ("Chess openings for a slow player with a quick opponent", "chess openings, opponent slow, player quick"),
    ("How do I get white wine out of a red shirt?", "How do I get red wine stains out of a white shirt?"),
    ("I booked a twin room but got a double bed", "I booked a double room but got twin beds"),
    ("Mia works mornings and Theo works nights, make a rota", "rota please: Theo mornings, Mia nights"),
    ("oats two cups, milk three cups, how thick is that", "How thick is it with oats, 3 cups, and milk, 2 cups?"),
]
THE_SAME = [
    ("Which shoes with a brown belt and black trousers?", "Which shoes for black trousers and a brown belt?"),
    ("Is it cheaper to drive or fly from Rome to Bari?", "Is it cheaper to fly or drive from Rome to Bari?"),
    ("Can you drink water from the tap in Rome?", "Is it safe to drink the tap water in Rome?"),
    ("How do I rename a column of a SQL table?", "In SQL, how do I rename a table's column?"),
    ("Does Gollum bite off Frodo's finger for the ring?", "Is Frodo's finger bitten off by Gollum for the ring?"),
    ("password reset not working", "reset password not working"),
    ("store walnuts and sunflower seeds in winter", "In winter, storing sunflower seeds and walnuts"),
]


@pytest.mark.parametrize(("kept", "asked"), EXCHANGED)
def test_pairs_that_exchanged_their_company_are_another_question(kept: str, asked: str) -> None:
    """With the same words neither encoder nor reader tells them: of what was served a quarter was such."""
    assert crossed(analyse(kept), analyse(asked))
    assert crossed(analyse(asked), analyse(kept))
    assert forbids(analyse(kept), analyse(asked)) is not None


@pytest.mark.parametrize(("kept", "asked"), THE_SAME)
def test_pairs_that_moved_as_a_whole_are_the_same_question(kept: str, asked: str) -> None:
    """English moves phrases about; each of these would be a hit lost."""
    one, other = analyse(kept), analyse(asked)
    assert not crossed(one, other)
    assert not named_oftener(one, other)
    assert not governed_by_other(one, other)
    assert not owned_by_other(one, other)


@pytest.mark.parametrize(
    ("kept", "asked"),
    [
        (
            "The nurse told the patient that she is late. Is the nurse late?",
            "The nurse told the patient that she is late. Is the patient late?",
        ),
        ("add oat milk and tea, then remove the milk", "add oat milk and tea, then remove the tea"),
        (
            "My boss wants slides, my colleague a sheet. Write to my boss.",
            "My boss wants slides, my colleague a sheet. Mail my colleague.",
        ),
    ],
)
def test_who_is_named_once_more_is_whom_it_is_about(kept: str, asked: str) -> None:
    """What is said of both is the same; the encoder has them at .98, and the reader saw no difference."""
    assert named_oftener(analyse(kept), analyse(asked))
    assert named_oftener(analyse(asked), analyse(kept))


def test_a_word_more_of_one_alone_says_nothing() -> None:
    """Wordings repeat a word now and then; only where another one is named less it is another question."""
    once, twice = analyse("reset my password"), analyse("my password: how do I reset the password")
    assert not named_oftener(once, twice)
    assert not named_oftener(analyse("two cats and one dog"), analyse("2 cats, 1 dog"))


@pytest.mark.parametrize(
    ("kept", "asked"),
    [
        ("Can an Android emulator run on an iPhone?", "Does an iPhone emulator run on Android?"),
        ("turn a list into a dictionary", "turn a dictionary into a list"),
        ("Run Windows inside a Linux host", "Inside Windows, run a Linux host"),
        ("Should mail be forwarded from Outlook to Gmail?", "Should I forward Outlook mail from Gmail?"),
    ],
)
def test_another_thing_after_a_preposition_is_another_question(kept: str, asked: str) -> None:
    """What runs on what: the words are the same, their parts are not."""
    assert governed_by_other(analyse(kept), analyse(asked))
    assert governed_by_other(analyse(asked), analyse(kept))


@pytest.mark.parametrize(
    ("kept", "asked"),
    [
        ("How does a process differ from a thread?", "How is a thread different from a process?"),
        ("books on Rome on sale", "on sale: books on Rome"),
        ("In the app, where is my IBAN?", "Where can I find my IBAN in the app?"),
    ],
)
def test_the_same_thing_after_a_preposition_is_the_same_question(kept: str, asked: str) -> None:
    """What differs from what may be named first; a preposition that is there twice tells nothing."""
    assert not governed_by_other(analyse(kept), analyse(asked))


def test_what_is_whose_may_be_said_in_either_way() -> None:
    """ "The book's cover" is the cover of the book, and no book has a week, nor a week a hike."""
    cover = analyse("What is the price of the cover of the book?")
    assert not owned_by_other(cover, analyse("what is the price of the book's cover"))
    assert owned_by_other(cover, analyse("What is the price of the cover's book?"))
    assert owned_by_other(cover, analyse("the book of the cover, what is its price"))
    assert not owned_by_other(analyse("pack for a week's hiking"), analyse("pack for a week of hiking"))


def test_of_long_texts_the_beginning_is_compared() -> None:
    """Four words of a text are looked at together: of hundreds that would be billions. Two dozen are looked at."""
    rest = " ".join(f"word{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(600))
    one, other = "slow player with a quick opponent", "quick player with a slow opponent"
    assert crossed(analyse(f"{one}: {rest}"), analyse(f"{other}: {rest}"))
    assert not crossed(analyse(f"{rest}: {one}"), analyse(f"{rest}: {other}"))
