"""Large partitions over a restart: read back when whole, set aside when not, brought up to date in both cases."""

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from cache.index.flat import Index
from cache.partition import Sizes
from cache.partitions import Key, Partitions, Saving
from cache.snapshots import Saved, Snapshots
from cache.store.sqlite import SqliteStore
from cache.table import Table
from cache.types import Entry
from cache.vectors import Vector, pack
from tests.clock import FrozenClock

DIMENSION = 16
KEY: Key = (b"s" * 32, "encoder-1")
SIZES = Sizes(inline=50, clusters=200, exact=100, fold=20, dead_least=10)


def unit(count: int, seed: int = 0) -> Vector:
    drawn = np.random.default_rng(seed).standard_normal((count, DIMENSION)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def digest(number: int) -> bytes:
    return number.to_bytes(4, "big") * 8


def saved(count: int = 100) -> Saved:
    index = Index(DIMENSION)
    index.add(list(range(1, count + 1)), unit(count))
    digests = Table((number, digest(number)) for number in range(1, count + 1) if number != 5)
    return Saved("flat", index, digests, Table(), "77")


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    """Ids, digests, vectors and the place in the change stream, and which rows were dead already."""
    snapshots = Snapshots(tmp_path / "index")
    assert snapshots.load(KEY, DIMENSION) is None
    assert snapshots.save(KEY, saved())
    found = snapshots.load(KEY, DIMENSION)
    assert found is not None
    assert (found.kind, found.position, set(found.dead)) == ("flat", "77", {5})
    assert dict(found.exact_of.items()) == dict(saved().exact_of.items())
    assert found.index.search(unit(100)[41], 1)[0].entry_id == 42
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "index").iterdir() if path.name != "lock"} == {0}


def flip(path: Path, at: float) -> None:
    raw = bytearray(path.read_bytes())
    raw[int(at * (len(raw) - 1))] ^= 1
    path.write_bytes(bytes(raw))


def cut(path: Path, at: float) -> None:
    path.write_bytes(path.read_bytes()[: int(at * path.stat().st_size)])


@pytest.mark.parametrize("suffix", [".index", ".rows", ".json"])
@pytest.mark.parametrize("harm", [flip, cut])
@pytest.mark.parametrize("at", [0.0, 0.5, 0.999])
def test_a_damaged_one_counts_as_none(
    tmp_path: Path, suffix: str, harm: Callable[[Path, float], None], at: float
) -> None:
    """A flipped bit must cost a rebuild, never a crash inside the index library or a wrong neighbour."""
    snapshots = Snapshots(tmp_path)
    snapshots.save(KEY, saved())
    (path,) = tmp_path.glob(f"*{suffix}")
    harm(path, at)
    assert snapshots.load(KEY, DIMENSION) is None
    assert not snapshots.has(KEY)
    assert list(tmp_path.glob("*.unreadable"))
    assert snapshots.save(KEY, saved())
    assert snapshots.load(KEY, DIMENSION) is not None
    assert not list(tmp_path.glob("*.unreadable"))


def test_a_missing_part_counts_as_none(tmp_path: Path) -> None:
    """Another process may just have replaced it."""
    snapshots = Snapshots(tmp_path)
    snapshots.save(KEY, saved())
    next(tmp_path.glob("*.rows")).unlink()
    assert snapshots.load(KEY, DIMENSION) is None


def test_anothers_is_not_taken(tmp_path: Path) -> None:
    """A file moved to another scope's name, or of another dimension, must never be searched."""
    snapshots = Snapshots(tmp_path)
    other: Key = (b"t" * 32, "encoder-1")
    snapshots.save(KEY, saved())
    (manifest,) = tmp_path.glob("*.json")
    shutil.copy(manifest, snapshots._manifest(other))
    assert snapshots.load(other, DIMENSION) is None
    assert snapshots.load((KEY[0], "encoder-2"), DIMENSION) is None
    assert snapshots.load(KEY, DIMENSION + 1) is None


