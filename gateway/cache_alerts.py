"""Where a cache's hits by meaning are wrong too often: noted once for all workers, and queued for every channel.

Knows: which groups are known to break their budget, the rows. Does not know: how that is measured (`cache.verify`), how
anybody is told (`gateway.alerts`).

Every worker measures, and each begins anew at a restart; the row of a group says whether people have been told already.
Of several that notice the same only one changes it. What the database could not take yet waits here: once per group.
"""

import asyncio
import hashlib
from collections.abc import Callable

import structlog
from sqlalchemy import insert, select, update

from cache.types import Group
from cache.verify import Alert
from gateway.db.models import CacheAlert, CacheDelivery
from gateway.db.session import Database
from gateway.ledger.balances import insert_once
from gateway.outage import Outage
from gateway.turns import take_turns

log = structlog.get_logger("nearhit.alerts")

_TURN_SECONDS = 2.0
_REREAD_SECONDS = 30.0
# What another worker measured is known within seconds: none may end an alert from figures older than that.
_SETTLED_SECONDS = 60.0


class CacheAlerts:
    """One per worker. `channels`: names of `gateway.alert_settings`; without any nothing is noted."""

    def __init__(self, database: Database, channels: tuple[str, ...], *, now: Callable[[], float]) -> None:
        self._database = database
        self._channels = channels
        self._now = now
        self._stopping = asyncio.Event()
        self._open: set[Group] = set()
        self._reread_at = 0.0
        self._waiting: dict[Group, tuple[bool, Alert]] = {}

    def broke(self, found: Alert) -> None:
        """More of the group's hits are wrong than allowed."""
        if self._channels:
            self._waiting[found.group] = (False, found)

    def kept(self, found: Alert) -> None:
        """The group's hits are within the budget, as far as can be told."""
        if found.group in self._open or found.group in self._waiting:
            self._waiting[found.group] = (True, found)

    async def run(self) -> None:
        """Until `stop`."""
        away = Outage(log, "alerts of the cache wait for the database", "alerts of the cache go on")
        if self._channels:
            await take_turns(self.turn, self._stopping, _TURN_SECONDS, away)

    def stop(self) -> None:
        self._stopping.set()

    async def turn(self) -> None:
        """Note what waits. Raises as an unreachable database does; then it waits on."""
        for group, (over, found) in list(self._waiting.items()):
            await self._note(found, over=over)
            if self._waiting.get(group) == (over, found):
                del self._waiting[group]
        if self._now() >= self._reread_at:
            of = select(CacheAlert.team, CacheAlert.project, CacheAlert.model).where(CacheAlert.ended.is_(None))
            async with self._database.read() as connection:
                self._open = {Group(*row) for row in (await connection.execute(of)).all()}
            self._reread_at = self._now() + _REREAD_SECONDS

    async def _note(self, found: Alert, *, over: bool) -> None:
        group, now = found.group, self._now()
        those = (CacheAlert.team == group.team, CacheAlert.project == group.project, CacheAlert.model == group.model)
        if over:
            turned = (
                update(CacheAlert)
                .where(*those, CacheAlert.ended.is_(None), CacheAlert.raised <= now - _SETTLED_SECONDS)
                .values(ended=now)
            )
        else:
            turned = (
                update(CacheAlert)
                .where(*those, CacheAlert.ended.is_not(None))
                .values(number=CacheAlert.number + 1, raised=now, ended=None)
            )
        async with self._database.begin() as connection:
            if not over:
                fresh = {**group._asdict(), "number": 0, "raised": 0.0, "ended": 0.0}
                await connection.execute(insert_once(self._database.dialect, CacheAlert), [fresh])
            if (await connection.execute(turned)).rowcount != 1:
                return
            number = (await connection.execute(select(CacheAlert.number).where(*those))).scalar_one()
            await connection.execute(insert(CacheDelivery), self._messages(found, number, over=over))
        if over:
            self._open.discard(group)
        else:
            self._open.add(group)

    def _messages(self, found: Alert, number: int, *, over: bool) -> list[dict[str, object]]:
        group, now = found.group, self._now()
        name = hashlib.sha256("\0".join(group).encode()).hexdigest()[:32]
        return [
            {
                "id": f"cache|{name}|{number}|{'over' if over else 'begun'}|{channel}",
                "channel": channel,
                "created": now,
                "attempts": 0,
                "due": now,
                **group._asdict(),
                "number": number,
                "over": over,
                "rate": found.rate,
                "low": found.low,
                "high": found.high,
                "allowed": found.budget,
            }
            for channel in self._channels
        ]
