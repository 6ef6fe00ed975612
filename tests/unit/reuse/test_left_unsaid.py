"""Who is left unsaid, what is called otherwise: paraphrases that were refused, beside near misses that still are."""

import pytest

from policies.reuse.pairs import HARD, wording

SAME = [
    # a person or an animal that is spoken of once more, or not
    ("If my child has concussion, should I let him sleep?", "Should I let a child with concussion sleep?"),
    ("Are night buses safe for a woman on her own?", "Are night buses safe for a woman alone?"),
    ("my parrots started pulling his feathers out, why", "My parrot started pulling out feathers. Why?"),
    (
        "What should I do with my unused test kits now that they have expired?",
        "what do i do with unused test kits that have expired",
    ),
    # the same day, the same span
    ("Is it safe to charge my phone overnight?", "Is it safe to charge my phone at night?"),
    ("How often should I water a cactus in winter?", "How often does a cactus need watering in wintertime?"),
    ("fade the lights out slowly over the next hour", "fade the lights out slowly over the coming hour"),
    ("play the last episode again", "play the previous episode again"),
    ("find songs that sound like this one", "find songs that sound like this song"),
    ("Begin running at 50 after years of doing nothing", "Begin running at 50 following years of doing nothing"),
    # what becomes of it happens to it
    ("What happens to unclaimed luggage at airports?", "What becomes of unclaimed luggage at airports?"),
    ("Which composer went deaf?", "Which composer became deaf?"),
    # although, once, while
    (
        "Why is it colder up there when it's closer to the sun?",
        "Why is it colder up there although it's closer to the sun?",
    ),
    ("If I've scanned my receipts, can I throw them away?", "Once I've scanned my receipts, can I throw them away?"),
    # to here from there
    ("How do I get from Heathrow to central London?", "How do I get to central London from Heathrow?"),
    ("How far is the moon from the earth?", "What's the distance from the earth to the moon?"),
    ("Turn this recipe into a shopping list.", "Make a shopping list from this recipe."),
    (
        "difference between a tornado watch and a tornado warning",
        "the difference between a tornado warning and a tornado watch",
    ),
]
OTHER = [
    ("Write a poem that mentions her garden and rhymes.", "Write a poem that mentions my garden and rhymes."),
    ("My aunt lost her keys. Who pays?", "My aunt lost his keys. Who pays?"),
    ("Does he pay for his repair?", "Does he pay for her repair?"),
    ("The mayor quit after the mayor lied. Who lied?", "The mayor quit after she lied. Who lied?"),
    ("Is the photographer's model allowed to sell pictures?", "The model has a photographer: may she sell pictures?"),
    ("My colleague takes credit for my work.", "My colleague thinks I take credit for his work."),
    ("My son's dog bit me. What does it need?", "My son's dog bit me. What does he need?"),
    ("dim the lights over the next hour", "dim the lights over the last hour"),
    ("what did we decide the following week", "what did we decide this week"),
    ("play the next one", "play the last one"),
    ("When does a caterpillar become a butterfly?", "When is a caterpillar a butterfly?"),
    ("What happens if I delete the file?", "What happens while I delete the file?"),
    ("What do I do if it rains?", "What do I do although it rains?"),
    ("How do I get from Heathrow to central London?", "How do I get from central London to Heathrow?"),
    ("Turn this list into a recipe.", "Turn this recipe into a list."),
    ("Can humans catch colds from dogs?", "Are dogs able to catch colds from humans?"),
    ("Eat before you swim", "Swim before you eat"),
]


def refused(kept: str, asked: str) -> frozenset[str]:
    """The rules that forbid it whatever is read."""
    return HARD.intersection(wording(asked, kept).guards) - {"unexplained"}


@pytest.mark.parametrize(("kept", "asked"), SAME)
def test_what_is_said_otherwise_passes(kept: str, asked: str) -> None:
    """Refused, each of these is paid for anew, and reading would have found it alike."""
    assert refused(kept, asked) == refused(asked, kept) == set()


@pytest.mark.parametrize(("kept", "asked"), OTHER)
def test_who_or_when_or_which_way_is_still_asked(kept: str, asked: str) -> None:
    """Each is one step from a paraphrase above, and another question."""
    assert refused(kept, asked)
    assert refused(asked, kept)
