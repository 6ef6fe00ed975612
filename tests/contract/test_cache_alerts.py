"""Alerts of the cache: told once for all workers when hits are wrong too often, and once when they no longer are."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest

from cache.types import Group
from cache.verify import Alert
from gateway.alert_notices import HitsWrong
from gateway.alert_settings import AlertSettings
from gateway.cache_alerts import CacheAlerts
from gateway.db.session import UNREACHABLE
from tests.clock import FrozenClock
from tests.contract.test_alerts import Receiver, courier, receiver, webhook
from tests.unit.ledger.rig import Rig, running

GROUP = Group("acme", "shop", "openai/gpt-5")
BROKEN = Alert(group=GROUP, rate=0.2, low=0.12, high=0.31, budget=0.05)
WELL = Alert(group=GROUP, rate=0.04, low=0.02, high=0.07, budget=0.05)


@pytest.fixture
async def rig(url: str, tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[Rig, None]:
    async with running(tmp_path, url, clock) as made:
        yield made


def worker(rig: Rig, channels: tuple[str, ...] = ("webhook",)) -> CacheAlerts:
    return CacheAlerts(rig.database, channels, now=rig.clock.now)


def told(there: Receiver) -> list[str]:
    return [str(msgspec.json.decode(body)["type"]) for _, body in there.got]


async def test_a_raise_and_its_end_are_told_once_whoever_notices(rig: Rig) -> None:
    """Every worker measures, and begins anew at a restart: people want one message, and one when it is over."""
    async with receiver() as there:
        workers = [worker(rig) for _ in range(3)]
        send = courier(rig, webhook(there.url), rig.clock.now)
        for one in workers:
            one.broke(BROKEN)
        await asyncio.gather(*(one.turn() for one in workers))
        restarted = worker(rig)
        restarted.broke(BROKEN)
        await restarted.turn()
        assert await send.turn() == 1
        assert await send.turn() == 0
        (headers, body), *_ = there.got
        data = msgspec.json.decode(body)["data"]
        assert data == {
            **GROUP._asdict(),
            "wrong_hit_rate": 0.2,
            "low": 0.12,
            "high": 0.31,
            "max_wrong_hit_rate": 0.05,
        }
        assert headers["webhook-signature"].startswith("v1,")
        rig.clock.advance(61)
        for one in (*workers, restarted):
            one.kept(WELL)
            await one.turn()
        assert await send.turn() == 1
        assert told(there) == ["cache.wrong_hits", "cache.wrong_hits.over"]


async def test_it_can_begin_again(rig: Rig) -> None:
    """Each time is news of its own, with an id that no receiver takes for a repeat."""
    async with receiver() as there:
        one, send = worker(rig), courier(rig, webhook(there.url), rig.clock.now)
        for _ in range(2):
            one.broke(BROKEN)
            await one.turn()
            rig.clock.advance(61)
            one.kept(WELL)
            await one.turn()
            await send.turn()
        assert sorted(told(there)) == ["cache.wrong_hits"] * 2 + ["cache.wrong_hits.over"] * 2
        assert len({headers["webhook-id"] for headers, _ in there.got}) == 4


async def test_old_figures_of_another_worker_end_nothing(rig: Rig) -> None:
    """One that has not heard of the wrong hits yet measures a good one: the alert stands."""
    first, second = worker(rig), worker(rig)
    first.broke(BROKEN)
    await first.turn()
    await second.turn()
    second.kept(WELL)
    await second.turn()
    assert await rig.rows("SELECT over FROM cache_delivery") == [{"over": False}]


async def test_what_is_well_and_was_well_is_no_news(rig: Rig) -> None:
    """Measured all the time: it must cost no statement, and tell nobody."""
    one = worker(rig)
    await one.turn()
    one.kept(WELL)
    assert not one._waiting
    await one.turn()
    assert await rig.rows("SELECT * FROM cache_alert") == []


async def test_it_waits_for_a_database_that_is_away(tmp_path: Path, clock: FrozenClock) -> None:
    """An outage must not swallow it."""
    async with running(tmp_path, None, clock) as rig:
        one = worker(rig)
        one.broke(BROKEN)
        async with rig.database.begin() as connection:
            await connection.exec_driver_sql("ALTER TABLE cache_delivery RENAME TO away")
        with pytest.raises(UNREACHABLE):
            await one.turn()
        async with rig.database.begin() as connection:
            await connection.exec_driver_sql("ALTER TABLE away RENAME TO cache_delivery")
        await one.turn()
        assert len(await rig.rows("SELECT * FROM cache_delivery")) == 1


async def test_without_channels_nothing_is_noted(rig: Rig) -> None:
    """Configured later, they must not tell of what was long ago."""
    one = worker(rig, AlertSettings().channels)
    one.broke(BROKEN)
    await one.turn()
    assert await rig.rows("SELECT * FROM cache_alert") == []


@pytest.mark.parametrize("over", [False, True])
def test_the_letter_says_what_it_is_about_in_one_line(over: bool) -> None:
    """A team's name is somebody's choice: it must not add headers to an e-mail."""
    notice = HitsWrong(
        id="i",
        team="acme\r\nBcc: x@y",
        project="",
        model="m",
        over=over,
        rate=0.2,
        low=0.1,
        high=0.3,
        allowed=0.05,
        created=0.0,
    )
    subject, text = notice.letter()
    assert subject.isprintable()
    assert "acme??Bcc: x@y, model m" in subject
    assert ("again" if over else "20 % of its hits are wrong, 5 % are allowed") in subject
    assert "95 % interval 10 to 30 %" in text
