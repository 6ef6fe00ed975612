"""Entries in one SQLite file that survives restarts; every statement runs in one worker thread.

Owns its schema: an unknown version or a damaged file is set aside and begun anew, for a cache may be lost, never wrong.
Does not know other processes: exactly one opens the file.
"""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable, Container, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from cache import codec, sqlite_schema
from cache.background import Background
from cache.sqlite_schema import row_of
from cache.store import Change, Selection, Stored, StoreDown, VectorRow
from cache.touches import Touches, Used
from cache.types import Entry, Group
from policies import eviction

T = TypeVar("T")

_FLUSH_AFTER = 256
# Entries taken without waiting are written together: within so many seconds, or with whatever else is asked for first.
_GATHER_SECONDS = 0.02
_MOST_GATHERED = 256
# Looking for expired rows costs an index probe; once in so many writes is soon enough.
_SWEEP_EVERY = 64
# Rows looked at before others get their turn.
_PAGE = 1_000
_BEFORE_ALL = -1
_EXPIRED = "id IN (SELECT id FROM entry WHERE expires <= ? LIMIT ?)"
_WORTH_LEAST = "id IN (SELECT id FROM entry WHERE id != ? ORDER BY rank LIMIT ?)"


class _Gathered(NamedTuple):
    """An entry waiting for its turn. `replaces`: a row with its digest may be there already."""

    entry: Entry
    body: bytes
    replaces: bool


