"""The tables of the cache's SQLite file, how a file is opened, and the states kept beside the entries.

Knows SQL and versions. A file of a version before is brought up to date; any other raises sqlite3.DatabaseError.
Does not know threads, listeners or what a state means.
"""

import logging
import sqlite3
from collections.abc import Container, Sequence
from itertools import chain
from pathlib import Path

from cache.codec import SEALED, Codec
from cache.store import Selection, Stored, VectorRow
from cache.types import Entry
from policies import eviction

log = logging.getLogger("nearhit.cache")

VERSION = 4
_MOST_STATES = 10_000
_STATES = """
CREATE TABLE state (name BLOB PRIMARY KEY, version INTEGER NOT NULL, written REAL NOT NULL, blob BLOB NOT NULL);
CREATE INDEX state_written ON state (written);
"""
# An entry is written to the pages where the one before it was: a page of an index that is somewhere else for each (by
# digest, by exact rank) would cost more than all the rest. Digests are looked up in memory (`SqliteFile.known`), and
# `entry_held`, in the order of ids, lets a start, a count and a page go through all entries without their answers.
_ENTRY = """
CREATE TABLE entry (
    id INTEGER PRIMARY KEY, exact BLOB NOT NULL, scope BLOB NOT NULL, encoder TEXT NOT NULL,
    team TEXT NOT NULL, project TEXT NOT NULL, model TEXT NOT NULL, text TEXT NOT NULL,
    created REAL NOT NULL, expires REAL NOT NULL, rank REAL NOT NULL, vector BLOB NOT NULL, body BLOB NOT NULL,
    answer INTEGER NOT NULL DEFAULT 0, worth REAL NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX entry_held ON entry (id, exact, created, bytes, team, project, model);
CREATE INDEX entry_scope ON entry (scope, encoder) WHERE encoder != '';
CREATE INDEX entry_rank ON entry (CAST(rank * 8 AS INTEGER));
CREATE INDEX entry_expires ON entry (expires);
CREATE INDEX entry_answer ON entry (answer) WHERE answer != id;
"""
_SCHEMA = _ENTRY + _STATES
# What the versions before lack. One: answers had one key each. Two: the least recently used went first. Three: every
# index held every entry.
_FROM_1 = f"""
ALTER TABLE entry ADD COLUMN answer INTEGER NOT NULL DEFAULT 0;
UPDATE entry SET answer = id;
CREATE INDEX entry_answer ON entry (answer);
{_STATES}
"""  # noqa: S608 - this file's own literals
_FROM_2 = f"""
DROP INDEX entry_used;
ALTER TABLE entry RENAME COLUMN used TO rank;
ALTER TABLE entry ADD COLUMN worth REAL NOT NULL DEFAULT 0;
ALTER TABLE entry ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
UPDATE entry SET rank = rank / {eviction.HALF_LIFE}, bytes = length(body) + length(vector) + length(text);
"""  # noqa: S608 - a number of ours
_COLUMNS = (
    "id, exact, scope, encoder, team, project, model, text, created, expires, answer, vector, body, bytes, worth, rank"
)
_FROM_3 = f"""
DROP INDEX IF EXISTS entry_scope;
DROP INDEX IF EXISTS entry_rank;
DROP INDEX IF EXISTS entry_expires;
DROP INDEX IF EXISTS entry_answer;
ALTER TABLE entry RENAME TO former;
{_ENTRY}
INSERT INTO entry ({_COLUMNS}) SELECT {_COLUMNS} FROM former ORDER BY id;
DROP TABLE former;
"""  # noqa: S608 - this file's own literals
_UPDATES = {1: _FROM_1 + _FROM_2 + _FROM_3, 2: _FROM_2 + _FROM_3, 3: _FROM_3}
_INSERT = f"INSERT INTO entry ({_COLUMNS}) VALUES "  # noqa: S608 - names of ours
_VALUES = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_TOGETHER = 32  # rows in a statement: the driver lets go of the interpreter, and has to get it back, for each of them
_INSERT_ONE, _INSERT_MANY = _INSERT + _VALUES, _INSERT + ", ".join([_VALUES] * _TOGETHER)
TOUCH = "UPDATE entry SET rank = again(rank, worth, ?, ?) WHERE id = ? AND exact = ?"
# Pages of the log before they are put in their place: those of an index that is written again and again only once.
_LOG_PAGES = 4_000
# All keys of the answer ?1, its own first one among them.
KEYS = (
    "id IN (SELECT id FROM entry WHERE id = ?1 AND answer = ?1"
    " UNION ALL SELECT id FROM entry WHERE answer = ?1 AND answer != id)"
)


def connect(path: Path) -> sqlite3.Connection:
    """The open file, in this version's form."""
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version == VERSION:
            database.execute("SELECT id, body, answer, rank FROM entry LIMIT 1").fetchone()
        elif version in _UPDATES:
            _run(database, _UPDATES[version])
        elif version != 0 or database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise sqlite3.DatabaseError(f"schema version {version}")
        else:
            _run(database, _SCHEMA)
    except sqlite3.Error:
        database.close()
        raise
    database.create_function("again", 4, eviction.again)
    return database


def size_of(entry: Entry, body: bytes, text: str) -> int:
    """Bytes an entry takes, roughly: what the store's bound is held against."""
    return len(body) + len(entry.vector) + len(text.encode("utf-8", "surrogatepass"))


