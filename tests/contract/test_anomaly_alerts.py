"""Alerts of dear days: told once for all workers when the day is over, with what moved, and not when it was in line."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.alert_notices import Moved, PartOutOfLine, SpendingOutOfLine
from gateway.anomaly_alerts import AnomalyAlerts
from gateway.db.session import UNREACHABLE
from tests.clock import FrozenClock
from tests.contract.test_alerts import Receiver, courier, receiver, webhook
from tests.unit.control.house import happened, request_row
from tests.unit.ledger.rig import Rig, running

DAY = 1_440  # minutes
SECONDS = 86_400.0
TONIGHT = 38_900.0  # from the clock's 14:13 until past one o'clock of the next day


@pytest.fixture
async def rig(url: str, tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[Rig, None]:
    async with running(tmp_path, url, clock) as made:
        yield made


def worker(rig: Rig, channels: tuple[str, ...] = ("webhook",)) -> AnomalyAlerts:
    return AnomalyAlerts(rig.database, channels, now=rig.clock.now)


async def spent(rig: Rig, *groups: tuple[str, str, int, int], dear: int = 0) -> None:
    """Thirty days up to today of (key, model, usual nano-USD, nano-USD of the day that was `dear` days ago)."""
    rows = [
        request_row(
            rig.clock,
            number=day * DAY + 5 + which,
            key_id=key,
            model=model,
            cost_nano=unusual if day == dear else usual,
        )
        for day in range(30)
        for which, (key, model, usual, unusual) in enumerate(groups)
    ]
    await happened(rig.database, rows)


def told(there: Receiver) -> list[dict[str, Any]]:
    return [msgspec.json.decode(body) for _, body in there.got]


async def test_a_dear_day_is_told_once_with_what_moved(rig: Rig) -> None:
    """Nobody looks at a page every morning; and each of several workers judges, and again when it is started."""
    await spent(rig, ("shop0000", "smart", 200_000_000, 2_000_000_000), ("chat0000", "chat", 50_000_000, 50_000_000))
    rig.clock.advance(TONIGHT)
    async with receiver() as there:
        workers = [worker(rig) for _ in range(3)]
        await asyncio.gather(*(one.turn() for one in workers))
        await worker(rig).turn()
        send = courier(rig, webhook(there.url), rig.clock.now)
        assert await send.turn() == 1
        assert await send.turn() == 0
        (message,) = told(there)
        assert message["type"] == "spending.anomaly"
        data = message["data"]
        assert (data["day"], data["spent_usd"], data["expected_usd"]) == ("2026-09-21", "2.05", "0.25")
        assert {"dimension": "model", "name": "smart", "difference_usd": "1.8"} in data["causes"]
        assert there.got[0][0]["webhook-signature"].startswith("v1,")


async def test_a_day_is_judged_when_it_is_over_and_everybody_has_told_the_database(rig: Rig) -> None:
    """At noon nearly every day is cheap, and shortly after midnight a worker may still hold what was spent."""
    await spent(rig, ("shop0000", "smart", 200_000_000, 2_000_000_000))
    async with receiver() as there:
        one, send = worker(rig), courier(rig, webhook(there.url), rig.clock.now)
        rig.clock.advance(TONIGHT - 3_600)
        await one.turn()
        assert await send.turn() == 0
        rig.clock.advance(3_600)
        await one.turn()
        assert await send.turn() == 1


async def test_a_part_out_of_line_is_told_where_the_day_is_not(rig: Rig) -> None:
    """A leaked key of one per cent hides in the day."""
    await spent(
        rig,
        ("bigone00", "smart", 1_000_000_000, 1_000_000_000),
        ("leaked00", "chat", 10_000_000, 200_000_000),
        ("", "chat", 500_000_000, 500_000_000),
    )
    rig.clock.advance(TONIGHT)
    async with receiver() as there:
        await worker(rig).turn()
        assert await courier(rig, webhook(there.url), rig.clock.now).turn() == 1
        (message,) = told(there)
    assert (message["data"]["expected_usd"], message["data"]["causes"]) == (None, [])
    assert message["data"]["parts"] == [
        {"dimension": "key", "name": "leaked00", "spent_usd": "0.2", "expected_usd": "0.01"}
    ]


async def test_what_is_in_line_or_cheaper_is_not_told(rig: Rig) -> None:
    """A message about money not spent is one more that nobody reads."""
    await spent(rig, ("shop0000", "smart", 200_000_000, 1_000_000), ("chat0000", "chat", 50_000_000, 51_000_000))
    rig.clock.advance(TONIGHT)
    async with receiver() as there:
        await worker(rig).turn()
        assert await courier(rig, webhook(there.url), rig.clock.now).turn() == 0


@pytest.mark.parametrize(("away", "messages"), [(2, 1), (3, 0)])
async def test_a_day_that_nobody_was_there_to_judge_is_told_later(rig: Rig, away: int, messages: int) -> None:
    """A gateway that was off over a weekend tells Friday on Sunday; of last week nobody wants to be told."""
    await spent(rig, ("shop0000", "smart", 200_000_000, 2_000_000_000))
    rig.clock.advance(TONIGHT + away * SECONDS)
    async with receiver() as there:
        await worker(rig).turn()
        assert await courier(rig, webhook(there.url), rig.clock.now).turn() == messages


async def test_without_channels_no_day_is_judged(rig: Rig) -> None:
    """Where nobody can be told, ninety days need not be added up every night."""
    await asyncio.wait_for(worker(rig, ()).run(), 5)


async def test_it_waits_for_a_database_that_is_away(tmp_path: Path, clock: FrozenClock) -> None:
    """A night's outage must not lose the message."""
    async with running(tmp_path, None, clock) as rig:
        await spent(rig, ("shop0000", "smart", 200_000_000, 2_000_000_000))
        rig.clock.advance(TONIGHT)
        one = worker(rig)
        async with rig.database.begin() as connection:
            await connection.exec_driver_sql("ALTER TABLE spending_delivery RENAME TO away")
        with pytest.raises(UNREACHABLE):
            await one.turn()
        async with rig.database.begin() as connection:
            await connection.exec_driver_sql("ALTER TABLE away RENAME TO spending_delivery")
        await one.turn()
        assert len(await rig.rows("SELECT * FROM spending_delivery")) == 1


def test_a_letter_says_the_day_the_amounts_and_where_to_look() -> None:
    """Somebody in finance reads it on a phone; a name that was made by a tenant must not add lines to it."""
    found = SpendingOutOfLine(
        id="spending|2026-09-21",
        created=0.0,
        day="2026-09-21",
        spent_nano=2_050_000_000,
        expected_nano=250_000_000,
        moved=[Moved(kind="model", name="sm\nart", nano=1_800_000_000), Moved(kind="key", name="", nano=-5_000_000)],
        parts=[PartOutOfLine(kind="key", name="shop0000", spent_nano=2_000_000_000, expected_nano=200_000_000)],
        more=3,
    )
    subject, text = found.letter()
    assert subject == "Spending on 2026-09-21: 2.05 USD spent"
    assert text.splitlines() == [
        "On 2026-09-21 (UTC) 2.05 USD were spent; 0.25 USD were to be expected.",
        "- model sm?art: +1.8 USD against its usual day",
        "- key (none): -0.005 USD against its usual day",
        "Dearer on 2026-09-21 than was to be expected of them:",
        "- key shop0000: 2 USD, 0.2 expected",
        "3 more are on the page.",
        "/ui/anomalies shows the days, and how they are judged.",
    ]
