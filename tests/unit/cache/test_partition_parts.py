"""The table of digests by id and the arrays in which new vectors wait."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cache.fresh import Fresh
from cache.table import Table

DIMENSION = 8
IDS = st.integers(0, (1 << 53) - 1)


class TableMachine(RuleBasedStateMachine):
    """Beside a plain dictionary, also across the point where it becomes many."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Table()
        self.truth: dict[int, bytes] = {}

    @rule(entry_id=st.integers(0, 30), value=st.binary(max_size=3))
    def put(self, entry_id: int, value: bytes) -> None:
        self.table.put(entry_id, value)
        self.truth[entry_id] = value

    @rule(entry_id=st.integers(0, 40))
    def pop(self, entry_id: int) -> None:
        assert self.table.pop(entry_id) == self.truth.pop(entry_id, None)

    @rule()
    def many(self) -> None:
        more = {1_000 + number: b"m" for number in range(9_000)}
        self.table.update(more.items())
        self.truth |= more

    @rule()
    def copied(self) -> None:
        before, self.table = self.table, self.table.copy()
        before.update([(7_777_777, b"only in the old one")])

    @invariant()
    def same(self) -> None:
        assert len(self.table) == len(self.truth)
        assert all(self.table.get(one) == self.truth.get(one) for one in range(42))
        assert [one in self.table for one in range(42)] == [one in self.truth for one in range(42)]


TestTable = TableMachine.TestCase
TestTable.settings = TestTable.settings.__class__(max_examples=8, stateful_step_count=10, deadline=None)


@given(st.dictionaries(IDS, st.binary(max_size=2), max_size=50))
def test_a_table_lists_what_it_holds(held: dict[int, bytes]) -> None:
    """A snapshot and a reload read all of it."""
    table = Table(held.items())
    assert dict(table.items()) == held
    assert set(table) == held.keys()
    assert "text" not in table


def unit(count: int) -> np.ndarray:
    drawn = np.random.default_rng(count).standard_normal((count, DIMENSION)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def test_waiting_vectors_are_found_and_handed_on_in_order() -> None:
    """More than one chunk of them: nothing may be lost, doubled or cut at the seams."""
    fresh, vectors = Fresh(DIMENSION), unit(2_500)
    for start in range(0, 2_500, 700):
        fresh.add(list(range(start, min(start + 700, 2_500))), vectors[start : start + 700])
    assert len(fresh) == 2_500
    for number in (0, 1_023, 1_024, 2_047, 2_499):
        best = max(fresh.search(vectors[number], 3), key=lambda near: near.similarity)
        assert best.entry_id == number
        assert 0.999 < best.similarity <= 1.0
    pieces = fresh.slices(64)
    assert [one for ids, _ in pieces for one in ids] == list(range(2_500))
    assert np.array_equal(np.concatenate([rows for _, rows in pieces]), vectors)
    assert max(len(ids) for ids, _ in pieces) == 64


def test_nothing_waits_in_an_empty_one() -> None:
    """A partition asks before anything was added."""
    fresh = Fresh(DIMENSION)
    assert (len(fresh), fresh.search(unit(1)[0], 8), fresh.slices(64)) == (0, [], [])
    fresh.add([5], unit(1))
    assert [near.entry_id for near in fresh.search(unit(1)[0], 8)] == [5]
