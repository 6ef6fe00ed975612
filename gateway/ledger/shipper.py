"""The way of finished attempts into the database: batched, in order, repeated until it worked.

Knows: what is pending, batch sizes, back-off. Does not know: SQL, how amounts come about, requests.
Until an entry is in the database its journal segment stays, so nothing here can lose money; it can only be late.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import structlog
from msgspec import Struct

from gateway.db.session import UNREACHABLE
from gateway.ledger.journal import Journal
from gateway.ledger.pools import Pool
from gateway.ledger.posts import Line, Posts
from gateway.ledger.records import Shipped
from gateway.ledger.segments import Segment
from gateway.outage import Outage

log = structlog.get_logger("nearhit.ledger")

_BATCH = 500
_COLLECT_SECONDS = 0.2
_BUSY = 50  # as many within that time are on their way to a full batch, which costs each half as much
_BUSY_SECONDS = 0.5
_LONGEST_PAUSE = 5.0
MOST_PENDING = 100_000


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Whether `event` is set within that long."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


class _Item(Struct, gc=False):
    line: Line
    pools: Sequence[Pool]
    segment: Segment | None


class Shipper:
    """Posts the entries of one boot."""

    def __init__(self, posts: Posts, boot: str, journal: Journal, *, now: Callable[[], float]) -> None:
        self._posts = posts
        self._boot = boot
        self._journal = journal
        self._now = now
        self._pending: deque[_Item] = deque()
        self._news = asyncio.Event()
        self._turn = asyncio.Lock()
        self._moved = 0.0  # when the last batch was posted, or the first came after none

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def is_full(self) -> bool:
        """Whether so much waits for the database that nothing new may be begun."""
        return len(self._pending) >= MOST_PENDING

    def waiting(self) -> tuple[int, float]:
        """How many have ended and are not in the database yet, and for how many seconds none of them has gone there."""
        pending = len(self._pending)
        return pending, max(0.0, self._now() - self._moved) if pending else 0.0

    def admitted(self) -> Iterator[float]:
        """When each of those was admitted that is not in the database yet."""
        return (item.line.dispatch.admitted for item in self._pending)

    def add(self, line: Line, pools: Sequence[Pool], segment: Segment | None) -> None:
        if not self._pending:
            self._moved = self._now()
        self._pending.append(_Item(line, pools, segment))
        if not self._news.is_set():
            self._news.set()

    async def ship(self) -> int:
        """Post one batch; answers its size. Raises what an unreachable database raises, and nothing is lost."""
        async with self._turn:
            batch = [self._pending[i] for i in range(min(_BATCH, len(self._pending)))]
            if not batch:
                self._news.clear()
                return 0
            standings = await self._posts.post(self._boot, [item.line for item in batch], self._now())
            self._moved = self._now()
            for item in batch:
                self._pending.popleft()
                for pool in item.pools:
                    pool.unshipped -= item.line.settle.amount
                if item.segment is not None:
                    self._journal.done(item.segment)
            pools = {pool.id: pool for item in batch for pool in item.pools}
            for standing in standings:
                pool = pools.get(standing.window)
                if pool is None:  # a budget set since they were admitted; its pool learns of it with the next lease
                    continue
                pool.consumed = standing.lease.consumed
                pool.balance(*standing.balance, pool.contact)
            self._journal.append(Shipped(batch[-1].line.settle.number))
            return len(batch)

    async def ship_all(self) -> None:
        """Until nothing is pending. Raises what an unreachable database raises."""
        while await self.ship():
            pass

    def wake(self) -> None:
        self._news.set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Collect for a moment, post, wait longer after each failure; never stopped in the middle of a transaction."""
        pause = _COLLECT_SECONDS
        away = Outage(log, "entries wait for the database", "entries are posted again")
        while not stopping.is_set():
            await self._news.wait()
            if (len(self._pending) < _BATCH or pause > _COLLECT_SECONDS) and await set_within(stopping, pause):
                return
            busy = _BUSY <= len(self._pending) < _BATCH and pause == _COLLECT_SECONDS
            if busy and await set_within(stopping, _BUSY_SECONDS - _COLLECT_SECONDS):
                return
            try:
                await self.ship()
                pause = _COLLECT_SECONDS
                away.over()
            except UNREACHABLE as error:
                pause = min(_LONGEST_PAUSE, pause * 2)
                away.goes_on(error, pending=len(self._pending))
            except Exception as error:  # a fault of ours: what is journalled must not wait for ever for one bad moment
                pause = min(_LONGEST_PAUSE, pause * 2)
                log.exception("entries could not be posted", pending=len(self._pending), error=repr(error)[:300])
