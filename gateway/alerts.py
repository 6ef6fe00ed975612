"""Alerts on their way out: what is due is sent, what failed is tried again later, each once for all workers.

Knows: the queue in the database, who takes which alert, when to try again and when to give up. Does not know: budgets,
what an alert says, HTTP, SMTP.

A budget's rows are made by the transaction that posts the spending (`gateway.ledger.alerting`), so no crossing is lost
in a crash and none is noticed twice; a cache's by `gateway.cache_alerts`, a dear day's by `gateway.anomaly_alerts`. A
worker takes a row by counting its attempt up: of several only one succeeds. One that dies after sending and before
noting it sends once more; receivers tell that by the id. One that cannot note it, as the database has gone meanwhile,
notes it as soon as it can. The queue is as long as budgets have thresholds, caches have groups and days are dear, for a
day at most: then an alert is given up, and shown as such.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import structlog
from sqlalchemy import select, update

from gateway.alert_channels import LONGEST, Channel, NotSent
from gateway.alert_notices import Notice
from gateway.alert_rows import dear, reached, wrong
from gateway.db.models import AlertDelivery, CacheDelivery, SpendingDelivery
from gateway.db.session import Database
from gateway.ledger.shipper import set_within
from gateway.outage import Outage
from gateway.turns import take_turns

log = structlog.get_logger("nearhit.alerts")

_TURN_SECONDS = 2.0
_AT_ONCE = 20
_TAKEN_SECONDS = LONGEST + 30.0  # an attempt, and noting what became of it
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 3_600.0
_GIVE_UP_SECONDS = 86_400.0
_LONGEST_ERROR = 200
_Queue = type[AlertDelivery] | type[CacheDelivery] | type[SpendingDelivery]


class Courier:
    """One per worker. `random` yields numbers in [0, 1), so that workers do not all come back at the same moment."""

    def __init__(
        self,
        database: Database,
        channels: Mapping[str, Channel],
        *,
        now: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._database = database
        self._channels = channels
        self._now = now
        self._random = random
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._ended.set()
        self._unnoted: dict[tuple[_Queue, str, str], dict[str, object]] = {}  # what became of those, by their channel

    async def run(self) -> None:
        """Until `stop`; never stopped in the middle of a delivery. A channel that hangs keeps no other one waiting."""
        self._ended.clear()
        try:
            await asyncio.gather(*(self._serve(channel) for channel in self._channels))
        finally:
            self._ended.set()

    async def _serve(self, channel: str) -> None:
        away = Outage(log, "alerts wait for the database", "alerts go on")
        await take_turns(partial(self._turn_of, channel), self._stopping, _TURN_SECONDS, away, channel=channel)

    def stop(self) -> None:
        self._stopping.set()

    async def ended(self, grace: float) -> None:
        """Up to `grace` seconds for what is being sent: noted by nobody, it would be sent again after a restart."""
        await set_within(self._ended, grace)

    async def turn(self) -> int:
        """Send what is due; answers how many were delivered. Raises as an unreachable database does."""
        return sum([await self._turn_of(channel) for channel in self._channels])

    async def _turn_of(self, channel: str) -> int:
        for queue, of, name in [key for key in self._unnoted if key[1] == channel]:
            await self._note(queue, of, name, self._unnoted[queue, of, name])
        sent = await self._send(channel, AlertDelivery, reached)
        sent += await self._send(channel, CacheDelivery, wrong)
        return sent + await self._send(channel, SpendingDelivery, dear)

    async def _send(self, channel: str, queue: _Queue, notice_of: Callable[[Any], Notice]) -> int:
        wanted = (
            select(queue).where(queue.due <= self._now(), queue.channel == channel).order_by(queue.due).limit(_AT_ONCE)
        )
        async with self._database.read() as connection:
            rows = (await connection.execute(wanted)).all()
        delivered = 0
        for row in rows:
            if self._stopping.is_set():
                break
            if await self._take(queue, row.id, row.attempts):
                delivered += await self._deliver(queue, channel, notice_of(row), row.attempts + 1)
        return delivered

    async def _take(self, queue: _Queue, name: str, attempts: int) -> bool:
        mine = (
            update(queue)
            .where(queue.id == name, queue.attempts == attempts, queue.due.is_not(None))
            .values(attempts=attempts + 1, due=self._now() + _TAKEN_SECONDS)
        )
        async with self._database.begin() as connection:
            return (await connection.execute(mine)).rowcount == 1

    async def _deliver(self, queue: _Queue, channel: str, notice: Notice, attempt: int) -> bool:
        try:
            partly = await self._channels[channel].send(notice)
        except NotSent as problem:
            await self._note(queue, channel, notice.id, self._postponed(channel, notice, attempt, str(problem)))
            return False
        except Exception as problem:  # noqa: BLE001 - one alert that cannot be sent must not end all later ones
            why = f"it could not be sent: {type(problem).__name__}"
            await self._note(queue, channel, notice.id, self._postponed(channel, notice, attempt, why))
            return False
        if partly is None:
            log.info("alert delivered", channel=channel, alert=notice.id, attempt=attempt)
        else:
            log.warning("alert delivered to some only", channel=channel, alert=notice.id, error=partly)
        error = None if partly is None else partly[:_LONGEST_ERROR]
        done: dict[str, object] = {"delivered": self._now(), "due": None, "error": error}
        await self._note(queue, channel, notice.id, done)
        return True

    def _postponed(self, channel: str, notice: Notice, attempt: int, why: str) -> dict[str, object]:
        over = self._now() - notice.created >= _GIVE_UP_SECONDS
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(attempt - 1, 30)) * (0.5 + self._random())
        tell = log.error if over else log.warning
        tell("alert given up" if over else "alert not delivered yet", channel=channel, alert=notice.id, error=why)
        return {"due": None if over else self._now() + pause, "error": why[:_LONGEST_ERROR]}

    async def _note(self, queue: _Queue, channel: str, name: str, values: dict[str, object]) -> None:
        self._unnoted[queue, channel, name] = values
        async with self._database.begin() as connection:
            await connection.execute(update(queue).where(queue.id == name).values(values))
        del self._unnoted[queue, channel, name]