class SqliteStore:
    """Implements `cache.store.Store`. `now`: wall clock, for use times and expiry."""

    def __init__(
        self,
        path: Path,
        *,
        now: Callable[[], float],
        max_entries: int = 100_000,
        max_bytes: int = 2 << 30,
    ) -> None:
        self._path = path
        self._now = now
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cache-sqlite")
        self._database: sqlite3.Connection | None = None
        self._listen: Callable[[Change], None] = _ignore
        self._touches = Touches(enough=_FLUSH_AFTER, most=4 * _FLUSH_AFTER)
        self._gathered: list[_Gathered] = []
        self._gathering: asyncio.TimerHandle | None = None
        self._background = Background()
        self._known: set[int] = set()
        self._held = 0
        self._held_bytes = 0
        self._writes = 0
        self._trouble: str | None = "not started"

    async def start(self, listen: Callable[[Change], None]) -> None:
        self._listen = listen
        await self._run(self._open)
        self._trouble = None

    async def get(self, exact: bytes) -> Entry | None:
        return (await self.get_many([exact]))[0]

    async def get_many(self, exacts: Sequence[bytes]) -> list[Entry | None]:
        # A digest never stored costs no hop to the thread; most look-ups of a miss end here.
        if not any(_short(exact) in self._known for exact in exacts):
            return [None] * len(exacts)
        return await self._run(lambda: [self._read(exact) for exact in exacts])

    async def put(self, entry: Entry) -> None:
        short = _short(entry.exact)
        self._gathered.append(_Gathered(entry, codec.encode(entry), short in self._known))
        self._known.add(short)
        await self._run(_nothing)
        self._listen(Change("add", entry.scope, entry.encoder, row_of(entry)))

    def put_soon(self, entry: Entry) -> bool:
        short = _short(entry.exact)
        if self._trouble is not None or len(self._gathered) >= _MOST_GATHERED or short in self._known:
            return False  # a row that may be replaced must be told of before its successor is
        self._known.add(short)
        self._gathered.append(_Gathered(entry, codec.encode(entry), replaces=False))
        self._listen(Change("add", entry.scope, entry.encoder, row_of(entry)))
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._write_gathered)
        return True

    async def put_key(self, entry: Entry, beside: bytes, most: int) -> bool:
        changes = await self._run(lambda: self._add_key(entry, beside, most))
        if changes is None:
            return False
        for change in changes:
            (self._forget if change.kind == "drop" else self._listen)(change)
        self._known.add(_short(entry.exact))
        return True

    async def drop(self, entry_id: int) -> Entry | None:
        found = await self._run(lambda: self._take(entry_id))
        if found is None:
            return None
        entry, changes = found
        for change in changes:
            self._forget(change)
        return entry

    async def states(self, names: Sequence[bytes]) -> list[Stored | None]:
        return await self._run(lambda: sqlite_schema.states(self._db, names))

    async def put_state(self, name: bytes, blob: bytes, *, seen: int) -> bool:
        now = self._now()
        return await self._run(lambda: sqlite_schema.put_state(self._db, name, Stored(seen, blob), now))

    @property
    def shared(self) -> bool:
        return False

    async def vectors(self, scope: bytes, encoder: str) -> list[VectorRow]:
        return [row async for page in self.pages(scope, encoder) for row in page]

    async def pages(
        self, scope: bytes, encoder: str, *, known: Container[int] = ()
    ) -> AsyncGenerator[list[VectorRow], None]:
        after: int | None = _BEFORE_ALL
        while after is not None:
            at = after
            rows, after = await self._run(
                lambda at=at: sqlite_schema.page(self._db, (scope, encoder), at, _PAGE, known)
            )
            yield rows

    def position(self) -> str:
        return ""

    async def since(self, position: str) -> list[Change] | None:  # noqa: ARG002 - no stream to look into
        return None

    async def purge(self, selection: Selection) -> int:
        """A slice at a time: look-ups go on between them."""
        if selection.is_all:
            held = await self._run(self._flush)
            self._listen(Change("reset"))
            return held
        purged, after = 0, _BEFORE_ALL
        while after is not None:
            at = after
            changes, after = await self._run(lambda at=at: self._purge(selection, at))
            for change in changes:
                self._forget(change)
            purged += len(changes)
        return purged

    async def recent(self, limit: int) -> list[Entry]:
        sql = "SELECT body, exact FROM entry ORDER BY created DESC LIMIT ?"
        rows = await self._run(lambda: self._db.execute(sql, (limit,)).fetchall())
        return [entry for body, exact in rows if (entry := codec.decode(body, exact)) is not None]

    async def counts(self) -> dict[Group, int]:
        sql = "SELECT team, project, model, count(*) FROM entry GROUP BY team, project, model"
        rows = await self._run(lambda: self._db.execute(sql).fetchall())
        return {Group(team, project, model): count for team, project, model, count in rows}

    def touch(self, exact: bytes) -> None:
        self._touches.note(exact, self._now())

    def status(self) -> str | None:
        return self._trouble

    async def close(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
        if self._database is not None:
            with suppress(StoreDown):  # what was gathered cannot be kept then
                await self._run(_nothing)
            await self._run(self._shut)
        self._thread.shutdown(wait=True)
        self._listen = _ignore
        self._trouble = "closed"

    def _forget(self, change: Change) -> None:
        self._known.discard(_short(change.row.exact))
        self._listen(change)

    def _write_gathered(self) -> None:
        self._gathering = None
        if self._gathered:
            self._background.spawn(self._run_quietly(), "write what was gathered")

    async def _run_quietly(self) -> None:
        with suppress(StoreDown):  # status() tells; a cache may lose what it was given
            await self._run(_nothing)

    async def _run(self, work: Callable[[], T]) -> T:
        """`work` in the one thread, after what was gathered is written.

        SQLite's errors become StoreDown; the next call tries again.
        """
        gathered, self._gathered = self._gathered, []
        touched = self._touches.take() if gathered or self._touches.is_due else {}
        try:
            changes, found = await asyncio.get_running_loop().run_in_executor(
                self._thread, lambda: (self._write(gathered, touched), work())
            )
        except (sqlite3.Error, OSError, RuntimeError) as error:
            self._trouble = type(error).__name__
            for entry, _, _ in gathered:
                self._listen(Change("drop", entry.scope, entry.encoder, row_of(entry)))
            if type(error) is sqlite3.DatabaseError and self._database is not None:
                await self._begin_anew()
            raise StoreDown(f"sqlite: {error}") from error
        self._trouble = None
        for change in changes:
            self._forget(change)
        self._known.update(_short(item.entry.exact) for item in gathered)
        return found

    async def _begin_anew(self) -> None:
        """A file that turns out damaged while in use serves nobody: set it aside and go on with an empty one."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._reopen)
        self._listen(Change("reset"))

    # Everything below runs in the thread.

    @property
    def _db(self) -> sqlite3.Connection:
        if self._database is None:
            raise sqlite3.ProgrammingError("not open")
        return self._database

    def _reopen(self) -> None:
        self._shut()
        sqlite_schema.set_aside(self._path)
        self._connect()
        self._recount()

    def _flush(self) -> int:
        """A new file in place of the old one, however large that was; what was learned is taken along."""
        held, states = self._held, self._db.execute("SELECT name, version, written, blob FROM state").fetchall()
        self._shut()
        for suffix in ("-wal", "-shm", ""):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self._path.touch(mode=0o600)
        self._connect()
        with self._transaction():
            self._db.executemany("INSERT INTO state (name, version, written, blob) VALUES (?, ?, ?, ?)", states)
        self._recount()
        return held

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Prompts and answers: for the owner's eyes.
        self._path.touch(mode=0o600)
        try:
            self._connect()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            sqlite_schema.set_aside(self._path)
            self._connect()
        self._recount()

    def _recount(self) -> None:
        self._held, held_bytes = self._db.execute("SELECT count(*), sum(bytes) FROM entry").fetchone()
        self._held_bytes = held_bytes or 0
        self._known = {_short(exact) for (exact,) in self._db.execute("SELECT substr(exact, 1, 8) FROM entry")}

    def _connect(self) -> None:
        self._database = sqlite_schema.connect(self._path)

    def _shut(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _read(self, exact: bytes) -> Entry | None:
        found = self._db.execute("SELECT body FROM entry WHERE exact = ?", (exact,)).fetchone()
        return None if found is None else codec.decode(found[0], exact)

    def _write(self, gathered: list[_Gathered], touched: dict[bytes, Used]) -> list[Change]:
        """One transaction for all."""
        if not gathered and not touched:
            return []
        changes: list[Change] = []
        now = self._now()
        with self._transaction():
            if touched:
                self._db.executemany(
                    sqlite_schema.TOUCH, [(used.at, used.times, exact) for exact, used in touched.items()]
                )
            for entry, body, replaces in gathered:
                if replaces:
                    changes += self._delete("exact = ?", (entry.exact,))
                self._db.execute(sqlite_schema.INSERT, sqlite_schema.columns(entry, body, now))
                self._held += 1
                self._held_bytes += sqlite_schema.size_of(entry, body)
            before, self._writes = self._writes, self._writes + len(gathered)
            if before // _SWEEP_EVERY != self._writes // _SWEEP_EVERY or self._surplus():
                changes += self._delete(_EXPIRED, (now, _PAGE))
            return changes + self._make_room(gathered[-1].entry.id if gathered else 0)

    def _surplus(self) -> int:
        return eviction.surplus(self._held, self._max_entries, self._held_bytes, self._max_bytes)

    def _make_room(self, newest: int) -> list[Change]:
        """Let what is worth least go, a few at a time, never the one just written."""
        changes: list[Change] = []
        while surplus := self._surplus():
            changes += self._delete(_WORTH_LEAST, (newest, surplus))
        return changes

    def _take(self, entry_id: int) -> tuple[Entry | None, list[Change]] | None:
        sql = "SELECT body, exact, id FROM entry WHERE answer = coalesce((SELECT answer FROM entry WHERE id = ?), ?)"
        found = self._db.execute(sql, (entry_id, entry_id)).fetchall()
        if not found:
            return None
        with self._transaction():
            changes = [change for *_, key in found for change in self._delete("id = ?", (key,))]
        body, exact, _ = next((row for row in found if row[2] == entry_id), found[0])
        return codec.decode(body, exact), changes

    def _add_key(self, entry: Entry, beside: bytes, most: int) -> list[Change] | None:
        held = self._db.execute("SELECT answer FROM entry WHERE exact = ?", (beside,)).fetchone()
        if held is None or held[0] != entry.root or sqlite_schema.keys_of(self._db, entry) >= most:
            return None
        changes = self._write([_Gathered(entry, codec.encode(entry), replaces=True)], {})
        return [*changes, Change("add", entry.scope, entry.encoder, row_of(entry))]

    def _purge(self, selection: Selection, after: int) -> tuple[list[Change], int | None]:
        """Among the next ids; and where to go on."""
        sql = "SELECT max(id), count(*) FROM (SELECT id FROM entry WHERE id > ? ORDER BY id LIMIT ?)"
        last, count = self._db.execute(sql, (after, _PAGE)).fetchone()
        if not count:
            return [], None
        condition, values = sqlite_schema.selected(self._db, selection)
        with self._transaction():
            return self._delete(f"id > ? AND id <= ? AND {condition}", (after, last, *values)), last

    def _delete(self, condition: str, values: tuple[object, ...]) -> list[Change]:
        """`condition` is one of this file's own literals; what callers bring travels in `values`."""
        sql = "DELETE FROM entry WHERE " + condition + " RETURNING id, exact, scope, encoder, bytes"  # noqa: S608 - see above
        rows = self._db.execute(sql, values).fetchall()
        self._held -= len(rows)
        self._held_bytes -= sum(row[4] for row in rows)
        return [Change("drop", row[2], row[3], VectorRow(row[0], row[1], 0.0, b"")) for row in rows]

    @contextmanager
    def _transaction(self) -> Generator[None]:
        """One write transaction; an error inside undoes it, and the counts that went ahead of it."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except sqlite3.Error:
            self._db.execute("ROLLBACK")
            self._recount()
            raise
        self._db.execute("COMMIT")


def _nothing() -> None:
    """What was gathered is written before any work, this one included."""


def _short(exact: bytes) -> int:
    """Eight bytes of a digest: enough to say `never stored` cheaply; a collision only costs a look into the file."""
    return int.from_bytes(exact[:8], "big")


def _ignore(_: Change) -> None:
    """Until started, and after closing, nobody listens."""
