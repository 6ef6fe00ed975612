"""Near misses must be stopped, by the guard that is there for them, and their paraphrases let through."""

from pathlib import Path

import pytest

from cache.bench.data import read_pairs
from policies.reuse.facts import Facts, analyse
from policies.reuse.guards import GUARDS, forbids, injection, language, length
from policies.reuse.pairs import wording
from policies.reuse.relations import asked_of_other
from tests.unit.reuse.near_misses import COMPARING, FOREIGN, INJECTED, PADDED, triples


def both(a: str, b: str) -> tuple[Facts, Facts]:
    return analyse(a), analyse(b)


@pytest.mark.parametrize("guard", COMPARING)
def test_no_near_miss_passes(guard: str) -> None:
    """Each of these pairs has nearly the same embedding and another answer: one that passes is a wrong hit."""
    pairs = triples(guard)
    assert len(pairs) >= 20
    assert [(text, near) for text, near, _ in pairs if forbids(*both(text, near)) is None] == []


@pytest.mark.parametrize("guard", COMPARING)
def test_each_guard_does_its_own_work(guard: str) -> None:
    """Were a guard switched off, others might hide it here and not in the wild."""
    pairs = triples(guard)
    own = sum(GUARDS[guard](*both(text, near)) for text, near, _ in pairs)
    assert own >= 0.9 * len(pairs)


def test_paraphrases_pass() -> None:
    """Guards that forbid everything stop every wrong hit and every right one; two known ones are lost."""
    lost = [
        (text, same)
        for guard in COMPARING
        for text, _, same in triples(guard)
        if forbids(*both(text, same)) is not None
    ]
    assert len(lost) <= 2, lost


@pytest.mark.parametrize("guard", COMPARING)
def test_guards_see_both_directions_alike(guard: str) -> None:
    """Which of two texts was kept and which is asked must not matter."""
    for text, near, same in triples(guard):
        for other in (near, same):
            assert GUARDS[guard](*both(text, other)) == GUARDS[guard](*both(other, text)), (text, other)


@pytest.mark.parametrize("guard", sorted(GUARDS))
def test_no_guard_forbids_the_same_text(guard: str) -> None:
    """The same words asked twice (in another letter case) are the surest hit there is."""
    for text, _, _ in triples("number") + triples("negation") + triples("order") + triples("name"):
        assert not GUARDS[guard](*both(text, text))
        assert forbids(*both(text, text.upper())) is None


def test_signs_that_stand_for_many_letters_do_not_make_a_text_long() -> None:
    """One ligature is 18 letters: 6,000 of them in an answer kept the event loop for nine seconds."""
    assert len(analyse("\ufdfa" * 100).text) == 100
    assert analyse("x\u00b2").text == "x2"


@pytest.mark.parametrize("before", ["", "Please tell me: "])
def test_signs_say_something_by_their_order(before: str) -> None:
    """An encoder sees the same signs, a reader was sure of them: from € to £ is not from £ to €."""
    assert "quote" in wording(f"{before}Convert 5 £ to €", "Convert 5 € to £").guards
    assert "quote" in wording(f"{before}Is a > b if b < a?", "Is a < b if b > a?").guards


def test_other_languages_are_left_alone() -> None:
    """Guards know English; for other languages they would pass every near miss."""
    assert len(FOREIGN) >= 20
    for text, near, english in FOREIGN:
        assert language(*both(text, near)), text
        assert language(*both(text, english)), text
        assert not language(*both(english, english)), english


def test_texts_that_talk_to_the_model_are_left_alone() -> None:
    """An attacker's text that embeds like a victim's question must neither donate nor take answers."""
    assert len(INJECTED) >= 20
    for text in INJECTED:
        assert injection(*both("How do I bake bread?", text)), text


