"""A real SQLite database and keys on it."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.auth import Keyring
from gateway.db.session import Database
from tests.clock import FrozenClock
from tests.unit.control.house import ADMIN_KEY


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = Database(f"sqlite:///{tmp_path / 'nearhit.db'}")
    await opened.start()
    yield opened
    await opened.close()


@pytest.fixture
def keyring(database: Database, clock: FrozenClock) -> Keyring:
    digest = hashlib.sha256(ADMIN_KEY.encode()).digest()
    return Keyring(database, b"p" * 32, now=clock.now, monotonic=clock.monotonic, admin_key=lambda: digest)
