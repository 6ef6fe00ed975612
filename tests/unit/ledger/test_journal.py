"""The journal: what it promised is there after any crash, what it could not promise is refused."""

import asyncio
import errno
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from gateway.ledger import segments
from gateway.ledger.journal import Journal, JournalFailed
from gateway.ledger.records import (
    HEADER_BYTES,
    Dispatch,
    Opened,
    Progress,
    Rates,
    Record,
    Settle,
    Shipped,
    frame,
    price_of,
    rates,
    tokens,
    unframe,
)
from policies.money import Apart, Price, Usage

RATES = Rates("p@1", 1, 2, 3, 4, 5, "exact", ((100, 1, 2, 3, 4),))


def dispatch(name: str = "r.1") -> Dispatch:
    return Dispatch(
        name, "r", 1.5, ("org|day|0|1",), 10, 1, 9, "openai", "gpt", RATES, "acme", "app", "k", None, "chat", "smart"
    )


def settle(name: str = "r.1", number: int = 1) -> Settle:
    return Settle(number, name, 2.5, 7, (1, 0, 0, 6, 0), "provider", "complete", "chatcmpl-1", None)


RECORDS: list[Record] = [Opened("b", "h", 0.0), dispatch(), Progress("r.1", 1, 5), settle(), Shipped(1)]
BYTES = b"".join(frame(record) for record in RECORDS)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path, Opened("boot", "host", 0.0), segment_bytes=4_096)
    yield journal
    journal.close(remove=False)


async def synced(journal: Journal) -> None:
    """Wait as a request does."""
    if (waiting := journal.synced()) is not None:
        await waiting


def test_what_has_been_written_is_not_held_in_memory(tmp_path: Path) -> None:
    """Several MB a segment would count as the worker's for nothing; and letting go of them must not lose a byte."""
    segment = segments.Segment(tmp_path / "1.journal", 2 << 20)
    pieces = [os.urandom(1_000) for _ in range(2_000)]
    assert all(segment.write(piece) for piece in pieces)
    told = Path("/proc/self/smaps").read_text().partition(str(segment.path))[2]
    resident = next(int(line.split()[1]) for line in told.splitlines() if line.startswith("Rss:"))
    assert resident <= 512, "KiB"
    segment.close()
    assert segment.path.read_bytes()[: 2_000 * 1_000] == b"".join(pieces)


def test_records_read_back_as_they_were_written() -> None:
    """Recovery sees exactly what the dead process knew."""
    assert list(unframe(BYTES + bytes(64))) == RECORDS


def test_classes_and_their_prices_are_journalled() -> None:
    """What a crash leaves behind must be charged as it was promised: by the whole price, with every class of tokens."""
    apart = Apart(audio_in=40, reasoning=6)
    price = Price(id="p@2", input=1, output=2, cached_input=3, cache_write=4, apart=apart)
    spoken = Usage(prompt=9, completion=3, audio_in=2, reasoning=1)
    begun = structs.replace(dispatch(), price=rates(price))
    ended = structs.replace(settle(), tokens=tokens(spoken))
    assert list(unframe(frame(begun) + frame(ended))) == [begun, ended]
    stored = begun.price
    numbers = (stored.input, stored.output, stored.cached, stored.cache_write, stored.request)
    assert price_of(stored.id, numbers, stored.tiers, msgspec.to_builtins(stored.terms)) == price
    assert rates(structs.replace(price, apart=None)).terms is None
    assert len(tokens(Usage(prompt=9, completion=3, reasoning=1))) == 5


def test_a_journal_of_before_is_still_read() -> None:
    """An update must recover what the version before it left: prices without terms, ends without classes."""
    body = msgspec.msgpack.decode(frame(dispatch())[HEADER_BYTES:])
    body[1 + list(Dispatch.__struct_fields__).index("price")] = ["p@1", 1, 2, 3, 4, 5, "exact", [[100, 1, 2, 3, 4]]]
    old = msgspec.msgpack.encode(body)
    assert list(unframe(len(old).to_bytes(4) + crc32c(old).to_bytes(4) + old)) == [dispatch()]


@given(st.integers(0, len(BYTES)))
def test_a_torn_tail_is_dropped(length: int) -> None:
    """A power cut may stop a write anywhere: whole records stay, the torn one is as if it had never been."""
    found = list(unframe(BYTES[:length] + bytes(64)))
    assert found == RECORDS[: len(found)]
    assert len(b"".join(frame(record) for record in RECORDS[: len(found) + 1])) > length or len(found) == len(RECORDS)