def test_a_target_hidden_in_a_long_text_is_not_a_donor() -> None:
    """Known poisoning attacks put the victim's question in front of much other text."""
    assert len(PADDED) >= 20
    for text, padded in PADDED:
        assert length(*both(text, padded))
        assert forbids(*both(text, padded)) is not None


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ("What is time to first token?", "What does time to first token mean?"),
        ("How do I reset my password?", "I forgot my password, how do I reset it?"),
        ("How can I reset my password?", "How do I reset my password?"),
        ("Why isn't my card working?", "Why is my card not working?"),
        ("my payment did not go through", "my payment was declined"),
        ("shut off the lights", "turn off the lights"),
        ("Can you tell me the capital of France?", "What is the capital of France?"),
        ("difference between TCP and UDP", "difference between UDP and TCP"),
        ("dim the lights in the living room", "dim the living room lights"),
        ("How can I increase my height?", "How can you increase your height?"),
        ("How old do I have to be?", "How old do you have to be?"),
        ("How do I get traffic to my blog?", "How do I Get Traffic to my Blog?"),
        ("What is 20% of 50?", "What is 20 percent of 50?"),
        ("How far is 5 km?", "How far is 5 kilometers?"),
        ("Translate this into Swahili", "Translate this to Swahili"),
        ("How many calories burn in 30 minutes?", "How many calories does one burn in 30 minutes?"),
        ("What is your favourite Pokémon?", "What is your favourite pokemon?"),
        ("The app fails to start", "The app does not start"),
        ("Are Nicole and Adam dating?", "Are Adam and Nicole dating?"),
        ("How to fix 500 error in nginx", "How to fix error 500 in nginx"),
        ("How do I get the Windows 11 update?", "How do I update Windows 11?"),
        ("Which is better, iPhone 15 vs iPhone 14?", "iPhone 14 vs iPhone 15, which is better?"),
        ("Is Python free or not?", "Is Python free?"),
        ("upgrade/downgrade my plan", "upgrade or downgrade my plan"),
        ("How long before my refund arrives?", "How long does it take for my refund to arrive?"),
        ("How do I become a partner?", "How can I be a partner?"),
        ("Who can I contact about billing?", "Who should I contact about billing?"),
        ("What is the command used to list files?", "What is the command to list files?"),
        ("Does the app sync my photos?", "Do my photos sync with the app?"),
        ("password reset not working", "reset password not working"),
        ("How do I log back in to my account?", "How do I log in to my account?"),
        ("Refund – how does it work?", "Refund - how does it work?"),  # noqa: RUF001 - as phones write it
        ("How do I reset my password ?", "How do I reset my password !"),
        ("Shipping takes (3-5 days), right?", "Shipping takes 3-5 days, right?"),
        ("Add ½ cup of milk", "Add 1/2 cup of milk"),
        ("I live in France, do you ship there?", "Do you deliver to France?"),
        ("Is a cold viral?", "Is a cold a virus?"),
        ("Change my favourite driver", "Change my favorite driver"),
        ("Where is the call centre?", "Where is the call center?"),
        ("How do I sync my calendar?", "How do I synchronize my calendar?"),
        ("Where is the config file?", "Where is the configuration file?"),
        ("How do I clone a repo?", "How do I clone a repository?"),
        ("How do I complain about a driver?", "How do I make a complaint about a driver?"),
        ("How do I compare plans?", "How do I make a comparison of plans?"),
    ],
)
def test_what_the_first_page_promises(asked: str, kept: str) -> None:
    """The examples people try first; each was once stopped by a guard that was too eager."""
    assert forbids(*both(asked, kept)) is None


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ("How do I restart the server?", "How do I restart the service?"),
        ("How do I run unit tests?", "How do I run unity tests?"),
        ("How do I list songs?", "How do I listen to songs?"),
        ("How do I delete my story?", "How do I delete my storage?"),
    ],
)
def test_words_that_begin_and_end_alike_are_not_forms_of_one(asked: str, kept: str) -> None:
    """What a developer asks of one is no answer about the other."""
    assert forbids(*both(asked, kept)) == "substitution"


def test_near_misses_in_other_words_are_mostly_stopped_and_paraphrases_seldom() -> None:
    """300 of ten kinds, written without looking at the guards: what passes here is left to the learned boundary."""
    pairs = read_pairs(Path(__file__).parents[2] / "data" / "other_near_misses.tsv")
    stopped = {same: [forbids(*both(pair.a, pair.b)) for pair in pairs if pair.same == same] for same in (True, False)}
    hard = {same: sum(name not in (None, "substitution") for name in found) for same, found in stopped.items()}
    assert (len(stopped[False]), len(stopped[True])) == (300, 300)
    assert hard[False] >= 250
    assert hard[True] <= 15


def test_near_misses_of_families_that_nobody_had_named_are_stopped() -> None:
    """Letter case, signs, sums, look-alike words, tense, who does it: the version before served 25 of these 202.

    Guards were mended while looking at them: that shows that nothing is lost again, not how new ones fare.
    """
    pairs = read_pairs(Path(__file__).parents[2] / "data" / "third_near_misses.tsv")
    passed = {
        same: [pair for pair in pairs if pair.same == same and forbids(*both(pair.a, pair.b)) is None]
        for same in (True, False)
    }
    assert len(pairs) == 404
    assert [
        (pair.a, pair.b) for pair in passed[False] if pair.tag in {"case", "signs", "number", "role", "coreference"}
    ] == []
    assert len(passed[False]) <= 10
    assert len(passed[True]) >= 170


def test_near_misses_in_still_other_words_are_stopped_by_guards_or_look_unlike() -> None:
    """394 of ten kinds in three sets, each tried before its guards were mended; what passes has a low cosine."""
    pairs = read_pairs(Path(__file__).parents[2] / "data" / "more_near_misses.tsv")
    passed = {
        same: sum(pair.same == same and forbids(*both(pair.a, pair.b)) is None for pair in pairs)
        for same in (True, False)
    }
    assert len(pairs) == 788
    assert passed[False] <= 35
    assert passed[True] >= 360


@pytest.mark.parametrize(
    ("kept", "asked", "other"),
    [
        ("how many us pints are in an ounce", "how many ounces are in a us pint", True),
        ("how many us pints are in an ounce", "what's the number of ounces in a US pint", True),
        ("How many students does each teacher have?", "How many teachers does each student have?", True),
        ("How many pints are in an ounce?", "An ounce is how many pints?", False),
        ("How many sets and reps should I do?", "How many reps and sets should I do?", False),
        ("How many boxes fit on a pallet?", "How many fit on a pallet, of the boxes?", False),
    ],
)
def test_what_is_counted_is_asked_for(kept: str, asked: str, other: bool) -> None:
    """Conversions turned round have the very same words, and the reader takes them for one."""
    assert asked_of_other(analyse(kept), analyse(asked)) is other
