"""The file of the SQLite store: what the versions before have left is taken over."""

import asyncio
import sqlite3
import threading
from pathlib import Path

import msgspec
import pytest

from cache import sqlite_schema
from cache.codec import Codec
from cache.sqlite_file import Bounds, Gathered, SqliteFile
from cache.store import ANYTHING, Change
from cache.store.sqlite import SqliteStore
from cache.touches import Used
from cache.types import Entry

_codec = Codec()
_VERSION_1 = """
CREATE TABLE entry (
    id INTEGER PRIMARY KEY, exact BLOB NOT NULL UNIQUE, scope BLOB NOT NULL, encoder TEXT NOT NULL,
    team TEXT NOT NULL, project TEXT NOT NULL, model TEXT NOT NULL, text TEXT NOT NULL,
    created REAL NOT NULL, expires REAL NOT NULL, used REAL NOT NULL, vector BLOB NOT NULL, body BLOB NOT NULL
);
CREATE INDEX entry_scope ON entry (scope, encoder);
CREATE INDEX entry_used ON entry (used);
CREATE INDEX entry_expires ON entry (expires);
PRAGMA user_version = 1;
"""
_VERSION_2 = """
ALTER TABLE entry ADD COLUMN answer INTEGER NOT NULL DEFAULT 0;
UPDATE entry SET answer = id;
CREATE INDEX entry_answer ON entry (answer);
CREATE TABLE state (name BLOB PRIMARY KEY, version INTEGER NOT NULL, written REAL NOT NULL, blob BLOB NOT NULL);
CREATE INDEX state_written ON state (written);
INSERT INTO state VALUES (x'01', 1, 0, x'02');
PRAGMA user_version = 2;
"""
_VERSION_3 = """
CREATE INDEX entry_created ON entry (created);
CREATE INDEX entry_group ON entry (team, project, model);
DROP INDEX entry_used;
ALTER TABLE entry RENAME COLUMN used TO rank;
ALTER TABLE entry ADD COLUMN worth REAL NOT NULL DEFAULT 0;
ALTER TABLE entry ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
UPDATE entry SET bytes = length(body);
CREATE INDEX entry_rank ON entry (rank, bytes);
PRAGMA user_version = 3;
"""


def entry(number: int, exact: bytes) -> Entry:
    return Entry(
        id=number,
        scope=b"scope",
        exact=exact.ljust(32, b"."),
        text="hello",
        answer=b"{}",
        prompt_tokens=1,
        completion_tokens=1,
        cost_nano=1_000,
        latency_ms=1.0,
        created=float(number),
        expires=1e12,
        origin="a/b",
        team="t",
        project="p",
        model="m",
        vector=b"1234",
        encoder="e",
    )


def made_before(path: Path, version: int, entries: list[Entry]) -> None:
    """A file as a version before has left it."""
    with sqlite3.connect(path) as database:
        database.executescript(_VERSION_1)
        for one in entries:
            values = (one.id, one.exact, one.scope, one.encoder, one.team, one.project, one.model, one.text)
            rest = (one.created, one.expires, one.created, one.vector, _codec.encode(one))
            database.execute(f"INSERT INTO entry VALUES ({', '.join('?' * 13)})", (*values, *rest))
        database.commit()
        for script in (_VERSION_2, _VERSION_3)[: version - 1]:
            database.executescript(script)
    database.close()


def opened(path: Path) -> SqliteFile:
    file = SqliteFile(path, _codec, Bounds(1_000, 1 << 20))
    file.open()
    return file


def written(path: Path) -> str:
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT name || coalesce(sql, '') FROM sqlite_master ORDER BY name").fetchall()
        (version,) = database.execute("PRAGMA user_version").fetchone()
    database.close()
    return f"{version} {rows}"


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_file_of_a_version_before_is_taken_over(tmp_path: Path, version: int) -> None:
    """An upgrade must not pay for every answer again, nor leave a file that is unlike a new one."""
    made_before(tmp_path / "old.db", version, [entry(5, b"five"), entry(3, b"three")])
    file = opened(tmp_path / "old.db")
    assert [one.id for one in file.entries(file.newest(ANYTHING, 0.0, 10))] == [5, 3]
    found = file.read(entry(3, b"three").exact)
    assert found is not None
    assert found.id == 3
    assert file.add_key(msgspec.structs.replace(entry(7, b"seven"), answer_id=5), entry(5, b"five").exact, 4, 0.0)
    rows, _ = sqlite_schema.page(file.db, (b"scope", "e"), -1, 9, ())
    assert [(row.entry_id, row.vector) for row in rows] == [(3, b"1234"), (5, b"1234"), (7, b"1234")]
    if version > 1:
        assert sqlite_schema.states(file.db, [b"\x01"]) == [(1, b"\x02")]
    file.shut()
    opened(tmp_path / "new.db").shut()
    assert written(tmp_path / "old.db") == written(tmp_path / "new.db")


