"""Entries in one SQLite file that survives restarts; every statement runs in one worker thread.

Owns its schema: an unknown version or a damaged file is set aside and begun anew, for a cache may be lost, never wrong.
Does not know other processes: exactly one opens the file.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from cache import codec
from cache.background import Background
from cache.store import Change, Selection, StoreDown, VectorRow
from cache.types import Entry, Group

T = TypeVar("T")

_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE entry (
    id INTEGER PRIMARY KEY, exact BLOB NOT NULL UNIQUE, scope BLOB NOT NULL, encoder TEXT NOT NULL,
    team TEXT NOT NULL, project TEXT NOT NULL, model TEXT NOT NULL, text TEXT NOT NULL,
    created REAL NOT NULL, expires REAL NOT NULL, used REAL NOT NULL, vector BLOB NOT NULL, body BLOB NOT NULL
);
CREATE INDEX entry_scope ON entry (scope, encoder);
CREATE INDEX entry_used ON entry (used);
CREATE INDEX entry_expires ON entry (expires);
"""
_FLUSH_AFTER = 256
# Entries taken without waiting are written together: within so many seconds, or with whatever else is asked for first.
_GATHER_SECONDS = 0.02
_MOST_GATHERED = 256
# Looking for expired rows costs an index probe; once in so many writes is soon enough.
_SWEEP_EVERY = 64


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
        self._touched: dict[bytes, float] = {}
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
        self._listen(Change("add", entry.scope, entry.encoder, _row(entry)))

    def put_soon(self, entry: Entry) -> bool:
        short = _short(entry.exact)
        if self._trouble is not None or len(self._gathered) >= _MOST_GATHERED or short in self._known:
            return False  # a row that may be replaced must be told of before its successor is
        self._known.add(short)
        self._gathered.append(_Gathered(entry, codec.encode(entry), replaces=False))
        self._listen(Change("add", entry.scope, entry.encoder, _row(entry)))
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._write_gathered)
        return True

    async def drop(self, entry_id: int) -> Entry | None:
        found = await self._run(lambda: self._take(entry_id))
        if found is None:
            return None
        entry, change = found
        self._forget(change)
        return entry

    async def vectors(self, scope: bytes, encoder: str) -> list[VectorRow]:
        return await self._run(lambda: self._vectors(scope, encoder))

    async def purge(self, selection: Selection) -> int:
        changes = await self._run(lambda: self._purge(selection))
        for change in changes:
            self._forget(change)
        return len(changes)

    async def recent(self, limit: int) -> list[Entry]:
        sql = "SELECT body, exact FROM entry ORDER BY created DESC LIMIT ?"
        rows = await self._run(lambda: self._db.execute(sql, (limit,)).fetchall())
        return [entry for body, exact in rows if (entry := codec.decode(body, exact)) is not None]

    async def counts(self) -> dict[Group, int]:
        sql = "SELECT team, project, model, count(*) FROM entry GROUP BY team, project, model"
        rows = await self._run(lambda: self._db.execute(sql).fetchall())
        return {Group(team, project, model): count for team, project, model, count in rows}

    def touch(self, exact: bytes) -> None:
        self._touched[exact] = self._now()
        if len(self._touched) > 4 * _FLUSH_AFTER:
            # Nothing has been written for long; the oldest notes are worth least.
            del self._touched[next(iter(self._touched))]

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
        touched: dict[bytes, float] = {}
        if gathered or len(self._touched) >= _FLUSH_AFTER:
            touched, self._touched = self._touched, touched
        try:
            changes, found = await asyncio.get_running_loop().run_in_executor(
                self._thread, lambda: (self._write(gathered, touched), work())
            )
        except (sqlite3.Error, OSError, RuntimeError) as error:
            self._trouble = type(error).__name__
            for entry, _, _ in gathered:
                self._listen(Change("drop", entry.scope, entry.encoder, _row(entry)))
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
        self._set_aside()
        self._connect()
        self._recount()

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Prompts and answers: for the owner's eyes.
        self._path.touch(mode=0o600)
        try:
            self._connect()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            self._set_aside()
            self._connect()
        self._recount()

    def _recount(self) -> None:
        self._held, held_bytes = self._db.execute("SELECT count(*), sum(length(body)) FROM entry").fetchone()
        self._held_bytes = held_bytes or 0
        self._known = {_short(exact) for (exact,) in self._db.execute("SELECT substr(exact, 1, 8) FROM entry")}

    def _connect(self) -> None:
        self._database = database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version == _SCHEMA_VERSION:
            database.execute("SELECT id, body FROM entry LIMIT 1").fetchone()
            return
        if version != 0 or database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise sqlite3.DatabaseError(f"schema version {version}")
        database.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_SCHEMA_VERSION}; COMMIT;")

    def _set_aside(self) -> None:
        """Keep what cannot be read for whoever wants to look, and begin anew."""
        self._shut()
        for suffix in ("", "-wal", "-shm"):
            part = self._path.with_name(self._path.name + suffix)
            if part.exists():
                part.replace(self._path.with_name(f"{self._path.name}.unreadable{suffix}"))
        self._path.touch(mode=0o600)

    def _shut(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _read(self, exact: bytes) -> Entry | None:
        found = self._db.execute("SELECT body FROM entry WHERE exact = ?", (exact,)).fetchone()
        return None if found is None else codec.decode(found[0], exact)

    def _write(self, gathered: list[_Gathered], touched: dict[bytes, float]) -> list[Change]:
        """One transaction for all."""
        if not gathered and not touched:
            return []
        changes: list[Change] = []
        now = self._now()
        with self._transaction():
            if touched:
                notes = [(at, exact) for exact, at in touched.items()]
                self._db.executemany("UPDATE entry SET used = ? WHERE exact = ?", notes)
            for entry, body, replaces in gathered:
                if replaces:
                    changes += self._delete("exact = ?", (entry.exact,))
                self._db.execute(_INSERT, (*_columns(entry), now, entry.vector, body))
                self._held += 1
                self._held_bytes += len(body)
            before, self._writes = self._writes, self._writes + len(gathered)
            if before // _SWEEP_EVERY != self._writes // _SWEEP_EVERY:
                changes += self._delete("expires <= ?", (now,))
            return changes + self._make_room(gathered[-1].entry.id if gathered else 0)

    def _make_room(self, newest: int) -> list[Change]:
        """Let the least recently used go, a few at a time, never the one just written."""
        changes: list[Change] = []
        while self._held > 1 and (self._held > self._max_entries or self._held_bytes > self._max_bytes):
            surplus = max(1, self._held - self._max_entries)
            oldest = "id IN (SELECT id FROM entry WHERE id != ? ORDER BY used LIMIT ?)"
            changes += self._delete(oldest, (newest, surplus))
        return changes

    def _take(self, entry_id: int) -> tuple[Entry | None, Change] | None:
        found = self._db.execute("SELECT body, exact FROM entry WHERE id = ?", (entry_id,)).fetchone()
        if found is None:
            return None
        with self._transaction():
            (change,) = self._delete("id = ?", (entry_id,))
        return codec.decode(found[0], found[1]), change

    def _purge(self, selection: Selection) -> list[Change]:
        terms = [
            (f"{name} = ?", value)
            for name in ("team", "project", "model")
            if (value := getattr(selection, name)) is not None
        ]
        if selection.contains is not None:
            # SQLite folds ASCII only, and LIKE has wildcards: the function is the one other stores use.
            wanted = selection.contains.casefold()

            def holds(text: str) -> bool:
                return wanted in text.casefold()

            self._db.create_function("holds", 1, holds)
            terms.append(("holds(text) = ?", 1))
        with self._transaction():
            return self._delete(" AND ".join(term for term, _ in terms) or "1", tuple(value for _, value in terms))

    def _delete(self, condition: str, values: tuple[object, ...]) -> list[Change]:
        """`condition` is one of this file's own literals; what callers bring travels in `values`."""
        sql = "DELETE FROM entry WHERE " + condition + " RETURNING id, exact, scope, encoder, length(body)"  # noqa: S608 - see above
        rows = self._db.execute(sql, values).fetchall()
        self._held -= len(rows)
        self._held_bytes -= sum(row[4] for row in rows)
        return [Change("drop", row[2], row[3], VectorRow(row[0], row[1], 0.0, b"")) for row in rows]

    def _vectors(self, scope: bytes, encoder: str) -> list[VectorRow]:
        sql = "SELECT id, exact, expires, vector FROM entry WHERE scope = ? AND encoder = ? AND length(vector) > 0"
        return [VectorRow(*row) for row in self._db.execute(sql, (scope, encoder))]

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


_INSERT = (
    "INSERT INTO entry (id, exact, scope, encoder, team, project, model, text, created, expires, used, vector, body)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def _columns(entry: Entry) -> tuple[object, ...]:
    return (
        *(entry.id, entry.exact, entry.scope, entry.encoder, entry.team, entry.project, entry.model),
        *(entry.text, entry.created, entry.expires),
    )


def _nothing() -> None:
    """What was gathered is written before any work, this one included."""


def _row(entry: Entry) -> VectorRow:
    return VectorRow(entry.id, entry.exact, entry.expires, entry.vector)


def _short(exact: bytes) -> int:
    """Eight bytes of a digest: enough to say `never stored` cheaply; a collision only costs a look into the file."""
    return int.from_bytes(exact[:8], "big")


def _ignore(_: Change) -> None:
    """Until started, and after closing, nobody listens."""
