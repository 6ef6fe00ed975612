"""Alerts on their way out: what is due is sent, what failed is tried again later, each once for all workers.

Knows: the queue in the database, who takes which alert, when to try again and when to give up. Does not know: budgets,
what an alert says, HTTP, SMTP.

The rows are made by the transaction that posts the spending (`gateway.ledger.alerting`), so no crossing is lost in a
crash and none is noticed twice. A worker takes a row by counting its attempt up: of several only one succeeds. One that
dies after sending and before noting it sends once more; receivers tell that by the id. The queue is as long as budgets
have thresholds, for a day at most: then an alert is given up, and shown as such.
"""

import asyncio
from collections.abc import Callable, Mapping

import structlog
from sqlalchemy import select, update

from gateway.alert_channels import Alert, Channel, NotSent
from gateway.db.models import AlertDelivery
from gateway.db.session import UNREACHABLE, Database
from gateway.ledger.shipper import set_within

log = structlog.get_logger("nearhit.alerts")

_TURN_SECONDS = 2.0
_AT_ONCE = 20
_TAKEN_SECONDS = 60.0  # longer than any attempt takes
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 3_600.0
_GIVE_UP_SECONDS = 86_400.0


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

    async def run(self) -> None:
        """Until `stop`; never stopped in the middle of a delivery."""
        while self._channels and not await set_within(self._stopping, _TURN_SECONDS):
            try:
                await self.turn()
            except UNREACHABLE as error:
                log.warning("alerts wait for the database", error=repr(error)[:300])

    def stop(self) -> None:
        self._stopping.set()

    async def turn(self) -> int:
        """Send what is due; answers how many were delivered. Raises as an unreachable database does."""
        wanted = (
            select(AlertDelivery)
            .where(AlertDelivery.due <= self._now(), AlertDelivery.channel.in_(list(self._channels)))
            .order_by(AlertDelivery.due)
            .limit(_AT_ONCE)
        )
        async with self._database.read() as connection:
            rows = (await connection.execute(wanted)).all()
        delivered = 0
        for row in rows:
            if self._stopping.is_set():
                break
            if await self._take(row.id, row.attempts):
                alert = Alert(
                    id=row.id,
                    window_id=row.window_id,
                    threshold=row.threshold,
                    limit_nano=row.limit_nano,
                    spent_nano=row.spent_nano,
                    mode=row.mode,
                    created=row.created,
                )
                delivered += await self._deliver(row.channel, alert, row.attempts + 1)
        return delivered

    async def _take(self, name: str, attempts: int) -> bool:
        mine = (
            update(AlertDelivery)
            .where(AlertDelivery.id == name, AlertDelivery.attempts == attempts, AlertDelivery.due.is_not(None))
            .values(attempts=attempts + 1, due=self._now() + _TAKEN_SECONDS)
        )
        async with self._database.begin() as connection:
            return (await connection.execute(mine)).rowcount == 1

    async def _deliver(self, channel: str, alert: Alert, attempt: int) -> bool:
        try:
            await self._channels[channel].send(alert)
        except NotSent as problem:
            await self._postpone(channel, alert, attempt, str(problem))
            return False
        await self._note(alert.id, {"delivered": self._now(), "due": None, "error": None})
        log.info("alert delivered", channel=channel, alert=alert.id, attempt=attempt)
        return True

    async def _postpone(self, channel: str, alert: Alert, attempt: int, why: str) -> None:
        over = self._now() - alert.created >= _GIVE_UP_SECONDS
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(attempt - 1, 30)) * (0.5 + self._random())
        await self._note(alert.id, {"due": None if over else self._now() + pause, "error": why[:200]})
        tell = log.error if over else log.warning
        tell("alert given up" if over else "alert not delivered yet", channel=channel, alert=alert.id, error=why)

    async def _note(self, name: str, values: dict[str, object]) -> None:
        async with self._database.begin() as connection:
            await connection.execute(update(AlertDelivery).where(AlertDelivery.id == name).values(values))
