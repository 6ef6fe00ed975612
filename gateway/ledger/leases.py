"""Getting, enlarging and giving back leases, so that requests can be admitted by comparing integers in memory.

Knows: who waits for how much, when a refusal is final, which leases are idle. Does not know: SQL, journals, attempts.

All requests that lack something at the same moment share one transaction. A refusal is final when the database has
just said that too little is left and, with several processes, when the others have had the time to hand back what they
do not use. Changes of one process's leases never overlap: they take turns on one lock.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

import structlog

from gateway.db.session import UNREACHABLE
from gateway.errors import GatewayError, Overloaded
from gateway.ledger.balances import Standing
from gateway.ledger.book import Ask, Book, BootClosed, Return
from gateway.ledger.journal import JournalFailed
from gateway.ledger.pools import Pool, Pools
from gateway.tasks import Tasks
from policies.budget import is_roomy

log = structlog.get_logger("nearhit.ledger")

_IDLE_SECONDS = 1.0  # a lease nobody drew on for that long goes back, where little is left
_IDLE_ROOMY_SECONDS = 15.0  # and where plenty is: others get it within moments when they want it
_RECLAIM_SECONDS = 0.35  # other processes look every quarter second whether something is wanted
_FRESH_SECONDS = 1.0  # how long a balance that other processes change too is good for a refusal
_FRESH_ALONE_SECONDS = 30.0
_LATER = (("retry-after", "1"),)


class _Demand:
    """What the requests that wait for one pool need, together and at least."""

    __slots__ = ("least", "pool", "total")

    def __init__(self, pool: Pool, need: int) -> None:
        self.pool = pool
        self.total = need
        self.least = need

    def add(self, need: int) -> None:
        self.total += need
        self.least = min(self.least, need)


class Leases:
    """The leases of one boot. `instant`: database time; `processes`: how many boots share the limits.

    `durable`: `Journal.synced`.
    """

    def __init__(
        self,
        book: Book,
        boot: str,
        pools: Pools,
        *,
        instant: Callable[[], float],
        monotonic: Callable[[], float],
        tasks: Tasks,
    ) -> None:
        self.processes = 1
        self.durable: Callable[[], Awaitable[None] | None] = lambda: None
        self._book = book
        self._boot = boot
        self._pools = pools
        self._instant = instant
        self._monotonic = monotonic
        self._tasks = tasks
        self._asked: dict[str, _Demand] = {}
        self._round: asyncio.Future[GatewayError | None] | None = None
        self._working = False
        self._worker: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._looked = 0.0
        self._refused: dict[str, float] = {}

    def take(self, pools: Sequence[Pool], need: int, *, owed: bool = False) -> bool:
        """Reserve `need` in every pool at once, or nothing. Soft ones always have room, and all for what is `owed`."""
        rooms = [pool.left - need for pool in pools]
        for pool, room in zip(pools, rooms, strict=True):
            if room < 0 and pool.hard and not owed:
                return False
        now = self._monotonic()
        for pool, room in zip(pools, rooms, strict=True):
            pool.take(need, now)
            if room < pool.low and now >= pool.again:
                self._ask(pool, need)
        return True

    async def obtain(self, pools: Sequence[Pool], need: int) -> None:
        """`take`, enlarging leases as needed. Raises BudgetExhausted (final) or Overloaded (database unreachable)."""
        waited, before = False, None
        while not self.take(pools, need):
            lacking = [pool for pool in pools if pool.hard and pool.left < need]
            refusing = next((pool for pool in lacking if self._is_known_short(pool, need)), None)
            if refusing is not None:
                if waited or not self._may_be_handed_back(refusing):
                    self._refused[refusing.id] = self._monotonic()
                    raise refusing.refusal(need)
                waited = True
                await asyncio.sleep(_RECLAIM_SECONDS)
            # What cannot be handed back cannot be had again; all else moves, or turns out to be too little. Beside
            # processes that want the same part it may come back, be given out and go again, and look as it did.
            now = [(p.id, p.left, p.free, p.releasing, p.returned) for p in lacking if p.releasing]
            if now and now == before:
                raise Overloaded("A part of the budget is on its way back.", code="budget_unavailable", headers=_LATER)
            before = now
            for pool in lacking:
                self._ask(pool, need)
            if self._round is not None and (problem := await asyncio.shield(self._round)) is not None:
                raise problem

    async def tend(self) -> None:
        """Hand back what is idle, ended or wanted elsewhere. Raises what an unreachable database raises."""
        wanted = await self._wanted_elsewhere()
        async with self._turn:
            for pool in self._pools.all.values():
                pool.paced(self._monotonic())
                if not pool.releasing and pool.left > 0 and self._is_idle(pool, wanted):
                    pool.releasing = pool.left
            await self._hand_back(self._pools.all.values())
        self._pools.drop_ended(self._instant())
        self._forget_refusals()

    async def _hand_back(self, pools: Iterable[Pool]) -> None:
        """Return what these pools no longer want; a repeat is harmless. Raises what an unreachable database raises."""
        back = [Return(window=pool.id, granted=pool.granted, amount=pool.releasing) for pool in pools if pool.releasing]
        if back and await self._settled_for_good():
            for standing in await self._book.release(self._boot, back):
                self._released(standing)

    async def _settled_for_good(self) -> bool:
        """Once every end so far would survive a power cut; False: nobody can tell any more.

        An attempt whose end is lost is posted at its upper bound. What it had given back must not be spent elsewhere
        before. In this process it may: whatever is dispatched later is synced together with the ends before it.
        """
        try:
            if (waiting := self.durable()) is not None:
                await waiting
        except JournalFailed as error:
            log.warning("leases are kept until a restart: the journal cannot be trusted", error=str(error))
            return False
        return True

    async def release_all(self) -> None:
        """Hand back everything that is not reserved."""
        if self._worker is not None and not self._worker.done():
            await asyncio.wait([self._worker])
        for pool in self._pools.all.values():
            pool.last_used = float("-inf")
        await self.tend()

    def _is_known_short(self, pool: Pool, need: int) -> bool:
        fresh = _FRESH_ALONE_SECONDS if self.processes == 1 else _FRESH_SECONDS
        return pool.headroom < need and self._monotonic() - pool.contact <= fresh

    def _may_be_handed_back(self, pool: Pool) -> bool:
        """Whether other processes hold leases, and have not just been asked for them in vain."""
        others = pool.held - (pool.granted - pool.consumed)
        recently = self._monotonic() - self._refused.get(pool.id, float("-inf")) <= _FRESH_SECONDS
        return self.processes > 1 and others > 0 and not recently

    def _is_idle(self, pool: Pool, wanted: set[str]) -> bool:
        if pool.id in self._asked:
            return False
        if pool.id in wanted or self._instant() >= pool.ends or not self._pools.is_current(pool) or not pool.hard:
            return True
        if pool.free < 0:  # the limit was lowered below what is spent and held
            return True
        if self.processes > 1 and not is_roomy(pool.limit, pool.free):
            return True
        patience = _IDLE_ROOMY_SECONDS if is_roomy(pool.limit, pool.free) else _IDLE_SECONDS
        return self._monotonic() - pool.last_used > patience

    async def _wanted_elsewhere(self) -> set[str]:
        names = [pool.id for pool in self._pools.all.values() if pool.left > 0] if self.processes > 1 else []
        if not names:
            return set()
        since, self._looked = self._looked, self._instant() - 1.0
        return set(await self._book.wanted(names, since))

    def _forget_refusals(self) -> None:
        old = self._monotonic() - _FRESH_SECONDS
        self._refused = {name: at for name, at in self._refused.items() if at > old}

    # -- one transaction for everybody who waits ---------------------------------------------------------------------

    def _ask(self, pool: Pool, need: int) -> None:
        """Put a need on the next round's list and see that there is a next round."""
        if (known := self._asked.get(pool.id)) is not None:
            known.add(need)
        else:
            self._asked[pool.id] = _Demand(pool, need)
        if self._round is None:
            self._round = asyncio.get_running_loop().create_future()
        if not self._working:
            self._working = True
            self._worker = self._tasks.spawn(self._work(), "ledger-leases")

    async def _work(self) -> None:
        try:
            while self._asked:
                asked, self._asked = self._asked, {}
                round_, self._round = self._round, None
                problem: GatewayError | None = Overloaded("The gateway is stopping.", headers=_LATER)
                try:
                    problem = await self._grant(list(asked.values()))
                finally:
                    if round_ is not None and not round_.done():
                        round_.set_result(problem)
        finally:
            self._working = False

    async def _grant(self, demands: list[_Demand]) -> GatewayError | None:
        async with self._turn:
            try:
                # The reply to a hand-back was lost: only once it is known where that part is can it be had again.
                await self._hand_back(demand.pool for demand in demands)
                asks = [ask for demand in demands if (ask := _ask_for(demand, self._monotonic())) is not None]
                if not asks:
                    return None
                standings = await self._grant_twice(asks)
            except BootClosed:
                log.error("this process's leases were taken over by a recovery; it must be restarted")
                return Overloaded("This process may not spend any more.", code="ledger_unavailable", headers=_LATER)
            except UNREACHABLE as error:
                log.warning("budgets cannot be read", error=repr(error)[:300])
                for demand in demands:
                    demand.pool.in_vain(self._monotonic())
                return Overloaded(
                    "The budgets cannot be read at the moment.", code="budget_unavailable", headers=_LATER
                )
            for standing in standings:
                self._granted(standing)
        return None

    async def _grant_twice(self, asks: list[Ask]) -> list[Standing]:
        """Once more after a broken connection: a repeat is harmless."""
        try:
            return await self._book.grant(self._boot, asks, self._instant(), self.processes)
        except UNREACHABLE:
            return await self._book.grant(self._boot, asks, self._instant(), self.processes)

    def _granted(self, standing: Standing) -> None:
        pool = self._pools.all.get(standing.window)
        if pool is None:
            return
        lease = standing.lease
        if pool.releasing and lease.granted == pool.granted - pool.releasing:
            pool.releasing = 0  # an earlier hand-back had reached the database after all
            pool.returned += 1
        more = lease.granted - pool.granted
        pool.granted = lease.granted
        pool.balance(*standing.balance, self._monotonic())
        if more > 0:
            pool.sized(more, self._monotonic())

    def _released(self, standing: Standing) -> None:
        pool = self._pools.all.get(standing.window)
        if pool is not None:
            pool.granted, pool.releasing = standing.lease.granted, 0
            pool.returned += 1
            pool.balance(*standing.balance, self._monotonic())


def _ask_for(demand: _Demand, now: float) -> Ask | None:
    """The part of a demand that the pool does not cover, or its next filling; None when neither is needed."""
    pool = demand.pool
    lacking = demand.total - pool.left
    if lacking <= 0 and pool.left >= pool.low:
        return None
    return Ask(
        window=pool.id,
        granted=pool.granted,
        demand=max(lacking, demand.least),
        least=max(1, demand.least - pool.left),
        appetite=pool.appetite(demand.least, now),
    )
