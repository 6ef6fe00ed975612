"""A real SQLite database and a clock that tests move."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.auth import Keyring
from gateway.db.session import Database

ADMIN_KEY = "operator-chosen-admin-key"


class Clock:
    """Wall clock and monotonic clock in one."""

    def __init__(self) -> None:
        self.at = 1_800_000_000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = Database(f"sqlite:///{tmp_path / 'nearhit.db'}")
    await opened.start()
    yield opened
    await opened.close()


@pytest.fixture
def keyring(database: Database, clock: Clock) -> Keyring:
    return Keyring(
        database, b"p" * 32, now=clock, monotonic=clock, admin_key=lambda: hashlib.sha256(ADMIN_KEY.encode()).digest()
    )
