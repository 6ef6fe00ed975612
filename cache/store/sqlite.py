"""Entries in one SQLite file that survives restarts; every statement runs in one worker thread.

Owns its schema: an unknown version or a damaged file is set aside and begun anew, for a cache may be lost, never wrong.
Does not know other processes: exactly one opens the file.
"""

import asyncio
import logging
import sqlite3
from collections.abc import AsyncGenerator, Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from cache import sqlite_schema
from cache.background import Background
from cache.codec import Codec
from cache.sqlite_file import BEFORE_ALL, PAGE, Bounds, Gathered, SqliteFile, short
from cache.sqlite_schema import row_of
from cache.store import ANYTHING, Change, Selection, Stored, StoreDown, VectorRow
from cache.touches import Touches
from cache.types import Entry, Group

T = TypeVar("T")
log = logging.getLogger("nearhit.cache")

_FLUSH_AFTER = 256
# Entries taken without waiting are written together: within so many seconds, or with whatever else is asked for first.
_GATHER_SECONDS = 0.2
_MOST_GATHERED = 1_024


class SqliteStore:
    """Implements `cache.store.Store`. `now`: wall clock, for use times and expiry; `codec`: how entries are written."""

    leasing = None  # exactly one process opens the file

    def __init__(
        self,
        path: Path,
        *,
        now: Callable[[], float],
        max_entries: int = 100_000,
        max_bytes: int = 2 << 30,
        codec: Codec | None = None,
    ) -> None:
        self._now = now
        self._codec = codec or Codec()
        self._file = SqliteFile(path, self._codec, Bounds(max_entries, max_bytes))
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cache-sqlite")
        self._listen: Callable[[Change], None] = _ignore
        self._touches = Touches(enough=_FLUSH_AFTER, most=4 * _FLUSH_AFTER)
        self._gathered: list[Gathered] = []
        self._gathering: asyncio.TimerHandle | None = None
        self._background = Background()
        self._path = path
        self._trouble: str | None = "not started"
        self._told = False

    async def start(self, listen: Callable[[Change], None]) -> None:
        self._listen = listen
        await self._run(_nothing)

    async def get(self, exact: bytes) -> Entry | None:
        # A digest never stored costs no hop to the thread; most look-ups of a miss end here.
        if short(exact) not in self._file.known:
            return None
        return await self._run(lambda: self._file.read(exact))

    async def get_many(self, exacts: Sequence[bytes]) -> list[Entry | None]:
        if not any(short(exact) in self._file.known for exact in exacts):
            return [None] * len(exacts)
        return await self._run(lambda: [self._file.read(exact) for exact in exacts])

    async def put(self, entry: Entry) -> None:
        begins = short(entry.exact)
        self._gathered.append(Gathered(entry, self._codec.encode(entry), self._file.known.get(begins, 0)))
        self._file.known[begins] = entry.id
        await self._run(_nothing)
        self._listen(Change("add", entry.scope, entry.encoder, row_of(entry)))

    def put_soon(self, entry: Entry) -> bool:
        begins = short(entry.exact)
        if self._trouble is not None or len(self._gathered) >= _MOST_GATHERED or begins in self._file.known:
            return False  # a row that may be replaced must be told of before its successor is
        self._file.known[begins] = entry.id
        self._gathered.append(Gathered(entry, self._codec.encode(entry)))
        self._listen(Change("add", entry.scope, entry.encoder, row_of(entry)))
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._write_gathered)
        return True

    async def put_key(self, entry: Entry, beside: bytes, most: int) -> bool:
        now = self._now()
        changes = await self._run(lambda: self._file.add_key(entry, beside, most, now), uses=True)
        if changes is None:
            return False
        for change in changes:
            (self._forget if change.kind == "drop" else self._listen)(change)
        self._file.known[short(entry.exact)] = entry.id
        return True

    async def drop(self, entry_id: int) -> Entry | None:
        found = await self._run(lambda: self._file.take(entry_id))
        if found is None:
            return None
        entry, changes = found
        for change in changes:
            self._forget(change)
        return entry

    async def drop_key(self, exact: bytes, entry_id: int) -> bool:
        changes = await self._run(lambda: self._file.take_key(exact, entry_id))
        for change in changes:
            self._forget(change)
        return bool(changes)

    async def states(self, names: Sequence[bytes]) -> list[Stored | None]:
        return await self._run(lambda: sqlite_schema.states(self._file.db, names))

    async def put_state(self, name: bytes, blob: bytes, *, seen: int) -> bool:
        now = self._now()
        return await self._run(lambda: sqlite_schema.put_state(self._file.db, name, Stored(seen, blob), now))

    @property
    def shared(self) -> bool:
        return False

    async def vectors(self, scope: bytes, encoder: str) -> list[VectorRow]:
        return [row async for page in self.pages(scope, encoder) for row in page]

    async def pages(
        self, scope: bytes, encoder: str, *, known: Container[int] = ()
    ) -> AsyncGenerator[list[VectorRow], None]:
        after: int | None = BEFORE_ALL
        while after is not None:
            at = after
            rows, after = await self._run(
                lambda at=at: sqlite_schema.page(self._file.db, (scope, encoder), at, PAGE, known)
            )
            yield rows

    def position(self) -> str:
        return ""

    async def since(self, position: str) -> list[Change] | None:  # noqa: ARG002 - no stream to look into
        return None

    async def purge(self, selection: Selection) -> int:
        """A slice at a time: look-ups go on between them."""
        if selection.is_all:
            held = await self._run(self._file.flush)
            self._listen(Change("reset"))
            return held
        purged, after = 0, BEFORE_ALL
        while after is not None:
            at = after
            changes, after = await self._run(lambda at=at: self._file.purge(selection, at))
            for change in changes:
                self._forget(change)
            purged += len(changes)
        return purged

    async def recent(self, limit: int, selection: Selection = ANYTHING) -> list[Entry]:
        """A slice at a time, as a purge goes."""
        now = self._now()
        ids = await self._run(lambda: self._file.newest(selection, now, limit))
        found: list[Entry] = []
        for start in range(0, len(ids), PAGE):
            found += await self._run(lambda some=ids[start : start + PAGE]: self._file.entries(some))
            found = [entry for entry in found if selection.takes(entry)]
            if len(found) >= limit:
                break
        return found[:limit]

    async def counts(self) -> dict[Group, int]:
        sql = "SELECT team, project, model, count(*) FROM entry WHERE expires > ? GROUP BY team, project, model"
        now = self._now()
        rows = await self._run(lambda: self._file.db.execute(sql, (now,)).fetchall())
        return {Group(team, project, model): count for team, project, model, count in rows}

    def touch(self, exact: bytes) -> None:
        self._touches.note(exact, self._now())

    def in_touch(self) -> bool:
        return True  # there are no others

    def status(self) -> str | None:
        return self._trouble

    async def close(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
        if self._file.is_open:
            with suppress(StoreDown):  # what was gathered cannot be kept then
                await self._run(_nothing)
            await self._run(self._file.shut)
        self._thread.shutdown(wait=True)
        self._listen = _ignore
        self._trouble = "closed"

    def _forget(self, change: Change) -> None:
        begins = short(change.row.exact)
        if self._file.known.get(begins) == change.row.entry_id:  # else another has taken its place
            del self._file.known[begins]
        self._listen(change)

    def _write_gathered(self) -> None:
        self._gathering = None
        if self._gathered:
            self._background.spawn(self._run_quietly(), "write what was gathered")

    async def _run_quietly(self) -> None:
        with suppress(StoreDown):  # status() tells; a cache may lose what it was given
            await self._run(_nothing)

    async def _run(self, work: Callable[[], T], *, uses: bool = False) -> T:
        """`work` in the one thread, after what was gathered is written; `uses`: and every use noted so far.

        SQLite's errors become StoreDown; the next call tries again.
        """
        gathered, self._gathered = self._gathered, []
        touched = self._touches.take() if gathered or uses or self._touches.is_due else {}
        now = self._now()
        try:
            doing = asyncio.get_running_loop().run_in_executor(
                self._thread, lambda: (self._opened().write(gathered, touched, now), work())
            )
            try:
                changes, found = await asyncio.shield(doing)
            except asyncio.CancelledError:
                # Whoever asked is gone. What others gave is written all the same, and what changes is told.
                doing.add_done_callback(lambda done: self._done_for_nobody(done, gathered))
                raise
        except (sqlite3.Error, OSError, RuntimeError) as error:
            self._is_down(error)
            for entry, _, _ in gathered:
                self._listen(Change("drop", entry.scope, entry.encoder, row_of(entry)))
            if type(error) is sqlite3.DatabaseError and self._file.is_open:
                await self._begin_anew(error)
            raise StoreDown(f"sqlite: {error}") from error
        self._works(wrote=bool(gathered))
        self._written(changes, gathered)
        return found

    def _opened(self) -> SqliteFile:
        """In the thread. A file that could not be opened at the start (a full disk, no permission) may be by now."""
        if not self._file.is_open and self._listen is not _ignore:
            self._file.open()
        return self._file

    def _is_down(self, error: Exception) -> None:
        """Said once, not at each request."""
        self._trouble = type(error).__name__
        if not self._told:
            self._told = True
            log.error("%s: %s. Until this is mended answers are made anew and not kept", self._path, error)

    def _works(self, *, wrote: bool) -> None:
        """A disk that is full is read all the same: it works again once it has taken an entry."""
        self._trouble = None
        if self._told and wrote:
            self._told = False
            log.warning("%s works again", self._path)

    def _done_for_nobody(self, done: "asyncio.Future[tuple[list[Change], T]]", gathered: list[Gathered]) -> None:
        if done.cancelled() or done.exception() is not None:
            for entry, _, _ in gathered:
                self._listen(Change("drop", entry.scope, entry.encoder, row_of(entry)))
        else:
            self._written(done.result()[0], gathered)

    def _written(self, changes: list[Change], gathered: list[Gathered]) -> None:
        for change in changes:
            self._forget(change)
        gone = {change.row.entry_id for change in changes}  # what is worth least may go as soon as it has come
        for item in gathered:  # an error before may have had all that is known read again, from a file without them
            if item.entry.id not in gone:
                self._file.known.setdefault(short(item.entry.exact), item.entry.id)

    async def _begin_anew(self, why: Exception) -> None:
        """A file that turns out damaged while in use serves nobody: set it aside and go on with an empty one."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._file.begin_anew, why)
        self._listen(Change("reset"))


def _nothing() -> None:
    """What was gathered is written before any work, this one included."""


def _ignore(_: Change) -> None:
    """Until started, and after closing, nobody listens."""
