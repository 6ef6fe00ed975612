"""One thing said in several words or in one, days said otherwise, `even` and `evening`: what rules took for another."""

import pytest

from policies.reuse.days import other_days
from policies.reuse.facts import analyse
from policies.reuse.guards import forbids


@pytest.mark.parametrize(
    ("kept", "asked"),
    [
        (
            "Find me a quick recipe for chicken soup without noodles",
            "Find me a quick recipe for chicken soup with no noodles",
        ),
        ("Are second-hand bicycle helmets safe to use?", "Are used bicycle helmets safe to use?"),
        ("Can I use one charger although each phone differs?", "Can I use one charger even though each phone differs?"),
        ("Delete the alarm I set last night.", "Delete the alarm I set yesterday evening."),
        ("What vitamins should I take every day?", "What vitamins should I take daily?"),
        ("When do you harvest garlic planted in the fall?", "When do you harvest garlic planted in autumn?"),
        ("Is the internet slower in the mornings?", "Is the internet slower in the morning?"),
        ("I forgot the PIN of my card, how can I see it?", "I can't remember the PIN of my card, how can I see it?"),
        ("How long does a bank transfer take to arrive?", "How much time does a bank transfer take to arrive?"),
        (
            "What should a test do that runs longer than a second?",
            "What should a test do that runs longer than one second?",
        ),
        ("Can I sleep in a parked camper van?", "Can I sleep in a parked campervan?"),
        ("Is jam allowed on a plane?", "Is jam allowed on an aeroplane?"),
        ("Will flying cars ever become a reality?", "Will flying cars ever be a reality?"),
        ("My son wants to quit. Should I let him?", "Should I let my son quit, as he wants?"),
        (
            "How does simmering differ for someone who never cooked?",
            "How does simmering differ for one that never cooked?",
        ),
        ("How costly is a second copy of it?", "How expensive is a second copy of it?"),
    ],
)
def test_one_thing_said_otherwise_is_not_forbidden(kept: str, asked: str) -> None:
    """People reword so; each pair was refused by a rule that took a word of it for what it is not."""
    assert forbids(analyse(kept), analyse(asked)) in {None, "substitution"}
    assert forbids(analyse(asked), analyse(kept)) in {None, "substitution"}


@pytest.mark.parametrize(
    ("kept", "asked"),
    [
        ("Find a recipe for soup with noodles", "Find a recipe for soup with no noodles"),
        ("Is the second helmet safe to use?", "Are used helmets safe to use?"),
        ("Delete the alarm I set last night.", "Delete the alarm I set this morning."),
        ("What vitamins should I take every week?", "What vitamins should I take daily?"),
        ("When do you harvest garlic planted in the fall?", "When do you harvest garlic planted in spring?"),
        ("Is it open in the evening?", "Is it open in the morning?"),
        ("Does it rain every hour?", "Does it rain daily?"),
        ("I remember the PIN of my card.", "I can't remember the PIN of my card."),
        ("Who became president in May?", "Who was president in May?"),
        ("How costly is the second copy?", "How costly is the third copy?"),
        ("How much time does it take?", "How much does it take?"),
    ],
)
def test_what_only_sounds_alike_stays_forbidden(kept: str, asked: str) -> None:
    """An idiom brought to one spelling must not hide the opposite, or another day."""
    assert forbids(analyse(kept), analyse(asked)) is not None


def test_a_turn_is_one_in_any_words() -> None:
    """`daily` was a date that "every day" did not name."""
    for words in ("twice a day", "every day", "each day", "per day"):
        assert not other_days(analyse("Take it daily"), analyse(f"Take it {words}"))
    assert other_days(analyse("Take it daily"), analyse("Take it on the day"))
