"""One limit per minute shared by several workers: each takes small portions of it in advance and counts in memory.

Knows: purses, who waits for a portion, what happens while the database is away. Does not know: SQL, scopes, requests.

All requests that lack something at the same moment share one transaction; a portion is a second's worth at most, and
what stays unused goes back within a few seconds. While the database cannot be reached, each worker lets through its
equal share of every limit from memory: nothing is refused that a smaller limit would not have refused, and all workers
together never let through more than the limit and what was left of it.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

import structlog

from gateway.db.rates import Ask, Given, draw
from gateway.db.session import UNREACHABLE, Database
from gateway.outage import Outage
from gateway.tasks import Tasks
from policies.rate import Bucket, filled, seconds_until

log = structlog.get_logger("nearhit.rates")

_IDLE_SECONDS = 1.0
_ALONE_SECONDS = 2.0  # before an unreachable database is asked again
_AHEAD = 1 / 60  # of a minute's worth: what a worker may keep in hand


class Purse:
    """This worker's portion of one shared limit. Same face as `policies.rate.Bucket`.

    `hand`: taken and not used, negative while more was used than taken. `level`: what was left for everybody at `seen`.
    `alone`: what counts while the database is away.
    """

    __slots__ = ("alone", "hand", "id", "level", "per_minute", "seen", "used")

    def __init__(self, identity: str, per_minute: float, now: float) -> None:
        self.id = identity
        self.per_minute = per_minute
        self.hand = 0.0
        self.level = per_minute
        self.seen = now
        self.used = now
        self.alone: Bucket | None = None

    def left(self, now: float) -> float:
        if self.alone is not None:
            return self.alone.left(now)
        return self.hand + filled(self.level, self.per_minute, now - self.seen)

    def has(self, need: float, now: float) -> bool:
        if self.alone is not None:
            return self.alone.has(need, now)
        self.used = now
        return self.per_minute > 0 and self.hand >= min(need, self.per_minute)

    def take(self, need: float) -> None:
        if self.alone is not None:
            self.alone.take(need)
        else:
            self.hand -= need

    def give(self, amount: float, now: float) -> None:
        if self.alone is not None:
            self.alone.give(amount, now)
        else:
            self.hand += amount

    def wait(self, need: float, now: float) -> float:
        if self.alone is not None:
            return self.alone.wait(need, now)
        return seconds_until(self.left(now), min(need, self.per_minute), self.per_minute)

    def change(self, per_minute: float, now: float) -> None:
        used = self.per_minute - filled(self.level, self.per_minute, now - self.seen)
        self.per_minute, self.level, self.seen, self.alone = per_minute, per_minute - used, now, None


class Keeper:
    """Fetches portions and hands them back. `processes`: how many workers share the limits."""

    def __init__(
        self,
        database: Database,
        *,
        now: Callable[[], float],
        monotonic: Callable[[], float],
        processes: Callable[[], int],
        tasks: Tasks,
    ) -> None:
        self._database = database
        self._now = now
        self._monotonic = monotonic
        self._processes = processes
        self._tasks = tasks
        self._asked: dict[str, tuple[Purse, float, float]] = {}
        self._round: asyncio.Future[None] | None = None
        self._working = False
        self._turn = asyncio.Lock()
        self._alone_until = float("-inf")
        told = ("rate limits are kept by each worker alone", "rate limits are shared again")
        self._away = Outage(log, *told, monotonic=monotonic)

    async def obtain(self, purses: Iterable[Purse], need: float) -> None:
        """Have portions fetched that cover `need`, as far as there is that much; returns when that has been tried."""
        for purse in purses:
            _, demand, least = self._asked.get(purse.id, (purse, 0.0, need))
            self._asked[purse.id] = (purse, demand + need, min(least, need))
        if not self._asked:
            return
        if self._round is None:
            self._round = asyncio.get_running_loop().create_future()
        if not self._working:
            self._working = True
            self._tasks.spawn(self._work(), "rate-portions")
        await asyncio.shield(self._round)

    async def tend(self, purses: Sequence[Purse]) -> None:
        """Hand back what is idle or more than a second's worth, pay debts; ends being alone when that works."""
        now = self._monotonic()
        if now < self._alone_until:
            return
        async with self._turn:
            back = [(purse, _surplus(purse, now)) for purse in purses]
            asks = [Ask(purse.id, purse.per_minute, amount, 0.0, 0.0) for purse, amount in back if amount]
            alone = [purse for purse in purses if purse.alone is not None]
            asks += [Ask(purse.id, purse.per_minute, 0.0, 0.0, 0.0) for purse in alone]
            if not asks:
                return
            for purse, amount in back:
                purse.hand -= amount
            await self._draw(asks, {purse.id: purse for purse in purses})

    async def _work(self) -> None:
        try:
            while self._asked:
                asked, self._asked = self._asked, {}
                round_, self._round = self._round, None
                try:
                    async with self._turn:
                        await self._fetch(asked)
                finally:
                    if round_ is not None and not round_.done():
                        round_.set_result(None)
        finally:
            self._working = False

    async def _fetch(self, asked: dict[str, tuple[Purse, float, float]]) -> None:
        asks: list[Ask] = []
        for purse, demand, least in asked.values():
            if purse.hand < least and purse.alone is None:
                asks.append(Ask(purse.id, purse.per_minute, 0.0, demand - purse.hand, least - purse.hand))
        if asks:
            await self._draw(asks, {purse.id: purse for purse, _, _ in asked.values()})

    async def _draw(self, asks: list[Ask], purses: dict[str, Purse]) -> None:
        try:
            given = await draw(self._database, asks, self._now(), self._processes())
        except UNREACHABLE as error:
            self._away.goes_on(error)
            self._alone_until = self._monotonic() + _ALONE_SECONDS
            for ask in asks:
                self._leave_alone(purses[ask.id], ask.back)
            return
        self._away.over()
        for one in given:
            _got(purses[one.id], one, self._monotonic())

    def _leave_alone(self, purse: Purse, back: float) -> None:
        """An equal share of the limit from now on, beginning with what this worker is known to have of it."""
        if purse.alone is not None:
            return
        now, share = self._monotonic(), 1 / max(1, self._processes())
        level = purse.hand + back + filled(purse.level, purse.per_minute, now - purse.seen) * share
        purse.alone = Bucket(purse.per_minute * share, now, min(level, purse.per_minute * share))
        purse.hand = 0.0


def _surplus(purse: Purse, now: float) -> float:
    if purse.alone is not None:
        return 0.0
    if purse.hand < 0 or now - purse.used > _IDLE_SECONDS:
        return purse.hand
    return max(0.0, purse.hand - purse.per_minute * _AHEAD)


def _got(purse: Purse, given: Given, now: float) -> None:
    purse.hand += given.amount
    purse.level, purse.seen, purse.alone = given.level, now, None
