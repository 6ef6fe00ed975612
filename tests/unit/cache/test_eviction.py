"""Which answer goes first: worth per byte, aged, in any order of uses."""

import math

from hypothesis import given
from hypothesis import strategies as st

from cache.store.memory import MemoryStore
from cache.types import Entry
from policies import eviction

MOMENT = 1_790_000_000.0
costs = st.floats(0, 1e12)
moments = st.floats(MOMENT, MOMENT + 1e7)


@given(costs, costs, st.integers(1, 1 << 24), moments)
def test_what_saves_more_stays_longer(one: float, other: float, size: int, now: float) -> None:
    """Evicting the dearer of two equals would cost money for nothing."""
    low, high = sorted((one, other))
    assert eviction.first(eviction.worth(low, 0, size), now) <= eviction.first(eviction.worth(high, 0, size), now)


@given(costs, st.integers(1, 1 << 24), st.integers(1, 1 << 24))
def test_what_takes_less_room_stays_longer(cost: float, one: int, other: int) -> None:
    """Of two answers that save the same, the small one leaves room for more of its kind."""
    small, large = sorted((one, other))
    assert eviction.worth(cost, 0, small) >= eviction.worth(cost, 0, large)


@given(st.floats(-40, 40), st.lists(st.tuples(moments, st.integers(1, 1_000)), min_size=2, max_size=6))
def test_uses_count_the_same_in_any_order(worth: float, uses: list[tuple[float, int]]) -> None:
    """Workers write their notes late and in any order; the sum must not depend on it."""

    def after(order: list[tuple[float, int]]) -> float:
        rank = eviction.first(worth, MOMENT)
        for now, times in order:
            rank = eviction.again(rank, worth, now, times)
        return rank

    assert math.isclose(after(uses), after(uses[::-1]), rel_tol=1e-12)


@given(st.floats(-40, 40), moments, st.integers(1, 10_000))
def test_a_use_never_lowers_a_rank(worth: float, now: float, times: int) -> None:
    """The memory store's heap relies on it."""
    rank = eviction.first(worth, MOMENT)
    assert eviction.again(rank, worth, now, times) >= rank
    assert eviction.again(rank, worth, now, 0) == rank


def test_a_use_counts_half_after_a_half_life() -> None:
    """What was popular last week must give way to what is popular now."""
    twice_long_ago = eviction.again(eviction.first(0.0, MOMENT), 0.0, MOMENT)
    assert math.isclose(twice_long_ago, eviction.first(0.0, MOMENT + eviction.HALF_LIFE))


@given(st.floats(), st.floats(), st.integers(-5, 1 << 30))
def test_nonsense_saves_nothing(cost: float, latency: float, size: int) -> None:
    """A provider's broken price must not make an entry immortal or crash the store."""
    assert math.isfinite(eviction.worth(cost, latency, size))


@given(st.integers(0, 10_000), st.integers(1, 10_000), st.integers(0, 1 << 40), st.integers(1, 1 << 40))
def test_some_go_while_there_are_too_many_and_never_the_last(held: int, most: int, size: int, bound: int) -> None:
    """A loop that lets go until all is within bounds must end, and must not empty the store."""
    over = eviction.surplus(held, most, size, bound)
    assert 0 <= over <= max(0, held - 1)
    assert (over > 0) == (held > 1 and (held > most or size > bound))


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10**9), st.integers(0, 4_000), st.booleans()), max_size=80)
)
async def test_bounds_hold_after_every_write(writes: list[tuple[int, int, int, bool]]) -> None:
    """Under any load neither the count nor the bytes may pass their bound, and the newest answer is there."""
    now = [MOMENT]
    store = MemoryStore(max_entries=8, max_bytes=30_000, now=lambda: now[0])
    for at, (key, cost, size, used) in enumerate(writes):
        now[0] += 60
        exact = key.to_bytes(32, "big")
        await store.put(
            Entry(
                id=at + 1,
                scope=b"s",
                exact=exact,
                text="",
                answer=b"x" * size,
                prompt_tokens=0,
                completion_tokens=0,
                cost_nano=cost,
                latency_ms=0.0,
                created=now[0],
                expires=now[0] + (120 if used else 10_000),
            )
        )
        if used:
            store.touch(exact)
        assert await store.get(exact) is not None
        assert len(store._entries) <= 8
        assert store._bytes <= 30_000
        assert len(store._entries) == len(store._ranks._rank_of)
