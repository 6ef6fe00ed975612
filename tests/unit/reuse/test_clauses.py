"""Who does what to whom: `policies.reuse.clauses`."""

from pathlib import Path

import msgspec
import pytest

from cache.training.reading import Group
from policies.reuse.clauses import clauses, parts_exchanged
from policies.reuse.facts import analyse
from policies.reuse.guards import order
from tests.proofs import wanted

GROUPS = Path(__file__).parents[3] / "cache" / "training" / "data" / "groups" / "roles.jsonl"

EXCHANGED = [
    ("Whom did Alexander the Great teach?", "By whom was Alexander the Great taught?"),
    ("Did Rome ever conquer Greece?", "Was Rome conquered by Greece at any time?"),
    ("Which country invaded Germany first in 1939?", "In 1939, what was the first country that Germany invaded?"),
    ("Which country did Germany invade first?", "name the first country to invade Germany"),
    ("Who was taught by Plato?", "Who was the teacher of Plato?"),
    ("Zeus was the father of whom?", "Who was the father of Zeus?"),
    ("Was Socrates a student of Plato?", "Was Plato a student of Socrates?"),
    ("What do owls eat?", "What eats owls?"),
    ("What animals eat hedgehogs?", "What animals do hedgehogs eat?"),
    (
        "Are employers allowed to read their employees' mail?",
        "Is it legal for employees to read their employer's mail?",
    ),
    ("My daughter is bullying a classmate. What can I do?", "What if my daughter gets bullied by a classmate?"),
    ("Why did Iraq invade Kuwait?", "What were the reasons for the invasion of Iraq by Kuwait?"),
    ("Did the Yankees sell Babe Ruth to the Red Sox?", "Did the Red Sox sell Babe Ruth to the Yankees?"),
    ("How did Braque influence Picasso?", "What influence did Picasso have on Braque?"),
    ("What is the effect of juice on statins?", "What is the effect of statins on juice?"),
    ("Does yeast turn alcohol into sugar?", "Is sugar turned into alcohol by yeast?"),
]
KEPT = [
    ("Whom did Plato teach?", "Who was taught by Plato?"),
    ("Did Rome ever conquer Greece?", "Was Greece conquered by Rome at any time?"),
    ("Which country invaded Germany first in 1939?", "What was the first country that invaded Germany in 1939?"),
    ("Who taught Plato?", "Who was the teacher of Plato?"),
    ("What eats owls?", "By what are owls eaten?"),
    ("Was Marsyas flayed by Apollo?", "Was it Apollo who flayed Marsyas?"),
    ("Why did Iraq invade Kuwait?", "What were the reasons for the invasion of Kuwait by Iraq?"),
    ("How did Braque influence Picasso?", "What influence did Braque have on Picasso?"),
    ("Does Azure encrypt data by default?", "Is Azure data encrypted by default?"),
    ("Can I use expired eye drops?", "Is it okay to use eye drops that have expired?"),
    ("How long do I cook rice?", "How long does rice cook?"),
    ("Did Ann marry Bob?", "Did Bob marry Ann?"),
    ("How do I recover an unsaved document?", "unsaved document recovery"),
    ("", ""),
    ("?", "who whom by of to"),
]


@pytest.mark.parametrize(("one", "other"), EXCHANGED)
def test_two_who_have_changed_parts_are_seen_in_either_order(one: str, other: str) -> None:
    """An encoder finds these all but equal, and a small reader cannot tell them from a change of voice."""
    assert parts_exchanged(analyse(one), analyse(other))
    assert parts_exchanged(analyse(other), analyse(one))


@pytest.mark.parametrize(("one", "other"), KEPT)
def test_another_voice_or_order_alone_exchanges_nobody(one: str, other: str) -> None:
    """What refuses every passive would refuse the paraphrases it is there to tell apart."""
    assert not parts_exchanged(analyse(one), analyse(other))
    assert not parts_exchanged(analyse(other), analyse(one))


@pytest.mark.parametrize("text", [text for pair in (*EXCHANGED, *KEPT) for text in pair])
def test_no_text_has_exchanged_its_own_parts(text: str) -> None:
    """A text that comes again must be answered, whatever it says of whom."""
    assert not parts_exchanged(analyse(text), analyse(text))


def test_a_clause_names_who_is_asked_for() -> None:
    """ "Who" takes part like a name: else "whom did he teach" and "who taught him" would not differ."""
    (clause,) = clauses(analyse("Whom did Plato teach?"))
    assert clause.agents == {"plato"}
    assert clause.patients == {"?"}


@pytest.mark.reduced
def test_of_four_writers_role_swaps_many_are_refused_and_few_paraphrases() -> None:
    """440 groups about who does what to whom: 18.0 % of near misses were stopped when this was written, 13.6 % before
    clauses were read, and 3.4 % of paraphrases instead of 4.9; what is left is for the reader.

    An ordinary run reads every fourth group.
    """
    every = 1 if wanted() else 4
    stopped = misses = lost = same = 0
    for line in GROUPS.read_bytes().splitlines()[::every]:
        alike, unlike = msgspec.json.decode(line, type=Group).pairs()
        lost += sum(order(analyse(a), analyse(b)) for a, b in alike)
        stopped += sum(order(analyse(a), analyse(b)) for a, b in unlike)
        same, misses = same + len(alike), misses + len(unlike)
    assert misses > 10_000 // every
    assert same > 4_000 // every
    assert stopped >= 0.17 * misses
    assert lost <= 0.039 * same
