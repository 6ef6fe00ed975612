"""Both databases."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from gateway.db.session import Database
from tests.unit.exports.books import fresh


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Database, None]:
    server = str(request.getfixturevalue("postgres_url")) if request.param == "postgresql" else None
    async with fresh(tmp_path, server) as made:
        yield made
