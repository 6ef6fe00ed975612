"""A key that gets a new secret while applications still send the old one."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from tests.clock import FrozenClock
from tests.unit.control.house import House, house


@pytest.fixture
async def home(tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[House, None]:
    async with house(tmp_path, clock) as found:
        yield found


@pytest.mark.parametrize("sent", [{"json": {"overlap": "24h"}}, {"params": {"over_lap": "24h"}}])
async def test_an_overlap_that_is_not_read_stops_no_application(home: House, sent: dict[str, Any]) -> None:
    """Written into the body, or misspelt, it was left out of account: every application got a 401 at once."""
    async with home.client() as admin:
        key = (await admin.post("/api/v1/keys", json={"name": "bot", "team": "acme"})).json()
        refused = await admin.post(f"/api/v1/keys/{key['id']}/rotate", **sent)
        assert refused.status_code == 400
        assert "overlap" in refused.json()["error"]["message"]
        assert (await home.services.keyring.identify_key(key["key"])).key_id == key["id"]
        fresh = await admin.post(f"/api/v1/keys/{key['id']}/rotate", params={"overlap": "24h"}, json={})
        assert fresh.json()["old_works_until"]
        assert (await home.services.keyring.identify_key(key["key"])).key_id == key["id"]
