"""A start that fails: whoever reads the terminal is told why, in a sentence."""

from pathlib import Path
from typing import Any

import pytest

from gateway.app import create_app
from tests.live import settings


async def test_a_database_that_is_away_is_told_in_a_sentence(tmp_path: Path) -> None:
    """It took 445 lines of trace to say that PostgreSQL had not been started."""
    told: list[dict[str, str]] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        told.append(message)

    app = create_app(settings(tmp_path, database="postgresql://nearhit@127.0.0.1:1/nearhit"))
    with pytest.raises(ExceptionGroup):
        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    [failed] = told
    assert failed["type"] == "lifespan.startup.failed"
    assert failed["message"].startswith("nearhit: cannot start: ")
    assert "\n" not in failed["message"]
