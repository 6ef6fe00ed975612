"""Features of a question and an answer: bounded, blind to order, and telling."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from policies.reuse import Neighbour, told
from policies.reuse.pairs import NAMES, WIDTH, candidates, if_alike

texts = st.one_of(
    st.text(max_size=60), st.sampled_from(("How do I reset my password?", "Reset it", "", " ", "\u0645\u0631"))
)
neighbours = st.lists(
    st.builds(
        Neighbour,
        entry_id=st.integers(0, 99),
        text=texts,
        similarity=st.floats(-1.0, 1.0),
        answer_id=st.one_of(st.none(), st.integers(0, 5)),
        good=st.floats(0, 1e6),
        bad=st.floats(0, 1e6),
        reading=st.one_of(st.none(), st.floats(-20.0, 20.0)),
    ),
    max_size=8,
    unique_by=lambda neighbour: neighbour.entry_id,
)


@given(texts, neighbours)
def test_every_feature_is_finite_and_bounded(text: str, near: list[Neighbour]) -> None:
    """Whatever somebody sends, no number may break the model or shout down the others."""
    for candidate in candidates(text, near, 3):
        assert candidate.features.shape == (WIDTH,)
        assert np.isfinite(candidate.features).all()
        assert np.abs(candidate.features).max() <= 20.0


@given(texts, neighbours, st.randoms(use_true_random=False))
def test_the_order_of_neighbours_does_not_matter(text: str, near: list[Neighbour], drawn: object) -> None:
    """Indexes return ties in any order."""
    turned = sorted(near, key=lambda item: hash((item.entry_id, str(drawn))))
    assert [item.features.tobytes() for item in candidates(text, near, 3)] == [
        item.features.tobytes() for item in candidates(text, turned, 3)
    ]


@given(texts, texts)
def test_what_is_hoped_of_a_reading_is_what_it_would_be(text: str, kept: str) -> None:
    """Who decides whether to ask for a reading must see the candidate as it will be, to the last number."""
    unread = Neighbour(entry_id=1, text=kept, similarity=0.9)
    (candidate,) = candidates(text, [unread], 1)
    hoped = if_alike(candidate)
    (read,) = candidates(text, told([unread], {1: 9.0}), 1)
    assert hoped.features.tobytes() == read.features.tobytes()
    assert hoped.guards == read.guards
    assert not read.readable


def feature(name: str, text: str, near: list[Neighbour], at: int = 0) -> float:
    return float(candidates(text, near, 3)[at].features[NAMES.index(name)])


def test_keys_of_one_answer_stand_together() -> None:
    """An approved paraphrase is one more witness for its answer, not a rival of it."""
    alone = [Neighbour(entry_id=1, text="Reset my password", similarity=0.9)]
    rival = Neighbour(entry_id=2, text="Change my password", similarity=0.89)
    friend = Neighbour(entry_id=2, text="Change my password", similarity=0.89, answer_id=1)
    text = "How to reset the password"
    assert feature("margin", text, [*alone, rival]) < 0.02
    assert feature("margin", text, [*alone, friend]) == feature("margin", text, alone)
    assert feature("share", text, [*alone, friend]) == 1.0
    assert feature("keys", text, [*alone, friend]) == 1.0
    assert len(candidates(text, [*alone, friend], 3)) == 1


def test_the_record_of_an_answer_counts() -> None:
    """An answer that was wrong before is not as good as one that was right."""
    good, bad = (
        Neighbour(entry_id=1, text="Reset my password", similarity=0.9, good=g, bad=b) for g, b in ((5, 0), (0, 5))
    )
    assert feature("record", "reset password", [good]) > 0.0 > feature("record", "reset password", [bad])
