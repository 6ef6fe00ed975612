"""What is asked of the control plane and read by nobody."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.clock import FrozenClock
from tests.unit.control.house import House, house
from tests.unit.control.test_control_plane import addresses


@pytest.fixture
async def home(tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[House, None]:
    async with house(tmp_path, clock) as found:
        yield found


async def test_no_route_leaves_a_parameter_out_of_account(home: House) -> None:
    """`GET /api/v1/keys?team=acme` listed every team's keys, as if all of them were acme's."""
    mine = [(method, path) for method, path, _ in addresses(home) if path.startswith("/api/")]
    assert len(mine) > 40
    async with home.client() as admin:
        for method, path in mine:
            answer = await admin.request(method, path, params={"colour": "red"})
            assert answer.status_code == 400, (method, path)
            assert answer.json()["error"]["param"] == "colour", (method, path)


async def test_the_refusal_names_what_can_be_asked_for(home: House) -> None:
    """As clients write it: `format`, not what the handler calls it. Who may not ask at all is told that instead."""
    async with home.client() as admin:
        told = (await admin.get("/api/v1/audit", params={"actr": "k"})).json()["error"]["message"]
        assert "Known: limit, before, actor, action, target." in told
        told = (await admin.get("/api/v1/export/entries", params={"fmt": "csv"})).json()["error"]["message"]
        assert "Known: month, from, to, format, team." in told
        told = (await admin.get("/api/v1/keys", params={"team": "acme"})).json()["error"]["message"]
        assert told == "Nothing can be asked for by 'team' here."
    async with home.client(None) as nobody:
        assert (await nobody.get("/api/v1/keys", params={"team": "acme"})).status_code == 401
