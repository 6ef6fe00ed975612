"""Days that were dearer than expected: judged when they are over, and queued for every channel, once for all workers.

Knows: when a day is judged, which of what was found is told. Does not know: what is out of line (`policies.anomalies`,
by `gateway.routes.anomalies_view`), how anybody is told (`gateway.alerts`).

Every worker judges, at its start as well; what it queues is called by its day, so a repeat changes nothing. A day that
nobody was there to judge is told up to two days late, and one that became dear afterwards (a batch that ended) as well.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec
import structlog

from gateway.alert_notices import Moved, PartOutOfLine, SpendingOutOfLine
from gateway.db.models import SpendingDelivery
from gateway.db.queries import Queries
from gateway.db.session import Database
from gateway.ledger.balances import insert_once
from gateway.outage import Outage
from gateway.routes.anomalies_view import DAYS, Found, FoundPart, Judged, anomalies
from gateway.routes.spend_view import read_view
from gateway.turns import take_turns

log = structlog.get_logger("nearhit.alerts")

_TURN_SECONDS = 60.0
# After midnight in UTC: until then every worker has told the database what it spent before.
_OVER_SECONDS = 3_600.0
_LATE_DAYS = 3
_MOST_PARTS = 10


class AnomalyAlerts:
    """One per worker. `channels`: names of `gateway.alert_settings`; without any no day is judged."""

    def __init__(self, database: Database, channels: tuple[str, ...], *, now: Callable[[], float]) -> None:
        self._database = database
        self._channels = channels
        self._now = now
        self._stopping = asyncio.Event()
        self._judged = ""  # the last day that was

    async def run(self) -> None:
        """Until `stop`."""
        away = Outage(log, "alerts of dear days wait for the database", "alerts of dear days go on")
        if self._channels:
            await take_turns(self.turn, self._stopping, _TURN_SECONDS, away)

    def stop(self) -> None:
        self._stopping.set()

    async def turn(self) -> None:
        """Judge the days that are over, if the last of them was not yet. Raises as an unreachable database does."""
        now = self._now()
        last = datetime.fromtimestamp(now - _OVER_SECONDS, UTC).date() - timedelta(days=1)
        if last.isoformat() == self._judged:
            return
        view = read_view({"from": (last - timedelta(days=DAYS - 1)).isoformat(), "to": last.isoformat()}, now)
        judged = await anomalies(Queries(self._database), view, {})
        late = {(last - timedelta(days=before)).isoformat() for before in range(_LATE_DAYS)}
        messages = [row for notice in _dear(judged, late, now) for row in self._messages(notice)]
        if messages:
            async with self._database.begin() as connection:
                await connection.execute(insert_once(self._database.dialect, SpendingDelivery), messages)
        self._judged = last.isoformat()

    def _messages(self, found: SpendingOutOfLine) -> list[dict[str, object]]:
        return [
            {
                "id": f"{found.id}|{channel}",
                "channel": channel,
                "created": found.created,
                "attempts": 0,
                "due": found.created,
                "told": msgspec.json.encode(found).decode(),
            }
            for channel in self._channels
        ]


def _dear(judged: Judged, days: set[str], now: float) -> list[SpendingOutOfLine]:
    """One for each of the `days` that was dearer than expected, as a whole or in a part of it; oldest first."""
    spent = dict(judged.days)
    whole = {found.label: found for found in judged.found if found.flag.score > 0}
    parts: dict[str, list[FoundPart]] = {}
    for part in judged.parts:
        parts.setdefault(part.label, []).append(part)
    return [
        _notice(day, spent[day], whole.get(day), parts.get(day, []), now)
        for day in sorted(days)
        if day in whole or day in parts
    ]


def _notice(day: str, spent: int, whole: Found | None, parts: list[FoundPart], now: float) -> SpendingOutOfLine:
    dearest = sorted(parts, key=lambda part: part.flag.expected - part.flag.amount)
    return SpendingOutOfLine(
        id=f"spending|{day}",
        created=now,
        day=day,
        spent_nano=spent,
        expected_nano=None if whole is None else whole.flag.expected,
        moved=[] if whole is None else [Moved(kind=kind, name=name, nano=nano) for kind, name, nano in whole.causes],
        parts=[
            PartOutOfLine(
                kind=part.dimension, name=part.name, spent_nano=part.flag.amount, expected_nano=part.flag.expected
            )
            for part in dearest[:_MOST_PARTS]
        ],
        more=max(0, len(dearest) - _MOST_PARTS),
    )
