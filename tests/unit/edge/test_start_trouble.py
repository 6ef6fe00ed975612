"""A start that fails: whoever reads the terminal is told why, in a sentence."""

import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from gateway.app import create_app
from gateway.db import migrate
from gateway.db.migrate import NoRoom, StaleSchema
from gateway.db.session import Database, is_full, words_of
from gateway.start_trouble import StartTrouble
from tests.live import settings


def heard(told: list[Any]) -> Callable[[Any], Awaitable[None]]:
    """A server's `send` that only listens."""

    async def send(message: Any) -> None:
        told.append(message)

    return send


@pytest.mark.parametrize("host", ["127.0.0.1:1", "nowhere.invalid"])
async def test_a_database_that_is_away_is_told_in_a_sentence(tmp_path: Path, host: str) -> None:
    """It took 445 lines of trace to say that PostgreSQL had not been started, and then not whose name was unknown."""
    told: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    app = create_app(settings(tmp_path, database=f"postgresql://nearhit@{host}/nearhit"))
    with pytest.raises(ExceptionGroup):
        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, heard(told))
    [failed] = told
    assert failed["type"] == "lifespan.startup.failed"
    assert failed["message"].startswith("nearhit: cannot start: the database does not answer: ")
    assert "\n" not in failed["message"]


def test_what_the_database_says_is_told_without_what_the_library_adds() -> None:
    """A wrong password came with the name of a class and an address of SQLAlchemy's documentation."""
    refused = DBAPIError("SELECT 1", {}, OSError("password authentication failed for user"))
    assert "sqlalche.me" in str(refused)
    assert words_of(refused) == "password authentication failed for user"
    assert words_of(TimeoutError()) == "TimeoutError"


async def test_a_disk_that_is_full_while_the_schema_is_made_is_told_and_ends_the_tries(tmp_path: Path) -> None:
    """The worker was started again and again, and each time the disk was as full."""
    trouble = StartTrouble()
    told: list[Any] = []
    database = Database(f"sqlite:///{tmp_path / 'nearhit.db'}")
    async with database.begin() as connection:  # the one that writes, so the schema meets the same limit
        await connection.execute(text("PRAGMA max_page_count = 5"))
    with pytest.raises(NoRoom), trouble.noted():
        await migrate.upgrade_database(database)
    await database.close()
    assert trouble.hopeless
    await trouble.told(heard(told))({"type": "lifespan.startup.failed", "message": "a trace"})
    assert told[0]["message"].startswith("nearhit: cannot start: there is no room for the schema of the database (/")
    assert "nearhit.db): database or disk is full." in told[0]["message"]


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (OSError(errno.EACCES, "Permission denied"), False),
        (TimeoutError(), False),
    ],
)
def test_only_what_is_full_is_full(error: OSError, full: bool) -> None:
    """A server that is slow or refuses may be better in a second; a full disk is not."""
    assert is_full(error) is full
    assert is_full(DBAPIError("SELECT 1", {}, error)) is full


async def test_a_database_of_a_newer_version_is_told_in_a_sentence(tmp_path: Path) -> None:
    """Whoever goes back to the version before reads what is wrong, not that a revision cannot be located."""
    trouble = StartTrouble()
    told: list[Any] = []
    database = Database(f"sqlite:///{tmp_path / 'nearhit.db'}")
    await database.start()
    async with database.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StaleSchema), trouble.noted():
        await database.start()
    await database.close()
    await trouble.told(heard(told))({"type": "lifespan.startup.failed", "message": "a trace\n" * 100})
    [failed] = told
    assert failed["message"].startswith("nearhit: cannot start: the database is at revision 9999, this version needs ")
    assert "\n" not in failed["message"]