def insert(database: sqlite3.Connection, rows: list[tuple[object, ...]]) -> None:
    """Rows as `columns` makes them."""
    left = len(rows) % _TOGETHER
    for start in range(0, len(rows) - left, _TOGETHER):
        database.execute(_INSERT_MANY, tuple(chain.from_iterable(rows[start : start + _TOGETHER])))
    if left:
        database.executemany(_INSERT_ONE, rows[-left:])


def columns(entry: Entry, body: bytes, text: str, size: int, now: float) -> tuple[object, ...]:
    """An entry's row. `text`: empty where prompts may stand in no column."""
    worth = eviction.worth(entry.cost_nano, entry.latency_ms, size)
    return (
        *(entry.id, entry.exact, entry.scope, entry.encoder, entry.team, entry.project, entry.model),
        *(text, entry.created, entry.expires, entry.root, entry.vector, body),
        *(size, worth, eviction.first(worth, now)),
    )


def page(
    database: sqlite3.Connection, key: tuple[bytes, str], after: int, most: int, known: Container[int]
) -> tuple[list[VectorRow], int | None]:
    """The next rows of a scope with ids above `after`, and where to go on; None at the end.

    The index on scope and encoder is in the order of ids, so each page costs the same.
    """
    wanted = (*key, after, most)
    those = "scope = ? AND encoder = ? AND encoder != '' AND id > ?"  # without an encoder there is no vector
    sql = f"SELECT id, exact, expires FROM entry WHERE {those} ORDER BY id LIMIT ?"  # noqa: S608 - a literal
    found = database.execute(sql, wanted).fetchall()
    rows = [VectorRow(row[0], row[1], row[2], b"") for row in found if row[0] in known]
    fresh = [row[0] for row in found if row[0] not in known]
    marks = ",".join("?" * len(fresh))
    sql = f"SELECT id, exact, expires, vector FROM entry WHERE id IN ({marks}) AND length(vector) > 0"  # noqa: S608 - only "?"
    rows += [VectorRow(*row) for row in database.execute(sql, fresh)]
    return rows, found[-1][0] if len(found) == most else None


def forget_plain(database: sqlite3.Connection) -> None:
    """Take out what was kept before there was a key, and leave none of it in free pages."""
    if database.execute("SELECT 1 FROM entry WHERE substr(body, 1, 1) != ? LIMIT 1", (SEALED,)).fetchone() is not None:
        database.execute("PRAGMA secure_delete = ON")
        database.execute("DELETE FROM entry WHERE substr(body, 1, 1) != ?", (SEALED,))
        database.execute("VACUUM")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def selected(database: sqlite3.Connection, selection: Selection, codec: Codec) -> tuple[str, tuple[object, ...]]:
    """A purge's condition and its values. Where prompts stand in no column, `codec` reads them."""
    terms: list[tuple[str, object]] = [
        (f"{name} = ?", value)
        for name in ("team", "project", "model")
        if (value := getattr(selection, name)) is not None
    ]
    if selection.contains is not None:
        # SQLite folds ASCII only, and LIKE has wildcards: the function is the one other stores use.
        wanted = selection.contains.casefold()

        def holds(text: str, body: bytes, exact: bytes) -> bool:
            entry = codec.decode(body, exact) if codec.is_sealed else None
            return wanted in (text if entry is None else entry.text).casefold()

        database.create_function("holds", 3, holds)
        terms.append(("holds(text, body, exact) = ?", 1))
    return " AND ".join(term for term, _ in terms), tuple(value for _, value in terms)


def set_aside(path: Path, why: object) -> None:
    """Keep what cannot be read for whoever wants to look, and leave its place to a new file.

    An operator is told: all that was kept and learned is gone at once.
    """
    log.error("%s cannot be read (%s): set aside as %s.unreadable, the cache begins anew", path, why, path.name)
    for suffix in ("", "-wal", "-shm"):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.replace(path.with_name(f"{path.name}.unreadable{suffix}"))
    path.touch(mode=0o600)


def row_of(entry: Entry) -> VectorRow:
    return VectorRow(entry.id, entry.exact, entry.expires, entry.vector)


def states(database: sqlite3.Connection, names: Sequence[bytes]) -> list[Stored | None]:
    found = (database.execute("SELECT version, blob FROM state WHERE name = ?", (name,)).fetchone() for name in names)
    return [None if row is None else Stored(*row) for row in found]


def put_state(database: sqlite3.Connection, name: bytes, stored: Stored, now: float) -> bool:
    """`stored` carries the version that must be there now."""
    if stored.version:
        sql = "UPDATE state SET version = version + 1, written = ?, blob = ? WHERE name = ? AND version = ?"
        return database.execute(sql, (now, stored.blob, name, stored.version)).rowcount == 1
    sql = "INSERT OR IGNORE INTO state (name, version, written, blob) VALUES (?, 1, ?, ?)"
    made = database.execute(sql, (name, now, stored.blob)).rowcount == 1
    if made and database.execute("SELECT count(*) FROM state").fetchone()[0] > _MOST_STATES:
        oldest = "(SELECT name FROM state ORDER BY written LIMIT ?)"
        database.execute("DELETE FROM state WHERE name IN " + oldest, (_MOST_STATES // 100,))  # noqa: S608 - a literal
    return made


def keys_of(database: sqlite3.Connection, entry: Entry) -> int:
    """How many keys the answer has, besides `entry`."""
    sql = f"SELECT count(*) FROM entry WHERE {KEYS} AND exact != ?2"  # noqa: S608 - a literal
    return database.execute(sql, (entry.root, entry.exact)).fetchone()[0]


def _run(database: sqlite3.Connection, statements: str) -> None:
    database.executescript(f"BEGIN; {statements} PRAGMA user_version = {VERSION}; COMMIT;")
