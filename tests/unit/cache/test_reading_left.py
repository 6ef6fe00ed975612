"""Which pairs a pass over what the rules leave is made of."""

import pytest

from cache.bench.vectors import Embedder
from cache.training import reading
from cache.training.reading_left import Labelled, Remaining, left

BASE = "How do I reset my password?"
ALIKE = ((BASE, "How can I reset my account password?"), True)
SUBTLE = ((BASE, "How do I reset my forgotten password?"), False)
REFUSED = ((BASE, "How do I not reset my password?"), False)
FAR = ((BASE, "When does the swimming pool open on Sundays?"), False)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    return Embedder(tmp_path_factory.mktemp("vectors"))


def test_what_a_rule_refuses_or_is_far_apart_is_not_left(embedder: Embedder) -> None:
    """A reader that is taught what others have decided learns to be sure of what it is never asked."""
    found = left([ALIKE, SUBTLE, REFUSED, FAR], embedder)
    assert (found.alike, found.unlike, found.others) == ([ALIKE], [SUBTLE], [REFUSED, FAR])


def test_an_epoch_has_what_is_left_and_some_of_the_rest(embedder: Embedder) -> None:
    """Bounded by group, so that a large one does not drown the others, and repeatable."""
    alike: list[Labelled] = [((BASE, f"{ALIKE[0][1]} {'!' * i}"), True) for i in range(12)]
    held = [[*alike, SUBTLE, REFUSED, FAR], [FAR], []]
    first, again = (Remaining(held, embedder, seed=3).epoch(alike=5, unlike=5) for _ in range(2))
    assert first == again
    sorted_pairs = [(frozenset(texts), same) for texts, same in first]
    assert sum(same for _, same in sorted_pairs) == 5
    assert (frozenset(SUBTLE[0]), False) in sorted_pairs
    assert 6 <= len(first) <= 8
    assert any(texts[0] != BASE for texts, _ in first), "either may be the kept one"


def test_the_last_pass_of_the_recipe_is_one_of_these(embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups and given pairs alike; the passes before draw as they did."""
    monkeypatch.setattr(reading, "groups", lambda _: [reading.Group(BASE, [ALIKE[0][1]], [("adds", SUBTLE[0][1])])])
    drawn = reading.samples(
        reading.RECIPE[-1], [REFUSED, ((BASE, "How could I reset my password?"), True)], embedder, 0
    )
    assert isinstance(drawn, Remaining)
    epoch = drawn.epoch(10, 10)
    assert {frozenset(texts) for texts, same in epoch if not same} >= {frozenset(SUBTLE[0])}
    assert isinstance(reading.samples(reading.RECIPE[0], [], embedder, 0), reading.Sampler)
