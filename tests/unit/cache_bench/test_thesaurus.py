"""What proposes words for the thesaurus, and what it holds against those that were chosen."""

from itertools import combinations
from pathlib import Path

import pytest

from cache.training.thesaurus import faults, is_known, main, proposals, read, refused
from policies.reuse.lexicon import chosen

LICENCE = "  1 This software and database is being provided to you\n"
INDEX = {
    "noun": "co-worker n 1 1 @ 1 0 00000001\ncolleague n 2 1 @ 2 0 00000002 00000001\nwinner n 1 1 + 1 0 00000003\n"
    "rung n 6 1 @ 6 0 10000001 10000002 10000003 10000004 10000005 00000001\n",
    "verb": "win v 1 1 + 1 0 00000004\n",
    "adj": "",
    "adv": "",
}
DATA = {
    "noun": "00000001 18 n 03 co-worker 0 colleague 0 rung 0 000 | an associate\n"
    "00000002 18 n 01 colleague 0 000 | a fellow of a profession\n"
    "00000003 18 n 02 winner 0 victor 0 001 + 00000004 v 0101 | a contestant who wins\n",
    "verb": "00000004 33 v 01 win 0 002 + 00000003 n 0101 @ 00000009 v 0000 01 + 08 00 | be first\n",
    "adj": "",
    "adv": "",
}


@pytest.fixture
def wordnet(tmp_path: Path) -> Path:
    for part in INDEX:
        (tmp_path / f"index.{part}").write_text(LICENCE + INDEX[part], "ascii")
        (tmp_path / f"data.{part}").write_text(LICENCE + DATA[part], "ascii")
    return tmp_path


def test_pairs_of_frequent_senses_and_derived_words_are_proposed(wordnet: Path) -> None:
    """A word's sixth sense is one that nobody means."""
    found = read(wordnet)
    assert found.pairs(2) == {("colleague", "coworker"), ("win", "winner")}
    assert ("colleague", "rung") in found.pairs(6)
    common = ["colleague", "coworker", "rung"]
    assert proposals(found, common, set()) == ([] if is_known("colleague", "coworker") else [("colleague", "coworker")])


def test_chosen_pairs_that_wordnet_does_not_know_are_told(wordnet: Path) -> None:
    """What is said to be from WordNet is."""
    found = read(wordnet)
    assert faults(found, {("colleague", "coworker")}) == []
    assert faults(found, {("colleague", "teammate"), ("buy", "sell")}) == [
        "buy sell: opposites",
        "colleague teammate: not in WordNet",
    ]


def test_a_folder_without_wordnet_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not a traceback."""
    assert main(["--wordnet", str(tmp_path), "--words", str(tmp_path / "words")]) == 1
    assert "index.noun" in capsys.readouterr().err


def test_no_chosen_pair_speaks_against_the_lexicon() -> None:
    """A synonym that is an opposite, or another member of a kind, would serve a wrong answer."""
    wrong = [(a, b, why) for group in chosen() for a, b in combinations(group, 2) if (why := refused(a, b))]
    assert wrong == []


@pytest.mark.parametrize(
    ("a", "b"),
    [("buy", "sell"), ("red", "scarlet"), ("dog", "hound"), ("car", "auto"), ("up", "upward"), ("what", "whatever")],
)
def test_what_must_never_be_chosen(a: str, b: str) -> None:
    """Opposites, names of kinds, small words; of a colour only another colour is."""
    assert bool(refused(a, b)) == (a != "red")
