"""Files of metrics on a disk that fills up: nothing is lost, and no process ends of it."""

import errno
import os
from pathlib import Path

import pytest
from prometheus_client.mmap_dict import MmapedDict

from gateway.metric_files import AllocatedFile


class Disk:
    """What there is room for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self._allocate = os.posix_fallocate
        monkeypatch.setattr(os, "posix_fallocate", self.allocate)

    def allocate(self, descriptor: int, offset: int, size: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._allocate(descriptor, offset, size)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def told(path: Path) -> dict[str, float]:
    """What a sibling reads."""
    found = MmapedDict.read_all_values_from_file(str(path))
    return {key: value for key, value, *_ in found}


def fill(file: AllocatedFile, count: int) -> dict[str, float]:
    written = {f"{number:04d} {'x' * 100}": float(number) for number in range(count)}
    for key, value in written.items():
        file.write_value(key, value, 0.0)
    return written


def test_a_file_grows_and_has_no_hole(disk: Disk, tmp_path: Path) -> None:
    """A write into a hole on a full disk is a SIGBUS, and every worker died of its own metrics."""
    path = tmp_path / "counter_1.db"
    file = AllocatedFile(str(path))
    written = fill(file, 3_000)
    state = path.stat()
    assert told(path) == written
    assert state.st_size > 1 << 18
    assert state.st_blocks * 512 >= state.st_size
    assert list(tmp_path.iterdir()) == [path]
    file.close()


def test_without_room_numbers_are_kept_until_there_is_some(disk: Disk, tmp_path: Path) -> None:
    """Begun on a full disk: a sibling that reads an empty file would answer no scrape at all."""
    disk.full = True
    path = tmp_path / "counter_1.db"
    file = AllocatedFile(str(path))
    written = fill(file, 2_000)
    assert not list(tmp_path.iterdir())
    assert file.read_value(next(iter(written))) == (0.0, 0.0)
    disk.full = False
    for _ in range(500):
        file.write_value("0001 " + "x" * 100, 7.0, 0.0)
    assert told(path) == written | {"0001 " + "x" * 100: 7.0}
    file.close()


def test_a_disk_that_fills_up_leaves_what_was_told(disk: Disk, tmp_path: Path) -> None:
    """Nothing more is told until there is room, and nothing that was becomes unreadable."""
    path = tmp_path / "counter_1.db"
    file = AllocatedFile(str(path))
    few = fill(file, 100)
    disk.full = True
    written = fill(file, 3_000)
    assert few.items() <= told(path).items()
    assert [file.read_value(key)[0] for key in written] == list(written.values())
    disk.full = False
    assert told(path) != written
    fill(file, 3_000)
    assert told(path) == written
    file.close()
