"""The write-ahead journal of one process: append now, synced to disk soon, many records per sync.

Knows: segments, group commit, the order write -> sync. Does not know: what records mean, the database.

`append` writes at once (a record survives kill -9 from then on); `synced` waits until everything appended so far has
survived a power cut as well. One thread does nothing but fdatasync, so the event loop never waits for the disk. A sync
costs the system more than all else that a request's money needs, so one begins at most every 0.8 ms: the first record
after a pause is synced at once, those that follow within that time share the next.
After a failed sync nothing is known about what reached the disk: no new attempt may start from then on.
"""

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

from gateway.ledger import segments
from gateway.ledger.records import Dispatch, Opened, Record, frame
from gateway.ledger.segments import SEGMENT_BYTES, Segment

Durability = Literal["fsync", "write", "off"]
_MOST_BYTES = 256 << 20
_SYNC_EVERY = 0.0008  # seconds from the begin of one sync to the next: at 1,000 a second half wait less than 0.4 ms


class JournalFailed(Exception):
    """The journal cannot promise anything any more, or is full: nothing new may be sent."""


class Journal:
    """Owned by one event loop. `limit` bounds all segments together, in bytes; `sync` is `os.fdatasync`."""

    def __init__(
        self,
        root: Path,
        opened: Opened,
        durability: Durability = "fsync",
        *,
        segment_bytes: int = SEGMENT_BYTES,
        limit: int = _MOST_BYTES,
        sync: Callable[[int], None] = os.fdatasync,
    ) -> None:
        self.durability: Durability = durability
        self._root = root
        self._opened = opened
        self._segment_bytes = segment_bytes
        self._most = max(2, limit // segment_bytes)
        self._sync = sync
        self._segments: deque[Segment] = deque()
        self._spare: Segment | None = None
        self._made = 0
        self._lock = -1
        self._folder = root
        self._appended = 0
        self._durable = 0
        self._unsynced: list[Segment] = []
        self._failed: str | None = None
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._wake = threading.Lock()
        self._waking = False
        self._began = float("-inf")
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Make the folder, take its lock, allocate, start the syncing thread. Raises OSError."""
        if self.durability == "off":
            return
        self._folder, self._lock = segments.make_folder(self._root, self._opened.boot)
        self._begin(self._allocate())
        self._spare = self._allocate()
        segments.sync_folder(self._folder)
        self._loop = asyncio.get_running_loop()
        if self.durability == "fsync":
            self._wake.acquire()
            self._thread = threading.Thread(target=self._keep_syncing, name="journal-sync", daemon=True)
            self._thread.start()

    def dispatch(self, record: Dispatch) -> Segment | None:
        """Append the start of an attempt; the segment must be handed to `done` when its end is in the database.

        Raises JournalFailed: then nothing may be sent.
        """
        if self.durability == "off":
            return None
        if self._failed is not None:
            raise JournalFailed(self._failed)
        if self._spare is None and not self._provide_spare():
            raise JournalFailed("there is no room for another journal segment")
        try:
            self._write(frame(record))
        except OSError as error:
            self._failed = f"the journal cannot be written: {error}"
            raise JournalFailed(self._failed) from error
        segment = self._segments[-1]
        segment.open_attempts += 1
        return segment

    def append(self, record: Record) -> bool:
        """Append anything that follows a start. False when it could not be written (the database still gets it)."""
        if self.durability == "off":
            return True
        try:
            self._write(frame(record))
        except OSError as error:
            self._failed = f"the journal cannot be written: {error}"
            return False
        return True

    def synced(self) -> Awaitable[None] | None:
        """To be awaited until all that is appended now has survived a power cut; None: it has, or need not.

        Raises JournalFailed, at once or when awaited.
        """
        if self._thread is None or self._durable >= self._appended:
            return None
        if self._failed is not None or self._loop is None:
            raise JournalFailed(self._failed or "the journal is closed")
        future = self._loop.create_future()
        self._waiting.append((self._appended, future))
        if not self._waking:
            self._waking = True
            self._loop.call_soon(self._turn_over)
        return future

    def sync_within(self, seconds: float) -> None:
        """See to it that what is appended now is synced after at most that long, without waiting for it."""
        if self._thread is not None and self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(seconds, self._sync_due)

    def done(self, segment: Segment) -> None:
        """An attempt that began in `segment` is wholly in the database; segments without open ones go, oldest first."""
        segment.open_attempts -= 1
        while len(self._segments) > 1 and self._segments[0].open_attempts <= 0:
            if self._segments[0] in self._unsynced:
                return
            self._segments.popleft().discard()

    def close(self, *, remove: bool) -> None:
        """Sync what is left and let go. `remove`: everything is in the database, so the files are not needed."""
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._stopping = True
            self._wake_thread()
            self._thread.join()
            self._thread = None
        self._tell_waiting("the journal is closed")
        for segment in (*self._segments, self._spare):
            if segment is not None:
                segment.close()
        if self._lock >= 0:
            if remove:
                segments.remove(self._folder)
            os.close(self._lock)
            self._lock = -1

    @property
    def failed(self) -> str | None:
        return self._failed

    # -- writing ---------------------------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        current = self._segments[-1]
        if not current.write(data):
            if self._thread is not None:
                self._unsynced.append(current)
            self._begin(self._spare or self._allocate())
            self._spare = None
            self._provide_spare()
            if not self._segments[-1].write(data):
                raise OSError(f"a record of {len(data)} bytes is larger than a segment")
        self._appended += len(data)

    def _begin(self, segment: Segment) -> None:
        segment.write(frame(self._opened))
        self._segments.append(segment)

    def _allocate(self) -> Segment:
        self._made += 1
        return Segment(segments.segment_path(self._folder, self._made), self._segment_bytes)

    def _provide_spare(self) -> bool:
        """Another spare, unless the journal is at its limit or the disk is full."""
        if len(self._segments) >= self._most:
            return False
        try:
            self._spare = self._allocate()
            segments.sync_folder(self._folder)
        except OSError:
            return False
        return True

    # -- syncing ---------------------------------------------------------------------------------------------------

    def _sync_due(self) -> None:
        self._timer = None
        if self._durable < self._appended:
            self._wake_thread()

    def _turn_over(self) -> None:
        """This turn of the loop has appended what it had to.

        Woken in its midst, the thread would take the loop's place on a busy core, wait for the interpreter, and leave
        the rest of the turn to the next sync. Woken before it may begin, it would only have to wait.
        """
        early = self._began + _SYNC_EVERY - time.monotonic()
        if early > 0 and self._loop is not None:
            self._loop.call_later(early, self._turn_over)
        else:
            self._waking = False
            self._wake_thread()

    def _wake_thread(self) -> None:
        """The lock is a binary semaphore: only the event loop releases it, only the thread takes it.

        Whatever was appended before is seen by the thread after it has taken it, so nobody has to be woken for twice.
        """
        if self._wake.locked():
            self._wake.release()

    def _keep_syncing(self) -> None:
        told: list[Segment] = []  # synced for good, which the loop has not heard of yet: it may close them any moment
        done = 0
        while True:
            self._wake.acquire()
            stopping = self._stopping
            if self._appended == done and not stopping:
                continue  # woken for something that the last sync had caught already
            self._began = time.monotonic()
            target = self._appended  # in this order: a segment that fills up meanwhile is in one of the two
            current = self._segments[-1]
            unsynced = list(self._unsynced)
            full = [segment for segment in unsynced if segment not in told]
            told = unsynced
            error = self._sync_all([*full, current])
            if stopping or self._loop is None:
                return
            done = done if error else target
            try:
                self._loop.call_soon_threadsafe(self._synced, target, full, error)
            except RuntimeError:  # the loop was closed without closing the journal: nobody waits any more
                return

    def _sync_all(self, those: list[Segment]) -> str | None:
        try:
            for segment in those:
                self._sync(segment.fd)
        except OSError as error:
            return f"the journal cannot be synced: {error}"
        return None

    def _synced(self, target: int, full: list[Segment], error: str | None) -> None:
        if error is not None:
            self._failed = error
            self._tell_waiting(error)
            return
        self._durable = max(self._durable, target)
        for segment in full:
            self._unsynced.remove(segment)
        while self._waiting and self._waiting[0][0] <= self._durable:
            future = self._waiting.popleft()[1]
            if not future.done():
                future.set_result(None)

    def _tell_waiting(self, problem: str) -> None:
        while self._waiting:
            future = self._waiting.popleft()[1]
            if not future.done():
                future.set_exception(JournalFailed(problem))
