"""All of one database in another: from SQLite to PostgreSQL and back, whole or not at all."""

import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import BigInteger, Boolean, Double, Integer, LargeBinary, Table, delete, insert, select
from sqlalchemy.types import JSON

from gateway.audit import Change, note, verify
from gateway.auth import ADMIN
from gateway.db.copying import Differs, NotEmpty, copy
from gateway.db.models import Audit, Base, Team
from gateway.db.session import Database
from gateway.services import Services
from gateway.settings import Settings
from tests.empty_database import fresh_postgres

TABLES = Base.metadata.sorted_tables
ROWS = 37  # more than two pages of what holds files


def value(column: Any, number: int) -> object:
    """What a column of this kind may hold at most, least and most oddly."""
    if column.foreign_keys:
        return f"é{number}"
    if column.nullable and not column.primary_key and number % 3 == 0:
        return None
    if isinstance(column.type, Boolean):
        return number % 2 == 0
    if isinstance(column.type, Double):
        return 1_764_000_000.123456 + number
    if isinstance(column.type, LargeBinary):
        return bytes(range(256)) * number
    if isinstance(column.type, JSON):
        return {"a": [number, None, "ü\u0000"]}
    if isinstance(column.type, BigInteger):
        return 2**62 + number
    if isinstance(column.type, Integer):
        return number
    return f"é{number}"


def rows(table: Table) -> list[dict[str, object]]:
    return [{column.name: value(column, number) for column in table.columns} for number in range(ROWS)]


async def everything(database: Database) -> dict[str, list[dict[str, object]]]:
    async with database.read() as connection:
        found = {}
        for table in TABLES:
            wanted = select(table).order_by(*table.primary_key)
            read = [dict(row) for row in (await connection.execute(wanted)).mappings()]
            found[table.name] = sorted(read, key=lambda row: repr([row[key.name] for key in table.primary_key]))
        return found


@pytest.fixture(params=["to a fleet", "to a laptop"])
async def both(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[tuple[Database, Database]]:
    """A database and an empty one of the other kind."""
    one = Database(f"sqlite:///{tmp_path / 'nearhit.db'}")
    other = Database(await fresh_postgres(request.getfixturevalue("postgres_url")))
    for database in (one, other):
        await database.start()
    yield (one, other) if request.param == "to a fleet" else (other, one)
    for database in (one, other):
        await database.close()


@pytest.fixture
async def filled(both: tuple[Database, Database]) -> tuple[Database, Database]:
    async with both[0].begin() as connection:
        for table in TABLES:
            await connection.execute(delete(table))
            await connection.execute(insert(table), rows(table))
    return both


def unheard(table: str, done: int, total: int) -> None:
    """Nobody looks on."""
    assert done <= total, table


async def test_every_row_of_every_table_arrives_as_it_was(filled: tuple[Database, Database]) -> None:
    """A table or a column that is forgotten would be found when the old database is long gone."""
    source, target = filled
    copied = await copy(source, target, unheard)
    assert {one.table: one.rows for one in copied} == dict.fromkeys((table.name for table in TABLES), ROWS)
    assert await everything(target) == await everything(source)


async def test_what_holds_something_is_not_written_to(filled: tuple[Database, Database]) -> None:
    """Two databases put together would have two ledgers' balances in one window."""
    source, target = filled
    async with target.begin() as connection:
        await connection.execute(insert(Team).values(id="a", name="a", created=1.0))
    with pytest.raises(NotEmpty, match="1 in team"):
        await copy(source, target, unheard)
    async with target.begin() as connection:
        await connection.execute(delete(Team))
    assert not any(rows for name, rows in (await everything(target)).items() if name != "setting")


async def test_a_copy_that_breaks_off_leaves_nothing(filled: tuple[Database, Database]) -> None:
    """Half of a ledger in the new place would look like a whole one."""
    source, target = filled

    def gone(table: str, done: int, _: int) -> None:
        if table == "stored_piece" and done == ROWS:
            raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await copy(source, target, gone)
    assert not any(rows for name, rows in (await everything(target)).items() if name != "setting")


# A rule of the new database that makes something else of what comes in.
RULES = {
    "sqlite": ("CREATE TRIGGER r AFTER INSERT ON rate_limit BEGIN UPDATE rate_limit SET version = 7; END",),
    "postgresql": (
        "CREATE FUNCTION r() RETURNS trigger AS $$ BEGIN NEW.version = 7; RETURN NEW; END $$ LANGUAGE plpgsql",
        "CREATE TRIGGER r BEFORE INSERT ON rate_limit FOR EACH ROW EXECUTE FUNCTION r()",
    ),
}


async def test_what_arrives_otherwise_is_not_kept(filled: tuple[Database, Database]) -> None:
    """What is compared is what the new database says that it holds, not what it was sent."""
    source, target = filled
    async with target.begin() as connection:
        for statement in RULES[target.dialect]:
            await connection.exec_driver_sql(statement)
    with pytest.raises(Differs, match="rate_limit"):
        await copy(source, target, unheard)
    assert not any(rows for name, rows in (await everything(target)).items() if name != "setting")


async def test_the_log_of_changes_goes_on_where_it_was(both: tuple[Database, Database], tmp_path: Path) -> None:
    """New rows are numbered by the database: it has to know which numbers came along."""
    source, target = (serving(database, tmp_path) for database in both)
    change = Change(action="a", target="t", before=None, after={"x": 1})
    for _ in range(3):
        await note(source, ADMIN, change)
    await copy(source.database, target.database, unheard)
    await note(target, ADMIN, change)
    found = await verify(target)
    assert (found.broken_at, found.rows) == (None, 4)
    async with target.database.read() as connection:
        assert (await connection.scalars(select(Audit.id).order_by(Audit.id))).all() == [1, 2, 3, 4]


def serving(database: Database, home: Path) -> Services:
    nothing = cast("Any", None)
    return Services(
        settings=Settings(home=home), database=database, keyring=nothing, ledger=nothing, prices=nothing, now=time.time
    )
