"""One scope's vectors through all its ways: small, large, clustered, shrunk, while searches and changes go on."""

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from cache.index.flat import Index
from cache.partition import Partition, Shape, Sizes, Step, next_step
from cache.store import Change, VectorRow
from cache.vectors import Vector, pack

DIMENSION = 16
SMALL = Sizes(inline=50, clusters=200, exact=100, regrow=3.0, fold=20, dead_least=10)


def unit(count: int, seed: int = 0) -> Vector:
    drawn = np.random.default_rng(seed).standard_normal((count, DIMENSION)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def add(number: int, vector: Vector) -> Change:
    return Change("add", b"s", "e", VectorRow(number, number.to_bytes(32, "big"), 9e9, pack(vector)))


def drop(number: int) -> Change:
    return Change("drop", b"s", "e", VectorRow(number, b"", 0.0, b""))


def partition(sizes: Sizes = SMALL) -> Partition:
    return Partition(lambda: Index(DIMENSION), sizes)


@pytest.mark.parametrize(
    ("shape", "step"),
    [
        (Shape("flat", 10, 0, 0, 0), None),
        (Shape("flat", 10, 0, 3, 0), "fold"),
        (Shape("flat", 60, 0, 19, 0), None),
        (Shape("flat", 60, 0, 20, 0), "fold"),
        (Shape("flat", 60, 12, 0, 0), "compact"),
        (Shape("flat", 190, 0, 10, 0), "ivf"),
        (Shape("ivf", 150, 0, 0, 150), None),
        (Shape("flat", 150, 0, 0, 0), None),
        (Shape("ivf", 150, 60, 0, 150), "flat"),
        (Shape("ivf", 600, 0, 0, 200), "ivf"),
    ],
)
def test_what_is_due(shape: Shape, step: Step | None) -> None:
    """Between the two bounds a partition stays what it is, or it would be rebuilt at every second change."""
    assert next_step(shape, SMALL) == step


async def settled(found: Partition) -> None:
    await found.tend()
    assert found.wants() is None


async def test_it_finds_the_same_at_every_size() -> None:
    """Growing through every form and back must neither lose, double nor bring back an entry."""
    found, vectors, held = partition(), unit(700), dict[int, Vector]()
    kinds: list[str] = []
    drawn = np.random.default_rng(1)
    for number in [*range(700), *drawn.permutation(700).tolist()]:
        if number in held:
            found.take(drop(number))
            del held[number]
        else:
            found.take(add(number, vectors[number]))
            held[number] = vectors[number]
        if found.wants() is not None:
            await found.tend()
        if number % 23 == 0 and held:
            query = unit(1, seed=number)[0]
            truth = max(held, key=lambda one: float(held[one] @ query))
            near = await found.search(query, 4)
            assert near[0].entry_id == truth
            assert {one.entry_id for one in near} <= held.keys()
            assert len({one.entry_id for one in near}) == len(near) == min(4, len(held))
        kinds.append(found.kind)
    assert kinds[0] == "flat"
    assert kinds[600] == "ivf"
    assert kinds[-1] == "flat"
    assert len(found) < 30


async def test_changes_and_searches_go_on_while_it_is_rebuilt() -> None:
    """A rebuild of minutes must not lose what is added, removed or brought back meanwhile."""
    found, vectors = partition(), unit(2_000)
    await found.fill([add(number, vectors[number]).row for number in range(1_000)])
    tending = asyncio.get_running_loop().create_task(found.tend())
    for number in range(1_000, 1_400):
        found.take(add(number, vectors[number]))
        found.take(drop(number - 1_000))
        if number % 3 == 0:
            found.take(add(number - 1_000, vectors[number - 1_000]))
        if number % 10 == 0:
            near = await found.search(vectors[number], 1)
            assert near[0].entry_id == number
    await tending
    await settled(found)
    assert found.kind == "ivf"
    alive = {number for number in range(400) if (number + 1_000) % 3 == 0} | set(range(400, 1_400))
    assert set(found.exact_of) == alive
    for number in range(1_400):
        near = await found.search(vectors[number], 2)
        assert (near[0].entry_id == number) == (number in alive), number
        assert len({one.entry_id for one in near}) == 2


async def test_dead_neighbours_do_not_hide_live_ones() -> None:
    """Hundreds of removed near duplicates around a question must not make it find nothing."""
    found = partition(Sizes(inline=10, clusters=10_000, exact=1, dead_least=100_000))
    (centre,) = unit(1)
    rows = [add(number, centre).row for number in range(500)]
    await found.fill([*rows, add(900, unit(1, seed=4)[0]).row])
    for number in range(500):
        found.take(drop(number))
    near = await found.search(centre, 3)
    assert [one.entry_id for one in near] == [900]


async def test_what_is_not_sound_is_left_out() -> None:
    """One damaged row must cost that row, never the partition; a broken question finds nothing."""
    found, (good,) = partition(), unit(1)
    bad = [good * np.nan, good * 0.0, good * 3.0, good[:-1], np.append(good, 1.0), good * np.inf]
    for number, vector in enumerate(bad):
        found.take(add(number, vector.astype(np.float32)))
    found.take(Change("add", b"s", "e", VectorRow(50, b"", 9e9, b"odd")))
    found.take(add(99, good))
    assert [one.entry_id for one in await found.search(good, 8)] == [99]
    for vector in bad:
        assert await found.search(vector.astype(np.float32), 8) == []


async def test_a_search_that_is_given_up_harms_nobody() -> None:
    """The thread of a cancelled search still reads the index: changes must wait for it."""
    found, vectors = partition(Sizes(inline=1, clusters=10_000, exact=1, fold=10)), unit(3_000)
    await found.fill([add(number, vectors[number]).row for number in range(2_000)])
    for number in range(2_000, 2_200):
        task = asyncio.get_running_loop().create_task(found.search(vectors[number], 3))
        await asyncio.sleep(0)
        task.cancel()
        found.take(add(number, vectors[number]))
        found.take(drop(number - 2_000))
        if found.wants() is not None:
            await found.tend()
    assert (await found.search(vectors[2_100], 1))[0].entry_id == 2_100


async def test_the_loop_goes_on_while_a_large_partition_is_tended(longest_turn: Callable[[], float]) -> None:
    """The event loop carries every stream of a worker: building, folding and compacting belong into threads."""
    found = partition(Sizes(inline=2_000, clusters=4_000, exact=1_000, fold=500))
    vectors = unit(9_000)
    rows = [add(number, vectors[number]).row for number in range(8_000)]
    for start in range(0, 8_000, 1_000):
        await found.fill(rows[start : start + 1_000])
    longest_turn()
    await found.tend()
    for number in range(8_000, 9_000):
        found.take(add(number, vectors[number]))
        found.take(drop(number - 8_000))
        await asyncio.sleep(0)
    await found.tend()
    # In the loop's own processor time; generous, for the machine may be slow.
    assert longest_turn() < 0.05


@pytest.fixture
async def longest_turn() -> Callable[[], float]:
    """Processor seconds the loop's thread used between two turns at most, since the last call."""
    import time

    worst, last = [0.0], [time.thread_time()]

    def turn() -> None:
        now = time.thread_time()
        worst[0], last[0] = max(worst[0], now - last[0]), now
        loop.call_soon(turn)

    loop = asyncio.get_running_loop()
    loop.call_soon(turn)

    def take() -> float:
        found, worst[0] = worst[0], 0.0
        return found

    return take