def test_what_is_looked_up_often_reads_no_answers(tmp_path: Path) -> None:
    """A start, a count and each eviction look at all entries or a thousand: without an index that is the whole file."""
    file = opened(tmp_path / "cache.db")
    for sql in (
        "SELECT exact, id FROM entry",
        "SELECT count(*), sum(bytes) FROM entry",
        "SELECT team, project, model, count(*) FROM entry GROUP BY team, project, model",
        "SELECT id FROM entry ORDER BY created DESC LIMIT 9",
        "SELECT id FROM entry WHERE expires <= 9",
        "SELECT id FROM entry WHERE answer = 9 AND answer != id",
    ):
        plan = str(file.db.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall())
        assert "COVERING INDEX" in plan, sql
    ordered = file.db.execute("EXPLAIN QUERY PLAN SELECT id FROM entry ORDER BY CAST(rank * 8 AS INTEGER)").fetchall()
    assert "TEMP B-TREE" not in str(ordered)
    file.shut()


def test_a_digest_has_one_row_whatever_is_known_of_it(tmp_path: Path) -> None:
    """Nothing in the file itself forbids two rows of one digest: the older would be found by meaning for ever."""
    file = opened(tmp_path / "cache.db")
    first, second = entry(1, b"same"), entry(2, b"same")
    file.write([Gathered(first, _codec.encode(first))], {}, 0.0)
    file.shut()
    file.open()
    assert file.known == {int.from_bytes(first.exact[:7], "big"): 1}
    changes = file.write([Gathered(second, _codec.encode(second), replaces=1)], {first.exact: Used(1, 0.0)}, 0.0)
    assert [(change.kind, change.row.entry_id) for change in changes] == [("drop", 1)]
    assert file.db.execute("SELECT id FROM entry").fetchall() == [(2,)]
    file.shut()


async def test_what_goes_as_soon_as_it_has_come_is_forgotten(tmp_path: Path) -> None:
    """A full cache lets some of what it is just given go again: a digest kept for each of them would be a leak."""
    store = SqliteStore(tmp_path / "cache.db", now=lambda: 1.0, max_entries=10)
    await store.start(lambda _: None)
    for first in range(0, 200, 50):
        given = [entry(number + 1, str(number).encode()) for number in range(first, first + 50)]
        for one in given:
            assert store.put_soon(one)
        await store.get(given[0].exact)  # writes what was gathered
    assert len(store._file.known) == 10
    await store.close()


async def test_who_leaves_takes_nothing_along_that_others_gave(tmp_path: Path) -> None:
    """What is given is written with whatever is asked next: a client that went away in that moment, behind others in
    the one thread, took their answers with it."""
    told: list[Change] = []
    store = SqliteStore(tmp_path / "cache.db", now=lambda: 1.0, max_entries=2)
    await store.start(told.append)
    given = [entry(number, str(number).encode()) for number in (1, 2, 3, 4)]
    hold = threading.Event()
    busy = asyncio.get_running_loop().run_in_executor(store._thread, hold.wait)
    for one in given:
        assert store.put_soon(one)
    leaving = asyncio.get_running_loop().create_task(store.get(given[0].exact))
    await asyncio.sleep(0)
    leaving.cancel()
    hold.set()
    await busy
    with pytest.raises(asyncio.CancelledError):
        await leaving
    found = [one.id for one in await store.get_many([one.exact for one in given]) if one is not None]
    assert len(found) == 2
    gone = {change.row.entry_id for change in told if change.kind == "drop"}
    assert gone == {1, 2, 3, 4} - set(found)
    assert len(store._file.known) == 2
    await store.close()
