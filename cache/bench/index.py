"""`python -m cache.bench.index --entries N`: one partition of N entries here, from the first load to a restart.

Measures look-ups, memory, building, rebuilding, snapshots, and how long the event loop stands still meanwhile. Vectors
are drawn: unit vectors around topics, so that some are close, as texts are; a near duplicate has a cosine of 0.95.
Does not measure embedding or a store: rows come from a generator.
"""

import argparse
import asyncio
import datetime as dt
import gc
import os
import platform
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Container
from pathlib import Path
from typing import Any, cast

import faiss
import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from cache.index.flat import Index
from cache.partitions import Key, NotReady, Partitions, Saving
from cache.snapshots import Snapshots
from cache.store import Change, Store, VectorRow
from cache.vectors import Ids, Vector, pack

DIMENSION = 384
KEY: Key = (b"s" * 32, "drawn")
_PAGE = 1_000
_TOPICS = 2_000
_QUERIES = 2_000
_COMPARED = 100
_ADDED = 5_000
_NEIGHBOURS = 8
_FAR_AWAY = 4e9


class Result(Struct, kw_only=True):
    """Milliseconds and seconds as measured; `stall`: the longest time the event loop was late, in milliseconds."""

    entries: int
    dimension: int
    load_s: float
    load_stall_ms: float
    cluster_and_save_s: float
    cluster_stall_ms: float
    lookup_p50_ms: float
    lookup_p99_ms: float
    lookup_busy_p99_ms: float
    recall_near_duplicate: float
    recall_8: float
    memory_per_entry: float
    add_s: float
    add_stall_ms: float
    remove_and_compact_s: float
    remove_stall_ms: float
    rebuild_s: float
    rebuild_stall_ms: float
    snapshot_bytes: int
    snapshot_load_s: float
    snapshot_load_stall_ms: float
    found_after_restart: float


