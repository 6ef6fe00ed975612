"""Schema versions: which one the code needs, which one the database has, and the way from one to the other.

Knows: Alembic and the `migrations` folder. Does not know: what any migration does.
The check that everything is current costs one SELECT and does not import Alembic. A worker never does: what it has
to migrate, a process of its own migrates.
"""

import asyncio
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

import migrations
from gateway.db.session import Database, is_full, words_of
from gateway.serve_child import module_command

NO_ROOM = 2  # what the process that migrates answers when the disk is full
_FOLDER = Path(migrations.__file__).parent
_LOCK = 7_236_583_491  # any fixed number: PostgreSQL's advisory lock, so that workers that start together take turns


class StaleSchema(Exception):
    """The database is at another revision than this code. The message says which and what to run."""


class NoRoom(StaleSchema):
    """The schema could not be made or moved, since the disk is full: trying again makes no room."""


def head() -> str:
    """The newest revision: files are named `NNNN_what.py` and the number is the revision."""
    return max(_known())


def _known() -> set[str]:
    return {path.name[:4] for path in (_FOLDER / "versions").glob("[0-9][0-9][0-9][0-9]_*.py")}


def how_to_mend(found: str | None) -> str:
    """What is to be done about a database at the revision `found`, which is not the one this version needs."""
    if found is None or found in _known():
        return "nearhit db upgrade"
    return "it was upgraded by a newer version of nearhit: run that one, or restore a copy from before it"


async def current(url: str) -> str | None:
    """The revision a database is at; None for an empty one."""
    database = Database(url)
    try:
        return await current_of(database)
    finally:
        await database.close()


async def upgrade(url: str, revision: str = "head") -> str:
    """Bring a database to `revision`; creates an empty one. Returns the revision it is at now."""
    database = Database(url)
    try:
        await database.start(upgrade=revision == "head") if revision == "head" else await _move(database, revision)
        return await current_of(database) or ""
    finally:
        await database.close()


async def downgrade(url: str, revision: str) -> None:
    """Back to `revision`, or to nothing with "base". Loses what later revisions added."""
    database = Database(url)
    try:
        await _move(database, revision, down=True)
    finally:
        await database.close()


async def current_of(database: Database) -> str | None:
    async with database.begin() as connection:
        return await _revision(connection)


async def upgrade_database(database: Database, *, apart: bool = False) -> None:
    """`apart`: by a process of its own, for one that goes on running: what is loaded for it is 10 MB."""
    if (found := await current_of(database)) == head():
        return
    if found is not None and found not in _known():
        raise StaleSchema(_other(found))
    await (_move_apart(database) if apart and database.is_lasting else _move(database, "head"))


async def require_current(database: Database) -> None:
    if (found := await current_of(database)) != head():
        raise StaleSchema(_other(found))


def _other(found: str | None) -> str:
    return f"the database is at revision {found or 'none'}, this version needs {head()}: {how_to_mend(found)}"


async def _revision(connection: AsyncConnection) -> str | None:
    known = await connection.run_sync(lambda sync: sync.dialect.has_table(sync, "alembic_version"))
    if not known:
        return None
    found: str | None = (await connection.execute(text("SELECT version_num FROM alembic_version"))).scalar()
    return found


async def _move(database: Database, revision: str, *, down: bool = False) -> None:
    try:
        async with database.begin() as connection:
            if database.dialect == "postgresql":
                await connection.execute(text("SET LOCAL statement_timeout = 0"))
                await connection.execute(text("SET LOCAL lock_timeout = '30s'"))
                await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            await connection.run_sync(_run, revision, down)
    except (DBAPIError, OSError) as error:
        if is_full(error):
            where = database.url.database if database.dialect == "sqlite" else f"server {database.url.host}"
            raise NoRoom(f"there is no room for the schema of the database ({where}): {words_of(error)}") from error
        if isinstance(error, OSError):
            raise
        raise StaleSchema(f"the schema could not be moved to {revision}: {error.orig}") from error


async def _move_apart(database: Database) -> None:
    process = await asyncio.create_subprocess_exec(
        *module_command("gateway.db.migrate_apart"),
        stdin=asyncio.subprocess.PIPE,  # its arguments could be read by others, and a URL holds a password
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, said = await process.communicate(database.url.render_as_string(hide_password=False).encode())
    finally:
        if process.returncode is None:  # nobody waits for it any more: what it began is rolled back
            process.terminate()
    if process.returncode:
        words = said.decode("utf-8", "replace").strip().splitlines()
        kind = NoRoom if process.returncode == NO_ROOM else StaleSchema
        raise kind(words[-1] if words else f"the process that migrates ended with {process.returncode}")


def _run(connection: Connection, revision: str, down: bool) -> None:
    from alembic import command  # time and memory that a start with a current schema never takes
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    config.attributes["connection"] = connection
    (command.downgrade if down else command.upgrade)(config, revision)