def test_a_manifest_that_points_elsewhere_is_refused(tmp_path: Path) -> None:
    """A folder restored from a stranger's backup must not make the gateway read other files."""
    import hashlib

    snapshots = Snapshots(tmp_path)
    snapshots.save(KEY, saved())
    (manifest,) = tmp_path.glob("*.json")
    found = msgspec.json.decode(manifest.read_bytes().partition(b"\n")[2])
    body = msgspec.json.encode(found | {"rows": "../" + found["rows"]})
    manifest.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    assert snapshots.load(KEY, DIMENSION) is None


def test_the_folder_is_bounded(tmp_path: Path) -> None:
    """Scopes come and go; their snapshots must not fill the disk, and left-overs of a crash go too."""
    snapshots = Snapshots(tmp_path, max_bytes=30_000)
    (tmp_path / "left.index").write_bytes(b"x" * 10_000)
    (tmp_path / "left.new").write_bytes(b"x")
    for number in range(6):
        snapshots.save((bytes([number]) * 32, "encoder-1"), saved())
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 40_000
    assert snapshots.load((bytes([5]) * 32, "encoder-1"), DIMENSION) is not None
    assert not list(tmp_path.glob("left.*"))
    for _ in range(5):
        snapshots.save(KEY, saved())
    assert len(list(tmp_path.glob("*.index"))) == len(list(tmp_path.glob("*.json")))


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    """Workers of one host share the folder."""
    snapshots = Snapshots(tmp_path)
    with snapshots._writing() as mine:
        assert mine
        assert not snapshots.save(KEY, saved())
    assert snapshots.save(KEY, saved())


def entry(number: int, clock: FrozenClock, vectors: Vector, exact: int | None = None) -> Entry:
    return Entry(
        id=number,
        scope=KEY[0],
        exact=digest(number if exact is None else exact),
        text=f"question {number}",
        answer=b"{}",
        prompt_tokens=1,
        completion_tokens=1,
        cost_nano=1,
        latency_ms=1.0,
        created=clock.now(),
        expires=clock.now() + 3_600,
        vector=pack(vectors[number]),
        encoder=KEY[1],
    )


def opened(store: SqliteStore, folder: Path, clock: FrozenClock) -> Partitions:
    return Partitions(
        store,
        make=lambda: Index(DIMENSION),
        now=clock.now,
        max_partitions=9,
        max_vectors=10_000,
        sizes=SIZES,
        saving=Saving(Snapshots(folder), least=100, pause=0.0),
    )


@pytest.mark.parametrize("trouble", ["none", "corrupt"])
async def test_a_restart_is_brought_up_to_date(tmp_path: Path, clock: FrozenClock, trouble: str) -> None:
    """What was kept, replaced and removed since the snapshot must be found, renewed and gone."""
    vectors = unit(700)
    store = SqliteStore(tmp_path / "cache.db", now=clock.now)
    partitions = opened(store, tmp_path / "index", clock)
    await store.start(partitions.apply)
    for number in range(1, 401):
        await store.put(entry(number, clock, vectors))
    await partitions.search(KEY, vectors[1], 1, wait=10)
    await partitions.settle()
    assert partitions.kinds() == {KEY: "ivf"}
    await partitions.close()
    for number in range(1, 60):
        await store.drop(number)
    for number in range(401, 500):
        await store.put(entry(number, clock, vectors))
    await store.put(entry(600, clock, vectors, exact=100))
    if trouble == "corrupt":
        flip(next((tmp_path / "index").glob("*.index")), 0.5)
    again = opened(store, tmp_path / "index", clock)
    alive = {*range(60, 100), *range(101, 500), 600}
    for number in range(1, 601):
        (near,) = await again.search(KEY, vectors[number], 1, wait=10)
        assert (near.entry_id == number) == (number in alive), number
    await again.close()
    await store.close()
