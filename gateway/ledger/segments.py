"""The files of a journal: a folder per boot, locked by its owner, with preallocated segments that are only appended to.

Knows: names, locks, allocation, reading back. Does not know: what records mean, when they are synced.

Segments are allocated before they are needed, so that a full disk is met when making the next one and never in the
middle of a record; one spare is always kept for the ends of what is already running.
"""

import fcntl
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from gateway.ledger.records import Record, unframe

SEGMENT_BYTES = 4 << 20
_LET_GO_AFTER = 256 << 10  # bytes written
_LOCK = "lock"


class Segment:
    """One open file, mapped: `write` appends at `used`.

    A record is in the page cache, and so survives the death of this process, once it is copied; without a system call,
    which would let the other threads take the interpreter each time. `fdatasync` of the file writes it to disk.
    What has been written is not looked at again, so its pages stay the system's and count no longer as this process's.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        self.used = 0
        self.open_attempts = 0
        self._let_go = 0
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(self.fd, 0, size)  # without room on the disk, a write to the mapping would be a crash
            os.fsync(self.fd)
            self._memory = mmap.mmap(self.fd, size, mmap.MAP_SHARED, mmap.PROT_WRITE)
        except OSError:
            os.close(self.fd)
            path.unlink(missing_ok=True)
            raise

    def write(self, data: bytes) -> bool:
        """Append; False when it does not fit. Raises OSError when the file is closed."""
        end = self.used + len(data)
        if end > self.size:
            return False
        if self.fd < 0:
            raise OSError(f"{self.path.name} is closed")
        self._memory[self.used : end] = data
        self.used = end
        if end - self._let_go >= _LET_GO_AFTER:
            whole = end // mmap.PAGESIZE * mmap.PAGESIZE
            self._memory.madvise(mmap.MADV_DONTNEED, self._let_go, whole - self._let_go)
            self._let_go = whole
        return True

    def close(self) -> None:
        if self.fd >= 0:
            self._memory.close()
            os.close(self.fd)
            self.fd = -1

    def discard(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)


def make_folder(root: Path, boot: str) -> tuple[Path, int]:
    """A new, locked folder for `boot` and the descriptor that holds its lock.

    It gets its name only once it is locked: nobody can take a journal that is being made for one of a dead process.
    """
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = root / f".{boot}"
    draft.mkdir(mode=0o700)
    lock = os.open(draft / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    draft.rename(root / boot)
    sync_folder(root)
    return root / boot, lock


def sync_folder(folder: Path) -> None:
    """Make names created in `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def dead(root: Path) -> Iterator[tuple[Path, int]]:
    """Journals whose owner is gone, each with the descriptor of the lock that is now ours (the caller closes it)."""
    if not root.is_dir():
        return
    for folder in sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")):
        lock = take_lock(folder)
        if lock is not None:
            yield folder, lock


def take_lock(folder: Path) -> int | None:
    """The descriptor of the folder's lock, or None while somebody else holds it or it is gone."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.journal"


def read(folder: Path) -> Iterator[Record | None]:
    """Every record of a journal in order; None stands for a damaged one in the middle."""
    for path in sorted(folder.glob("*.journal")):
        yield from unframe(path.read_bytes())


def remove(folder: Path) -> None:
    """Delete a journal whose every record is in the database. The lock goes last."""
    for path in sorted(folder.glob("*.journal")):
        path.unlink(missing_ok=True)
    (folder / _LOCK).unlink(missing_ok=True)
    folder.rmdir()