class Drawn:
    """Obeys what `Partitions` asks of a store. Row `n` is always the same."""

    def __init__(self, entries: int) -> None:
        self.entries = entries
        self._topics = unit(np.random.default_rng(1).standard_normal((_TOPICS, DIMENSION)))

    def block(self, number: int) -> Vector:
        draw = np.random.default_rng(1_000 + number)
        centres = self._topics[draw.integers(0, _TOPICS, _PAGE)]
        return unit(centres + draw.standard_normal((_PAGE, DIMENSION)) / np.sqrt(DIMENSION))

    def row(self, number: int, vector: Vector) -> VectorRow:
        return VectorRow(entry_id(number), number.to_bytes(32, "big"), _FAR_AWAY, pack(vector))

    async def pages(
        self,
        scope: bytes,  # noqa: ARG002 - there is one scope
        encoder: str,  # noqa: ARG002 - and one encoder
        *,
        known: Container[int] = (),  # noqa: ARG002 - and nothing is known
    ) -> AsyncGenerator[list[VectorRow], None]:
        for number in range(self.entries // _PAGE):
            vectors = await asyncio.to_thread(self.block, number)
            yield [self.row(number * _PAGE + at, vectors[at]) for at in range(_PAGE)]

    def position(self) -> str:
        return "now"

    async def since(self, position: str) -> list[Change] | None:  # noqa: ARG002 - nothing has changed
        return []


class Heart:
    """Beats every millisecond and notes how late it was."""

    def __init__(self) -> None:
        self.worst = 0.0

    async def beat(self) -> None:
        while True:
            wanted = time.perf_counter() + 0.001
            await asyncio.sleep(0.001)
            self.worst = max(self.worst, time.perf_counter() - wanted)

    def take(self) -> float:
        worst, self.worst = self.worst * 1_000, 0.0
        return round(worst, 2)


def unit(matrix: NDArray[np.floating[Any]]) -> Vector:
    return (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32)


def entry_id(number: int) -> int:
    """Scattered like real ids, and different for each number below 2**53."""
    return (number * 0x9E3779B97F4A7) % (1 << 53)


def resident() -> int:
    """Bytes of memory this process holds now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Run:
    """One measurement; `say` gets a line after each step."""

    def __init__(self, entries: int, folder: Path, say: Callable[[str], None]) -> None:
        self._store = Drawn(entries)
        self._folder = folder
        self._say = say
        self._heart = Heart()
        self._found: dict[str, float] = {}
        self._draw = np.random.default_rng(7)

    async def all(self) -> Result:
        heart = asyncio.get_running_loop().create_task(self._heart.beat())
        before = resident()
        partitions = self._open()
        await self._load(partitions)
        self._note("memory_per_entry", (resident() - before) / self._store.entries)
        await self._look_up(partitions)
        await self._change(partitions)
        await partitions.close()
        await self._restart()
        heart.cancel()
        return msgspec.convert(
            self._found | {"entries": self._store.entries, "dimension": DIMENSION}, Result, strict=False
        )

    def _open(self) -> Partitions:
        return Partitions(
            cast("Store", self._store),
            make=lambda: Index(DIMENSION),
            now=time.time,
            max_partitions=8,
            max_vectors=1 << 40,
            saving=Saving(Snapshots(self._folder), pause=0.0, share=2.0),
        )

    async def _load(self, partitions: Partitions) -> None:
        query = self._store.block(0)[0]
        started = time.perf_counter()
        await until_there(partitions, query)
        self._note("load_s", time.perf_counter() - started, stall="load_stall_ms")
        started = time.perf_counter()
        await partitions.settle()
        self._note("cluster_and_save_s", time.perf_counter() - started, stall="cluster_stall_ms")

    async def _look_up(self, partitions: Partitions) -> None:
        numbers = self._draw.integers(0, self._store.entries, _QUERIES)
        queries = self._near(numbers)
        took, right = await self._search(partitions, queries, numbers)
        self._note("lookup_p50_ms", float(np.percentile(took, 50)))
        self._note("lookup_p99_ms", float(np.percentile(took, 99)))
        self._note("recall_near_duplicate", right)
        fresh = self._store.block(1_000_000)[:_COMPARED]
        truth = await asyncio.to_thread(self._brute, fresh)
        found = [
            {one.entry_id for one in await partitions.search(KEY, query, _NEIGHBOURS, wait=60.0)} for query in fresh
        ]
        self._note("recall_8", float(np.mean([len(a & b) / _NEIGHBOURS for a, b in zip(found, truth, strict=True)])))

    async def _change(self, partitions: Partitions) -> None:
        first = self._store.entries + _PAGE
        blocks = [self._store.block(first // _PAGE + number) for number in range(_ADDED // _PAGE)]
        rows = [self._store.row(first + at, vector) for at, vector in enumerate(np.concatenate(blocks))]
        numbers = self._draw.integers(0, self._store.entries, _QUERIES)
        queries = self._near(numbers)
        await asyncio.sleep(0.01)
        self._heart.take()
        started = time.perf_counter()
        for at, row in enumerate(rows):
            partitions.apply(Change("add", *KEY, row))
            if at % 20 == 0:
                await asyncio.sleep(0)
        took, _ = await self._search(partitions, queries, numbers)
        self._note("lookup_busy_p99_ms", float(np.percentile(took, 99)))
        await partitions.settle()
        self._note("add_s", time.perf_counter() - started, stall="add_stall_ms")
        started = time.perf_counter()
        for number in range(0, self._store.entries, 4):
            partitions.forget(KEY, entry_id(number))
            if number % 400 == 0:
                await asyncio.sleep(0)
        await partitions.settle()
        self._note("remove_and_compact_s", time.perf_counter() - started, stall="remove_stall_ms")
        partition = await partitions.get(KEY, 60.0)
        started = time.perf_counter()
        await partition.rebuild()
        self._note("rebuild_s", time.perf_counter() - started, stall="rebuild_stall_ms")

    async def _restart(self) -> None:
        self._note("snapshot_bytes", sum(path.stat().st_size for path in self._folder.iterdir()))
        partitions = self._open()
        self._heart.take()
        started = time.perf_counter()
        await until_there(partitions, self._store.block(0)[0])
        self._note("snapshot_load_s", time.perf_counter() - started, stall="snapshot_load_stall_ms")
        numbers = self._draw.integers(0, self._store.entries, 200)
        _, right = await self._search(partitions, self._near(numbers), numbers)
        self._note("found_after_restart", right)
        await partitions.close()

    async def _search(self, partitions: Partitions, queries: Vector, numbers: Ids) -> tuple[list[float], float]:
        took: list[float] = []
        right = 0
        for query, number in zip(queries, numbers.tolist(), strict=True):
            started = time.perf_counter()
            found = await partitions.search(KEY, query, _NEIGHBOURS, wait=60.0)
            took.append((time.perf_counter() - started) * 1_000)
            right += bool(found) and found[0].entry_id == entry_id(int(number))
        return took, right / len(queries)

    def _near(self, numbers: Ids) -> Vector:
        """Near duplicates of these rows."""
        blocks = {block: self._store.block(block) for block in {int(number) // _PAGE for number in numbers}}
        rows = np.stack([blocks[int(number) // _PAGE][int(number) % _PAGE] for number in numbers])
        return unit(rows + 0.33 * self._draw.standard_normal(rows.shape) / np.sqrt(DIMENSION))

    def _brute(self, queries: Vector) -> list[set[int]]:
        """The true neighbours, by comparing everything."""
        best = np.full((len(queries), _NEIGHBOURS), -2.0, np.float32)
        ids = np.zeros((len(queries), _NEIGHBOURS), np.int64)
        for number in range(self._store.entries // _PAGE):
            close = queries @ self._store.block(number).T
            here = np.array([entry_id(number * _PAGE + at) for at in range(_PAGE)])
            both = np.concatenate([best, close], axis=1)
            order = np.argpartition(-both, _NEIGHBOURS, axis=1)[:, :_NEIGHBOURS]
            best = np.take_along_axis(both, order, 1)
            ids = np.take_along_axis(np.concatenate([ids, np.tile(here, (len(queries), 1))], axis=1), order, 1)
        return [set(row.tolist()) for row in ids]

    def _note(self, name: str, value: float, *, stall: str | None = None) -> None:
        self._found[name] = round(value, 4)
        self._say(f"{name} {value:,.4g}")
        if stall is not None:
            self._found[stall] = self._heart.take()
            self._say(f"{stall} {self._found[stall]:,.4g}")


async def until_there(partitions: Partitions, query: Vector) -> None:
    """The first look-up starts the load; it is there for a later one."""
    while True:
        try:
            await partitions.search(KEY, query, 1, wait=1.0)
        except NotReady:
            continue
        return


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m cache.bench.index", description="One large partition, measured.")
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--save", type=Path, help="a folder for the result as dated JSON")
    chosen = parser.parse_args()
    # As in the gateway's workers: another thread gives the interpreter back soon.
    sys.setswitchinterval(0.001)
    started = dt.datetime.now(dt.UTC)  # noqa: TID251 - a command's own clock

    def say(line: str) -> None:
        sys.stderr.write(line + "\n")

    with tempfile.TemporaryDirectory(prefix="nearhit-index-") as folder:
        result = asyncio.run(Run(chosen.entries, Path(folder), say).all())
    report = {
        "command": f"python -m cache.bench.index --entries {chosen.entries}",
        "date": started.isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, {_processor()}",
        "load": round(os.getloadavg()[0], 2),
        "versions": {"python": platform.python_version(), "faiss": faiss.__version__, "numpy": np.__version__},
        "result": msgspec.to_builtins(result),
    }
    text = msgspec.json.format(msgspec.json.encode(report), indent=2).decode()
    sys.stdout.write(text + "\n")
    if chosen.save is not None:
        chosen.save.mkdir(parents=True, exist_ok=True)
        (chosen.save / f"index-{chosen.entries}-{started.date()}.json").write_text(text + "\n", "utf-8")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
