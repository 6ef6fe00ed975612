"""One suite for every index in `cache/index/`: exact search is the reference the others are measured against."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


@pytest.mark.parametrize("bad", ["nan", "infinite", "zero", "long"])
def test_vectors_that_are_not_sound_are_refused(index: Index, bad: str) -> None:
    """A NaN is near to nothing and breaks every order; zero is as near to all; another length is no cosine."""
    vectors = unit(3)
    vectors[1] = {"nan": np.nan, "infinite": np.inf, "zero": 0.0, "long": 2.0 * vectors[1]}[bad]
    with pytest.raises(ValueError, match="normalised"):
        index.add([1, 2, 3], vectors)
    assert len(index) == 0
    index.add([1], unit(1))
    with pytest.raises(ValueError, match="normalised"):
        index.search(vectors[1], 1)
    with pytest.raises(ValueError, match="shape"):
        index.search(unit(1)[0][:-1], 1)


def test_what_is_saved_is_read_back(index: Index, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A restart must find the same neighbours at the same cosines."""
    vectors = unit(300)
    index.add(list(range(300)), vectors)
    index.remove([7])
    index.save(tmp_path / "index")
    again = load(request.node.callspec.params["index"]).restore(tmp_path / "index", DIMENSION)
    assert len(again) == 299
    for query in unit(20, seed=3):
        assert again.search(query, 5) == index.search(query, 5)
    again.add([7], vectors[7:8])
    assert again.search(vectors[7], 1)[0].entry_id == 7
    with pytest.raises(ValueError, match="another"):
        load(request.node.callspec.params["index"]).restore(tmp_path / "index", DIMENSION + 1)


@pytest.mark.parametrize(("written", "read"), [("flat", "ivf"), ("ivf", "flat")])
def test_another_kind_is_not_read(tmp_path: Path, written: str, read: str) -> None:
    """A file with another kind's name would be misread into anything."""
    index = load(written).Index(DIMENSION)
    index.add([1, 2], unit(2))
    index.save(tmp_path / "index")
    with pytest.raises(ValueError, match="another"):
        load(read).restore(tmp_path / "index", DIMENSION)
    (tmp_path / "rubbish").write_bytes(b"rubbish" * 100)
    with pytest.raises(ValueError, match="not a FAISS"):
        load(read).restore(tmp_path / "rubbish", DIMENSION)


def test_all_of_it_can_be_read(index: Index) -> None:
    """A rebuild takes its vectors from here: one left out would be lost for good."""
    vectors = unit(200)
    index.add(list(range(200)), vectors)
    index.remove(list(range(50)))
    read = {entry_id: row for ids, rows in index.blocks() for entry_id, row in zip(ids.tolist(), rows, strict=True)}
    assert sorted(read) == list(range(50, 200))
    for entry_id, row in read.items():
        assert float(row @ vectors[entry_id]) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("kind", known())
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "search"]), st.integers(0, 63)), max_size=120))
def test_any_order_of_changes_finds_what_comparing_all_finds(kind: str, steps: list[tuple[str, int]]) -> None:
    """Growing and shrinking in any order must never hide, double or bring back a vector."""
    index: Index = load(kind).Index(DIMENSION)
    vectors, held = unit(64, seed=9), dict[int, Vector]()
    for what, number in steps:
        if what == "add" and number not in held:
            index.add([number], vectors[number : number + 1])
            held[number] = vectors[number]
        elif what == "remove":
            assert index.remove([number]) == (held.pop(number, None) is not None)
        found = index.search(vectors[number], 3)
        truth = sorted((-float(vector @ vectors[number]), entry_id) for entry_id, vector in held.items())[:3]
        assert len(index) == len(held)
        assert [near.similarity for near in found] == pytest.approx([-distance for distance, _ in truth], abs=2e-3)
        assert {near.entry_id for near in found} <= held.keys()


def test_clusters_find_what_exact_search_finds() -> None:
    """Recall beside exact search, on texts around topics: near duplicates always, other neighbours nearly always."""
    drawn = np.random.default_rng(5)
    topics = unit(40, seed=6)[drawn.integers(0, 40, 6_000)]
    rows = topics + drawn.standard_normal(topics.shape).astype(np.float32) / np.sqrt(DIMENSION)
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    exact, clusters = load("flat").Index(DIMENSION), load("ivf").Index(DIMENSION)
    for index in (exact, clusters):
        index.add(list(range(6_000)), rows)
    close, all_of_it = 0, 0
    for number in range(0, 6_000, 60):
        query = rows[number] + 0.3 * drawn.standard_normal(DIMENSION).astype(np.float32) / np.sqrt(DIMENSION)
        query = (query / np.linalg.norm(query)).astype(np.float32)
        truth, found = exact.search(query, 8), clusters.search(query, 8)
        close += truth[0].entry_id == found[0].entry_id
        all_of_it += len({near.entry_id for near in truth} & {near.entry_id for near in found})
    assert close == 100
    assert all_of_it >= 0.95 * 800
