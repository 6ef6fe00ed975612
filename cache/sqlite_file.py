"""What the SQLite store's one thread does: open, read, write together, make room, take out.

Knows SQL, transactions and how much is held. Every method blocks and may raise sqlite3.Error or OSError.
Does not know the event loop or listeners: what changed is handed back.
"""

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from cache import sqlite_schema
from cache.codec import Codec
from cache.sqlite_schema import row_of
from cache.store import Change, Selection, VectorRow
from cache.touches import Used
from cache.types import Entry
from policies import eviction

# Looking for expired rows costs an index probe; once in so many writes is soon enough.
_SWEEP_EVERY = 64
# Rows looked at before others get their turn.
PAGE = 1_000
BEFORE_ALL = -1
_EXPIRED = "id IN (SELECT id FROM entry WHERE expires <= ? LIMIT ?)"
# To a twelfth of what an entry is worth: in the order of the index.
_WORTH_LEAST = "id IN (SELECT id FROM entry WHERE id != ? ORDER BY CAST(rank * 8 AS INTEGER) LIMIT ?)"
# Of an answer's keys those used least, never the answer's own or the two that are spoken of.
_KEYS_USED_LEAST = (
    "SELECT exact, id FROM entry WHERE answer = ? AND answer != id AND exact != ? AND exact != ? ORDER BY rank LIMIT ?"
)


class Bounds(NamedTuple):
    """How much a file holds at most."""

    entries: int
    bytes: int


class Gathered(NamedTuple):
    """An entry waiting for its turn. `replaces`: the id of a row that may have its digest; 0 where none can."""

    entry: Entry
    body: bytes
    replaces: int = 0


