"""Judges: whether two answers say the same, how sure that is, and that their errors are measured and not hoped for."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.embedder import HashEncoder
from cache.judging import Pair, gold, text_of
from cache.judging.features import NAMES, features
from cache.judging.offline import OfflineJudge, shipped


def pair(kept: str, fresh: str, question: str = "What is the capital of France?") -> Pair:
    return Pair(question=question, kept=kept, fresh=fresh)


def test_the_gold_set_is_large_mixed_and_without_repeats() -> None:
    """A flip rate measured on a handful of easy pairs would be a boast."""
    pairs = gold()
    assert len(pairs) >= 120
    assert 0.35 < sum(item.same for item in pairs) / len(pairs) < 0.65
    assert len({(item.question, item.a, item.b) for item in pairs}) == len(pairs)
    assert len({item.tag for item in pairs}) >= 10


@pytest.mark.parametrize(
    ("kept", "fresh"),
    [
        ("Paris.", "paris"),
        ("**Paris**", "Paris"),
        ("- Red\n- Blue", "1. red\n2. blue"),
        ("It costs 1,200 dollars.", "it costs 1200 dollars"),
        ("", ""),
    ],
)
async def test_spelling_and_markup_are_no_difference(kept: str, fresh: str) -> None:
    """Equal texts are decided without any model, and with next to no doubt."""
    (found,) = await OfflineJudge().compare([pair(kept, fresh)])
    assert (found.verdict, found.by) == ("same", "offline")
    assert found.flip < 0.01


@pytest.mark.parametrize(
    ("kept", "fresh"),
    [
        ("The trial lasts 14 days.", "The trial lasts 30 days."),
        ("Yes, the shop is open on Sundays.", "No, the shop is closed on Sundays."),
        ("I'm sorry, I cannot help with that.", "The capital of France is Paris."),
        ("Use `ls`.", "Use `cd`."),
    ],
)
async def test_a_difference_that_matters_is_never_called_the_same(kept: str, fresh: str) -> None:
    """One wrong key is served again and again; unsure costs nothing."""
    for judge in (OfflineJudge(), OfflineJudge(HashEncoder())):
        (found,) = await judge.compare([pair(kept, fresh)])
        assert found.verdict in {"different", "unsure"}


async def test_the_shipped_judge_keeps_on_the_gold_set_what_its_file_says() -> None:
    """The flip rate goes into every label; were the file out of date, every budget would rest on a wrong number."""
    pairs = gold()
    said = await OfflineJudge().compare([item.pair for item in pairs])
    sure = [(item.same, one.verdict) for item, one in zip(pairs, said, strict=True) if one.verdict != "unsure"]
    wrong = sum(same != (verdict == "same") for same, verdict in sure)
    assert len(sure) > 0.3 * len(pairs)
    assert wrong / len(sure) <= 0.05
    assert 0.01 < shipped().plain.flip < 0.1


@given(st.text(max_size=300), st.text(max_size=300), st.text(max_size=100))
def test_any_text_has_bounded_features_and_order_does_not_matter(kept: str, fresh: str, question: str) -> None:
    """Answers are hostile input: emoji, right-to-left, nothing at all; and which came first means nothing."""
    one = features(pair(kept, fresh, question), None)
    other = features(pair(fresh, kept, question), None)
    assert one.shape == (len(NAMES),)
    assert np.all(np.abs(one) < 20)
    symmetric = [name not in {"negation", "antonym", "date", "name", "order", "kind", "logic"} for name in NAMES]
    assert np.allclose(one[symmetric], other[symmetric])


async def test_a_long_answer_is_never_surely_the_same() -> None:
    """Only its beginning is compared, and the end may say the opposite."""
    text = "the same words again " * 500
    (found,) = await OfflineJudge().compare([pair(text, text + "but not so")])
    assert found.verdict != "same"


def test_only_text_is_compared() -> None:
    """Whatever holds no plain text (tools, refusals, damage) is not judged at all."""
    body = {"choices": [{"message": {"content": "hello"}}]}
    assert text_of(msgspec.json.encode(body)) == "hello"
    assert text_of(msgspec.json.encode({"choices": [{"text": "hello"}]})) == "hello"
    for other in ({}, {"choices": []}, {"choices": [{"message": {"content": None}}]}, [1], {"data": [{}]}):
        assert text_of(msgspec.json.encode(other)) is None
    assert text_of(b"\xff{") is None
