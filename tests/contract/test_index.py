"""One suite for every index in `cache/index/`: exact search is the reference the others are measured against."""

import numpy as np
import pytest

from cache.index import Index, known, load
from cache.vectors import Vector

DIMENSION = 32


def unit(count: int, seed: int = 0) -> Vector:
    drawn = np.random.default_rng(seed).standard_normal((count, DIMENSION)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


@pytest.fixture(params=known())
def index(request: pytest.FixtureRequest) -> Index:
    return load(request.param).Index(DIMENSION)


def test_indexes_are_found_by_name() -> None:
    """An index is a file in the folder; a typo must name the known ones."""
    assert "flat" in known()
    with pytest.raises(LookupError, match="flat"):
        load("flaat")


def test_finds_what_a_full_comparison_finds(index: Index) -> None:
    """Recall is a promise: the nearest kept text must be found when it is there."""
    vectors = unit(500)
    ids = [7 * i for i in range(500)]
    index.add(ids, vectors)
    recalled = 0
    for query in unit(50, seed=1):
        truth = np.argsort(-(vectors @ query))[:5]
        found = index.search(query, 5)
        recalled += len({near.entry_id for near in found} & {ids[i] for i in truth})
        assert [near.similarity for near in found] == sorted((near.similarity for near in found), reverse=True)
    assert recalled >= 0.95 * 250


def test_similarity_is_the_cosine(index: Index) -> None:
    """Thresholds are cosines; a distance or a rescaled score would shift every decision."""
    vectors = unit(3)
    index.add([1, 2, 3], vectors)
    (best,) = index.search(vectors[1], 1)
    assert best.entry_id == 2
    assert best.similarity == pytest.approx(1.0, abs=1e-3)
    assert best.similarity <= 1.0
    for near in index.search(vectors[0], 3):
        assert near.similarity == pytest.approx(float(vectors[0] @ vectors[near.entry_id - 1]), abs=1e-2)


def test_removed_is_gone(index: Index) -> None:
    """An evicted answer found again would be a wrong hit that never ends."""
    vectors = unit(20)
    index.add(list(range(20)), vectors)
    assert index.remove([3, 4, 99]) == 2
    assert len(index) == 18
    assert 3 not in {near.entry_id for near in index.search(vectors[3], 20)}
    assert index.remove([]) == 0


def test_empty_and_small(index: Index) -> None:
    """A new scope has nothing; asking for more than there is gives what there is."""
    assert index.search(unit(1)[0], 3) == []
    index.add([], unit(0))
    index.add([5], unit(1))
    assert [near.entry_id for near in index.search(unit(1)[0], 8)] == [5]
    assert index.search(unit(1)[0], 0) == []


def test_large_ids(index: Index) -> None:
    """Ids have 53 bits; a 32-bit index would return another entry."""
    index.add([2**53 - 1, 2**53 - 2], unit(2))
    assert index.search(unit(2)[0], 1)[0].entry_id == 2**53 - 1


def test_another_dimension_is_refused(index: Index) -> None:
    """Vectors of another encoder must not be mixed in."""
    with pytest.raises(ValueError, match="shape"):
        index.add([1], np.zeros((1, DIMENSION + 1), np.float32))
