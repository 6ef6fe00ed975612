"""From days in the database to the message that people get, through a whole gateway."""

import time
from pathlib import Path

import msgspec
import pytest

from tests.clock import FrozenClock
from tests.contract.test_alerts import receiver, webhook
from tests.live import live, settings
from tests.unit.control.house import happened, request_row
from tests.waiting import until

MINUTES = 1_440


async def test_a_gateway_that_is_started_tells_the_dear_day_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judged by parts that nothing starts, a dear day would be told in tests alone."""
    monkeypatch.setattr("gateway.anomaly_alerts._TURN_SECONDS", 0.05)
    now = FrozenClock(time.time())
    rows = [
        request_row(now, number=day * MINUTES, cost_nano=2_000_000_000 if day == 2 else 200_000_000)
        for day in range(2, 32)
    ]
    async with receiver() as there:
        async with live(settings(tmp_path)) as gateway:
            await happened(gateway.services.database, rows)
        async with live(settings(tmp_path, alerts=webhook(there.url))):
            await until(lambda: bool(there.got))
    ((_, body),) = there.got
    message = msgspec.json.decode(body)
    assert (message["type"], message["data"]["spent_usd"]) == ("spending.anomaly", "2")
