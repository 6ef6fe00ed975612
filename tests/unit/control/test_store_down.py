"""A cache store, or a database, that does not answer, seen from the control plane and the pages."""

from pathlib import Path

import pytest

from cache.store import StoreDown
from gateway.errors import Overloaded
from gateway.routes.access import as_gateway_error
from gateway.web.sessions import Sessions
from tests.clock import FrozenClock
from tests.unit.control.house import house
from tests.unit.control.test_pages import sign_in


def test_a_store_that_is_away_is_a_503_to_try_again_not_a_bug() -> None:
    """Purging while Redis restarts must neither look done nor look like our fault."""
    told = as_gateway_error(StoreDown("connection refused"))
    assert isinstance(told, Overloaded)
    assert told.http_status == 503
    assert ("retry-after", "5") in told.headers


async def test_a_database_that_is_away_asks_nobody_for_their_key(
    tmp_path: Path, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions are only out of reach. The form was shown in the page's place, and in the place of each of its parts."""

    async def away(*_: object, **__: object) -> None:
        raise ConnectionRefusedError

    async with house(tmp_path, clock) as home, home.client(None) as visitor:
        await sign_in(visitor)
        with monkeypatch.context() as patch:
            patch.setattr(Sessions, "find", away)
            page = await visitor.get("/ui/spend?by=team")
            part = await visitor.get("/ui/parts/tiles", headers={"hx-request": "true"})
        assert (page.status_code, part.status_code) == (503, 503)
        assert "database does not answer" in page.text
        assert 'href="/ui/spend?by=team"' in page.text
        assert 'type="password"' not in page.text
        assert part.text == ""
        assert (await visitor.get("/ui/spend?by=team")).status_code == 200
