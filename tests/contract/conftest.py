"""Both databases, for contracts that hold on either."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from gateway.db.session import Database
from gateway.kept_settings import KeptSettings
from gateway.responses import Responses
from tests.clock import FrozenClock
from tests.empty_database import fresh_postgres


@pytest.fixture(params=["sqlite", "postgresql"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database with today's schema."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'nearhit.db'}"
    return await fresh_postgres(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def kept(url: str, clock: FrozenClock) -> AsyncGenerator[Responses]:
    """Kept responses, and the conversations among them."""
    made = Database(url)
    await made.start()
    yield Responses(made, "here", KeptSettings(), now=clock.now)
    await made.close()
