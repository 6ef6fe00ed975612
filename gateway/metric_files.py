"""The files in which workers keep their metrics for each other, allocated before anything is written to them.

prometheus_client maps files with holes in them, and a write into a hole ends the process where the disk is full: every
worker died at its next look at the metrics, and its successors as soon as they began, though they could have answered.
Knows: prometheus_client's file of numbers. Does not know: any metric.
"""

import mmap
import os
import struct
from contextlib import suppress
from pathlib import Path

import structlog
from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict

log = structlog.get_logger("nearhit.metrics")

_FIRST = 1 << 16
_BEGIN = 8  # bytes before the first number: how many are used, and nothing
_AROUND = 32  # bytes that an entry takes beside its name, at most
_TRIED_AFTER = 500  # writes
_used = struct.Struct("i").pack_into


class AllocatedFile(MmapedDict):
    """Where there is no room, the numbers are kept in memory until there is: counted, and not told meanwhile."""

    def __init__(self, filename: str, read_mode: bool = False) -> None:
        """The library's own is left out: it is what makes the hole."""
        if read_mode:
            raise NotImplementedError("files are read by `read_all_values_from_file`")
        self._path = Path(filename)
        self._positions: dict[str, int] = {}
        self._used = _BEGIN
        self._capacity = _FIRST
        self._m = mmap.mmap(-1, _FIRST)
        _used(self._m, 0, _BEGIN)
        self._in_file = False
        self._writes = 0
        self._move()

    def write_value(self, key: str, value: float, timestamp: float) -> None:
        if not self._in_file:
            self._writes += 1
            if self._writes % _TRIED_AFTER == 0:
                self._move()
        super().write_value(key, value, timestamp)  # pyright: ignore[reportUnknownMemberType] - the library has no types

    def _init_value(self, key: str) -> None:
        needed = self._used + len(key.encode()) + _AROUND
        if needed > self._capacity:
            while needed > self._capacity:
                self._capacity *= 2
            bigger = mmap.mmap(-1, self._capacity)
            self._replace(bigger)
            self._in_file = False
            self._move()
        super()._init_value(key)  # pyright: ignore[reportUnknownMemberType] - the same

    def _move(self) -> None:
        """From memory into a file of the same size, if it can be had; whoever reads finds the former one or this."""
        draft = self._path.with_name(f"{self._path.name}.new")
        try:
            descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, self._capacity)
                mapped = mmap.mmap(descriptor, self._capacity)
            finally:
                os.close(descriptor)
            self._replace(mapped)
            draft.replace(self._path)
        except OSError as error:
            if self._writes == 0:
                log.warning("metrics wait for room on the disk", error=error.strerror)
            with suppress(OSError):
                draft.unlink()
        else:
            if self._writes:
                log.info("metrics are told again")
            self._in_file, self._writes = True, 0

    def _replace(self, memory: mmap.mmap) -> None:
        memory[: self._used] = self._m[: self._used]
        self._m.close()
        self._m = memory

    def close(self) -> None:
        self._m.close()


def multi_process() -> bool:
    """Whether values are shared with sibling workers. Decided by prometheus_client when it is imported."""
    return values.ValueClass is not values.MutexValue


if multi_process():  # before any metric is made
    values.MmapedDict = AllocatedFile  # pyright: ignore[reportPrivateImportUsage] - where the library looks for it