@given(st.integers(0, len(BYTES) * 8 - 1))
def test_a_flipped_bit_is_never_believed(bit: int) -> None:
    """Damage loses at most what it hit, is noticed, and never turns into another record."""
    data = bytearray(BYTES)
    data[bit // 8] ^= 1 << bit % 8
    found = [record for record in unframe(bytes(data)) if record is not None]
    assert all(record in RECORDS for record in found)
    assert found != RECORDS


def test_damage_in_the_middle_is_told() -> None:
    """A damaged record with sound ones after it is no torn tail: somebody has to know."""
    data = bytearray(BYTES)
    data[len(frame(RECORDS[0])) + 12] ^= 1
    assert list(unframe(bytes(data))) == [RECORDS[0], None, *RECORDS[2:]]


async def test_what_was_synced_is_on_disk(opened: Journal, tmp_path: Path) -> None:
    """The promise that lets a request be sent."""
    opened.open()
    opened.dispatch(dispatch())
    await synced(opened)
    assert list(segments.read(tmp_path / "boot"))[-1] == dispatch()


async def test_many_waiters_share_few_syncs(tmp_path: Path) -> None:
    """A disk does some thousand syncs a second; requests that wait together must not each take one."""
    count = 0

    def slow(descriptor: int) -> None:
        nonlocal count
        count += 1
        os.fdatasync(descriptor)

    journal = Journal(tmp_path, Opened("boot", "host", 0.0), sync=slow)
    journal.open()

    async def one(i: int) -> None:
        journal.dispatch(dispatch(f"r.{i}"))
        await synced(journal)

    await asyncio.gather(*(one(i) for i in range(200)))
    assert count < 100
    journal.close(remove=True)
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - pathlib would be called blocking here


async def test_after_a_failed_sync_nothing_more_is_promised(tmp_path: Path) -> None:
    """After EIO the kernel may have dropped the pages: a second try that succeeds proves nothing."""
    broken = True

    def sync(descriptor: int) -> None:
        if broken:
            raise OSError(errno.EIO, "Input/output error")
        os.fdatasync(descriptor)

    journal = Journal(tmp_path, Opened("boot", "host", 0.0), sync=sync, segment_bytes=4_096)
    journal.open()
    journal.dispatch(dispatch())
    with pytest.raises(JournalFailed, match="Input/output"):
        await synced(journal)
    broken = False
    with pytest.raises(JournalFailed):
        journal.dispatch(dispatch("r.2"))
    assert journal.append(settle())
    assert journal.failed is not None
    journal.close(remove=False)


async def test_segments_go_once_all_they_began_is_posted(tmp_path: Path) -> None:
    """The journal of a busy day stays small, and never loses what is still running."""
    journal = Journal(tmp_path, Opened("boot", "host", 0.0), segment_bytes=1_024, durability="write")
    journal.open()
    began = [journal.dispatch(dispatch(f"r.{i}")) for i in range(30)]
    assert len(list((tmp_path / "boot").glob("*.journal"))) > 4
    for segment in began[1:]:
        assert segment is not None
        journal.done(segment)
    assert dispatch("r.0") in list(segments.read(tmp_path / "boot"))
    assert began[0] is not None
    journal.done(began[0])
    assert len(list((tmp_path / "boot").glob("*.journal"))) == 2
    journal.close(remove=False)


class LateLoop:
    """An event loop that is behind: what the thread reports waits until somebody lets it in."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.waiting: list[tuple[Callable[..., object], tuple[object, ...]]] = []
        self._loop = loop

    def call_soon_threadsafe(self, callback: Callable[..., object], *given: object) -> None:
        self.waiting.append((callback, given))

    def let_in(self) -> None:
        while self.waiting:
            callback, given = self.waiting.pop(0)
            callback(*given)

    def __getattr__(self, name: str) -> object:
        return getattr(self._loop, name)


async def test_a_full_segment_is_synced_once_though_the_loop_is_behind(tmp_path: Path) -> None:
    """Synced again it might be closed already: the journal would take itself for broken and refuse everything."""
    synced: Counter[int] = Counter()

    def sync(descriptor: int) -> None:
        synced[descriptor] += 1
        os.fdatasync(descriptor)

    journal = Journal(tmp_path, Opened("boot", "host", 0.0), sync=sync, segment_bytes=1_024)
    journal.open()
    late = LateLoop(asyncio.get_running_loop())
    journal._loop = late  # pyright: ignore[reportAttributeAccessIssue] - stands in for the loop it was opened on
    full = journal.dispatch(dispatch("r.0"))
    assert full is not None
    for number in range(1, 12):
        journal.dispatch(dispatch(f"r.{number}"))
    for turn in (1, 2):
        assert journal.append(settle(number=turn))
        journal._wake_thread()
        while len(late.waiting) < turn:  # noqa: ASYNC110 - a thread fills the list, and threads set no asyncio events
            await asyncio.sleep(0.001)
    late.let_in()
    assert synced[full.fd] == 1
    assert journal.failed is None
    assert list(journal._unsynced) == []
    journal.close(remove=False)


async def test_a_full_journal_refuses_beginnings_and_takes_ends(tmp_path: Path) -> None:
    """When the database is away for long, new spending stops before what runs can no longer be written down."""
    journal = Journal(tmp_path, Opened("boot", "host", 0.0), segment_bytes=1_024, limit=4_096, durability="write")
    journal.open()
    began: list[segments.Segment | None] = []

    with pytest.raises(JournalFailed, match="no room"):
        _fill(journal, began)
    assert journal.append(settle())
    for segment in began:
        assert segment is not None
        journal.done(segment)
    assert journal.dispatch(dispatch("later")) is not None
    journal.close(remove=False)


async def test_a_full_disk_is_met_before_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Space is taken a segment at a time: ENOSPC stops beginnings, and ends still have the spare."""
    journal = Journal(tmp_path, Opened("boot", "host", 0.0), segment_bytes=1_024, durability="write")
    journal.open()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    began: list[segments.Segment | None] = []
    with pytest.raises(JournalFailed, match="no room"):
        _fill(journal, began)
    assert len(began) >= 4
    assert journal.append(settle())
    monkeypatch.undo()
    assert journal.dispatch(dispatch("later")) is not None
    journal.close(remove=False)


def _fill(journal: Journal, began: list[segments.Segment | None]) -> None:
    """Begin attempts until the journal refuses one."""
    for i in range(1_000):
        began.append(journal.dispatch(dispatch(f"r.{i}")))  # noqa: PERF401 - what began before the refusal counts


async def test_only_dead_journals_can_be_taken(opened: Journal, tmp_path: Path) -> None:
    """A recovery that takes the journal of a living process would post its running requests."""
    opened.open()
    assert list(segments.dead(tmp_path)) == []
    opened.close(remove=False)
    ((folder, lock),) = list(segments.dead(tmp_path))
    assert folder.name == "boot"
    assert list(segments.dead(tmp_path)) == []
    os.close(lock)


async def test_without_durability_nothing_is_written(tmp_path: Path) -> None:
    """`off` is for throw-away runs and says so by leaving no trace."""
    journal = Journal(tmp_path, Opened("boot", "host", 0.0), "off")
    journal.open()
    assert journal.dispatch(dispatch()) is None
    assert journal.append(settle())
    assert journal.synced() is None
    journal.close(remove=True)
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - pathlib would be called blocking here


async def test_waiters_are_told_when_the_journal_closes(tmp_path: Path) -> None:
    """Nobody waits for ever on a journal that is gone."""
    journal = Journal(tmp_path, Opened("boot", "host", 0.0))
    journal.open()
    journal.close(remove=True)
    assert journal.synced() is None


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 2_000), min_size=1, max_size=30))
def test_any_mix_of_sizes_reads_back(sizes: list[int]) -> None:
    """Records end at segments' ends in every way; none is cut in two or skipped."""
    with tempfile.TemporaryDirectory() as root:
        _write_and_read(Path(root), sizes)


def _write_and_read(root: Path, sizes: list[int]) -> None:

    async def write() -> list[Record]:
        journal = Journal(root, Opened("boot", "host", 0.0), segment_bytes=4_096, durability="write")
        journal.open()
        written: list[Record] = []
        for i, size in enumerate(sizes):
            record = Settle(i, "x" * size, 0.0, 1, (1, 0, 0, 0, 0), "provider", "complete", None, None)
            assert journal.append(record)
            written.append(record)
        journal.close(remove=False)
        return written

    written = asyncio.run(write())
    found = [record for record in segments.read(root / "boot") if isinstance(record, Settle)]
    assert found == written
