"""Both databases, for contracts that hold on either."""

from pathlib import Path

import pytest

from tests.empty_database import fresh_postgres


@pytest.fixture(params=["sqlite", "postgresql"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database with today's schema."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'nearhit.db'}"
    return await fresh_postgres(request.getfixturevalue("postgres_url"))