class SqliteFile:
    """One file, one thread. `known`: the beginning of every digest in it or on its way there, and the entry's id.

    The loop keeps `known`; here it is only looked at, and replaced.
    """

    def __init__(self, path: Path, codec: Codec, bounds: Bounds) -> None:
        self._path = path
        self._codec = codec
        self._bounds = bounds
        self._database: sqlite3.Connection | None = None
        self.known: dict[int, int] = {}
        self._held = 0
        self._held_bytes = 0
        self._writes = 0

    @property
    def db(self) -> sqlite3.Connection:
        if self._database is None:
            raise sqlite3.ProgrammingError("not open")
        return self._database

    @property
    def is_open(self) -> bool:
        return self._database is not None

    def open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Prompts and answers: for the owner's eyes.
        self._path.touch(mode=0o600)
        try:
            self._connect()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            sqlite_schema.set_aside(self._path, error)
            self._connect()
        if self._codec.is_sealed:
            sqlite_schema.forget_plain(self.db)
        self._recount()

    def begin_anew(self, why: object) -> None:
        """Set the file aside, and go on with an empty one."""
        self.shut()
        sqlite_schema.set_aside(self._path, why)
        self._connect()
        self._recount()

    def flush(self) -> int:
        """A new file in place of the old one, however large that was; what was learned is taken along."""
        held, states = self._held, self.db.execute("SELECT name, version, written, blob FROM state").fetchall()
        self.shut()
        for suffix in ("-wal", "-shm", ""):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self._path.touch(mode=0o600)
        self._connect()
        with self._transaction():
            self.db.executemany("INSERT INTO state (name, version, written, blob) VALUES (?, ?, ?, ?)", states)
        self._recount()
        return held

    def shut(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def read(self, exact: bytes) -> Entry | None:
        found = self.db.execute("SELECT body FROM entry WHERE id = ? AND exact = ?", self._held_as(exact)).fetchone()
        return None if found is None else self._codec.decode(found[0], exact)

    def newest(self, selection: Selection, now: float, limit: int) -> list[int]:
        """Ids of what may still be served, newest first; of `selection` all but the words, which stand in no column:
        where words are looked for, all ids."""
        condition, values = sqlite_schema.selected(self.db, replace(selection, contains=None), self._codec)
        sql = f"SELECT id FROM entry WHERE {condition or 1} AND expires > ? ORDER BY created DESC, id DESC LIMIT ?"  # noqa: S608 - literals
        most = limit if selection.contains is None else -1
        return [entry_id for (entry_id,) in self.db.execute(sql, (*values, now, most))]

    def entries(self, ids: Sequence[int]) -> list[Entry]:
        """In the same order; those that are gone or cannot be read are left out."""
        marks = ",".join("?" * len(ids))
        rows = self.db.execute(f"SELECT id, body, exact FROM entry WHERE id IN ({marks})", ids)  # noqa: S608 - only "?"
        found = {entry_id: self._codec.decode(body, exact) for entry_id, body, exact in rows}
        return [entry for entry_id in ids if (entry := found.get(entry_id)) is not None]

    def write(self, gathered: list[Gathered], touched: dict[bytes, Used], now: float) -> list[Change]:
        """One transaction for all."""
        if not gathered and not touched:
            return []
        changes: list[Change] = []
        with self._transaction():
            if touched:
                uses = [(used.at, used.times, *self._held_as(exact)) for exact, used in touched.items()]
                self.db.executemany(sqlite_schema.TOUCH, uses)
            rows: list[tuple[object, ...]] = []
            for entry, body, replaces in gathered:
                if replaces:  # it may be one of those just gathered
                    sqlite_schema.insert(self.db, rows)
                    rows.clear()
                    changes += self._delete("id = ? AND exact = ?", (replaces, entry.exact))
                text = "" if self._codec.is_sealed else entry.text
                size = sqlite_schema.size_of(entry, body, text)
                rows.append(sqlite_schema.columns(entry, body, text, size, now))
                self._held += 1
                self._held_bytes += size
            sqlite_schema.insert(self.db, rows)
            before, self._writes = self._writes, self._writes + len(gathered)
            if before // _SWEEP_EVERY != self._writes // _SWEEP_EVERY or self._surplus():
                changes += self._delete(_EXPIRED, (now, PAGE))
            return changes + self._make_room(gathered[-1].entry.id if gathered else 0)

    def take(self, entry_id: int) -> tuple[Entry | None, list[Change]] | None:
        """Remove an entry with every other key of its answer."""
        answer = self.db.execute("SELECT answer FROM entry WHERE id = ?", (entry_id,)).fetchone() or (entry_id,)
        sql = f"SELECT body, exact, id FROM entry WHERE {sqlite_schema.KEYS}"  # noqa: S608 - a literal
        found = self.db.execute(sql, answer).fetchall()
        if not found:
            return None
        with self._transaction():
            changes = [change for *_, key in found for change in self._delete("id = ?", (key,))]
        body, exact, _ = next((row for row in found if row[2] == entry_id), found[0])
        return self._codec.decode(body, exact), changes

    def take_key(self, exact: bytes, entry_id: int) -> list[Change]:
        """Remove this entry alone."""
        with self._transaction():
            return self._delete("exact = ? AND id = ?", (exact, entry_id))

    def add_key(self, entry: Entry, beside: bytes, most: int, now: float) -> list[Change] | None:
        sql = "SELECT answer FROM entry WHERE id = ? AND exact = ?"
        held = self.db.execute(sql, self._held_as(beside)).fetchone()
        if held is None or held[0] != entry.root:
            return None
        surplus = max(0, sqlite_schema.keys_of(self.db, entry) - most + 1)
        least = self.db.execute(_KEYS_USED_LEAST, (entry.root, entry.exact, beside, surplus)).fetchall()
        if len(least) < surplus:
            return None
        changes = [change for exact, entry_id in least for change in self.take_key(exact, entry_id)]
        former, _ = self._held_as(entry.exact)
        changes += self.write([Gathered(entry, self._codec.encode(entry), former)], {}, now)
        return [*changes, Change("add", entry.scope, entry.encoder, row_of(entry))]

    def purge(self, selection: Selection, after: int) -> tuple[list[Change], int | None]:
        """Among the next ids; and where to go on."""
        sql = "SELECT max(id), count(*) FROM (SELECT id FROM entry WHERE id > ? ORDER BY id LIMIT ?)"
        last, count = self.db.execute(sql, (after, PAGE)).fetchone()
        if not count:
            return [], None
        condition, values = sqlite_schema.selected(self.db, selection, self._codec)
        condition, values = f"id > ? AND id <= ? AND {condition}", (after, last, *values)
        with self._transaction():
            if selection.contains is None:
                return self._delete(condition, values), last
            # An answer goes with all its keys, also those in other words.
            sql = f"SELECT DISTINCT answer FROM entry WHERE {condition}"  # noqa: S608 - literals
            answers = self.db.execute(sql, values).fetchall()
            return [change for answer in answers for change in self._delete(sqlite_schema.KEYS, answer)], last

    def _connect(self) -> None:
        self._database = sqlite_schema.connect(self._path)

    def _recount(self) -> None:
        self._held, held_bytes = self.db.execute("SELECT count(*), sum(bytes) FROM entry").fetchone()
        self._held_bytes = held_bytes or 0
        self.known = {short(exact): entry_id for exact, entry_id in self.db.execute("SELECT exact, id FROM entry")}

    def _held_as(self, exact: bytes) -> tuple[int, bytes]:
        """Id, 0 where there is none, and digest: what a row is found by."""
        return self.known.get(short(exact), 0), exact

    def _surplus(self) -> int:
        return eviction.surplus(self._held, self._bounds.entries, self._held_bytes, self._bounds.bytes)

    def _make_room(self, newest: int) -> list[Change]:
        """Let what is worth least go, a few at a time, never the one just written."""
        changes: list[Change] = []
        while surplus := self._surplus():
            changes += self._delete(_WORTH_LEAST, (newest, surplus))
        return changes

    def _delete(self, condition: str, values: tuple[object, ...]) -> list[Change]:
        """`condition` is one of this file's own literals; what callers bring travels in `values`."""
        sql = "DELETE FROM entry WHERE " + condition + " RETURNING id, exact, scope, encoder, bytes"  # noqa: S608 - see above
        rows = self.db.execute(sql, values).fetchall()
        self._held -= len(rows)
        self._held_bytes -= sum(row[4] for row in rows)
        return [Change("drop", row[2], row[3], VectorRow(row[0], row[1], 0.0, b"")) for row in rows]

    @contextmanager
    def _transaction(self) -> Generator[None]:
        """One write transaction; an error inside undoes it, and the counts that went ahead of it."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except sqlite3.Error:
            self.db.execute("ROLLBACK")
            self._recount()
            raise
        self.db.execute("COMMIT")


def short(exact: bytes) -> int:
    """Seven bytes of a digest: enough to say `never stored` cheaply; a collision only costs a look into the file.

    An integer of eight would take half as much memory again (two digits of 30 bits hold seven).
    """
    return int.from_bytes(exact[:7], "big")
