"""Everyday words that stand for each other: those chosen from WordNet, and those that are forms of one."""

import pytest

from policies.reuse.facts import analyse
from policies.reuse.guards import forbids, unmatched
from policies.reuse.lexicon import chosen


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ("How do I share a file with a coworker?", "How do I share a file with a colleague?"),
        ("What is the probability of two sixes?", "What is the chance of two sixes?"),
        ("How do I divide the bill?", "How do I split the bill?"),
        ("Who won the election?", "Who was the winner of the election?"),
        ("How much does a whale weigh?", "What is the weight of a whale?"),
        ("When do the trains depart?", "When do the trains leave?"),
        ("What paperwork does a mortgage take?", "What documents does a mortgage take?"),
        ("When can a nurse retire?", "When can a nurse start retirement?"),
    ],
)
def test_everyday_words_find_their_counterparts(asked: str, kept: str) -> None:
    """Each was a topic word without a counterpart, so that most paraphrases in it were asked again upstream."""
    a, b = analyse(asked), analyse(kept)
    assert (unmatched(a, b), unmatched(b, a) - {"start"}) == (frozenset(), frozenset())


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ("Is cancer genetic?", "Is cancer hereditary?"),
        ("How do I leave the group?", "How do I remain in the group?"),
        ("How do I wear a mask?", "How do I tire a mask?"),
        ("How do I shop for wool fabric?", "How do I shop for wool clothes?"),
        ("How do I delete a git tag?", "How do I delete a git label?"),
        ("How do I read my state?", "How do I read my statement?"),
        ("What does workers comp cover?", "What does workers compliance cover?"),
    ],
)
def test_words_that_wordnet_takes_for_one_and_answers_do_not(asked: str, kept: str) -> None:
    """Most of what shares a sense in WordNet would change an answer: only chosen words are in the file."""
    assert unmatched(analyse(asked), analyse(kept))
    assert forbids(analyse(asked), analyse(kept)) is not None


def test_words_of_the_thesaurus_can_be_names() -> None:
    """The lexicon's own words are no names where they have a capital; 400 more would hide too many."""
    assert analyse("what did Tiger Woodland win").names >= {"woodland"}


def test_the_list_is_kept_in_order() -> None:
    """A list read by people: each group once, sorted, so that a change shows as one line."""
    groups = chosen()
    assert len(groups) > 300
    assert groups == sorted(sorted(group) for group in groups)
    assert len({tuple(group) for group in groups}) == len(groups)
