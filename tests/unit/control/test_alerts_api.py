"""`/api/v1/alerts`: what the cache and dear days gave to tell stands there too, for whom it concerns."""

from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import insert

from gateway.alert_notices import Moved, SpendingOutOfLine
from gateway.db.models import CacheDelivery, SpendingDelivery
from tests.clock import FrozenClock
from tests.unit.control.house import House, house

AT = 1_790_000_000.0


@pytest.fixture
async def home(tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[House, None]:
    async with house(tmp_path, clock) as made:
        yield made


def cache_row(team: str, channel: str, **changes: object) -> dict[str, object]:
    row: dict[str, object] = {"id": f"cache|{team}|1|begun|{channel}", "channel": channel, "team": team}
    row |= {"created": AT, "attempts": 1, "due": None, "delivered": AT + 1, "error": None}
    row |= {"project": "shop", "model": "demo", "number": 1, "over": False}
    return row | {"rate": 0.08, "low": 0.06, "high": 0.1, "allowed": 0.05} | changes


def dear_row(channel: str) -> dict[str, object]:
    day = SpendingOutOfLine(
        id="spending|2026-09-20",
        created=AT + 60,
        day="2026-09-20",
        spent_nano=9_000_000_000,
        expected_nano=1_000_000_000,
        moved=[Moved(kind="model", name="demo", nano=8_000_000_000)],
        parts=[],
        more=0,
    )
    row: dict[str, object] = {
        "id": f"{day.id}|{channel}",
        "channel": channel,
        "told": msgspec.json.encode(day).decode(),
    }
    return row | {"created": AT + 60, "attempts": 0, "due": AT + 60, "delivered": None, "error": None}


async def kept(home: House) -> None:
    rows = [cache_row("acme", "webhook"), cache_row("acme", "email", delivered=None, error="refused")]
    async with home.services.database.begin() as connection:
        await connection.execute(insert(CacheDelivery), [*rows, cache_row("zeta", "webhook")])
        await connection.execute(insert(SpendingDelivery), [dear_row("webhook")])


async def test_caches_and_dear_days_are_listed_once_with_their_channels(home: House) -> None:
    """Only budgets were listed: whether anybody was told of a bad cache or a dear day was in the database alone."""
    await kept(home)
    async with home.client() as admin:
        said = (await admin.get("/api/v1/alerts")).json()
    assert said["data"] == []
    assert [one["type"] for one in said["notices"]] == ["spending.anomaly", "cache.wrong_hits", "cache.wrong_hits"]
    dear, *caches = said["notices"]
    assert (dear["data"]["spent_usd"], dear["data"]["expected_usd"]) == ("9", "1")
    assert [one["state"] for one in dear["deliveries"]] == ["waiting"]
    (acme,) = (one for one in caches if one["data"]["team"] == "acme")
    assert {one["channel"]: (one["state"], one["error"]) for one in acme["deliveries"]} == {
        "webhook": ("delivered", None),
        "email": ("given-up", "refused"),
    }


async def test_a_team_sees_its_own_caches_and_nobody_elses_spending(home: House) -> None:
    """A day's sum and its dearest keys are everybody's together; another team's cache is that team's business."""
    await kept(home)
    async with home.client(await home.key("viewer", team="zeta")) as other:
        said = (await other.get("/api/v1/alerts")).json()["notices"]
    assert [(one["type"], one["data"]["team"]) for one in said] == [("cache.wrong_hits", "zeta")]


async def test_the_oldest_notice_is_listed_with_all_its_channels_or_not_at_all(home: House) -> None:
    """With six channels a bound of rows fell into the middle of one: it looked as if half of them were never told."""
    rows = [
        cache_row("acme", f"hook{channel}", id=f"cache|acme|{number}|begun|hook{channel}", created=AT + number)
        for number in range(190)
        for channel in range(6)
    ]
    async with home.services.database.begin() as connection:
        await connection.execute(insert(CacheDelivery), rows)
    async with home.client() as admin:
        said = (await admin.get("/api/v1/alerts")).json()["notices"]
    assert len(said) == 166  # of a thousand rows
    assert {len(one["deliveries"]) for one in said} == {6}
