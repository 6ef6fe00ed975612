"""The ledger: nothing is sent before it is held and journalled, nothing that was sent is ever forgotten.

    hold    compare and reserve in memory, journal the dispatch, wait until it is on disk
    settle  what the attempt cost, given back the rest; journalled at once, in the database within moments
    void    provably cost nothing
    record  one row per request, for people

Knows: the order of these steps. Does not know: SQL, files, time zones, providers; each has a module of its own here.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from msgspec import structs
from sqlalchemy.engine import Connection

from gateway.call import Call, Outcome
from gateway.db import budgets as stored
from gateway.db.clean import clean
from gateway.db.session import UNREACHABLE, Also, Database, nothing
from gateway.errors import InvalidRequest, Overloaded
from gateway.ids import uuid7
from gateway.ledger import checks, seals, sum_proof, sums
from gateway.ledger.adjust import Correction, Told, adjust
from gateway.ledger.alerting import Alerting
from gateway.ledger.balances import Windows
from gateway.ledger.book import Book, BootClosed
from gateway.ledger.configured import put, unsaid
from gateway.ledger.holds import Hold, dispatch_record
from gateway.ledger.journal import Journal, JournalFailed
from gateway.ledger.leases import Leases
from gateway.ledger.plan import AttemptPlan, Posting, Settlement, posting
from gateway.ledger.pools import NOTHING, Drawn, Pool, Pools, asker_of
from gateway.ledger.posts import Line, Posts
from gateway.ledger.reconcile import Reconciliation, reconcile
from gateway.ledger.recorder import Recorder
from gateway.ledger.records import Opened, Progress, Rates, Settle, rates, tokens
from gateway.ledger.recovery import Recovery
from gateway.ledger.retention import Retention, kept
from gateway.ledger.shipper import Shipper
from gateway.ledger.tending import Pulse, Tender
from gateway.tasks import Tasks
from policies.budget import Budget
from policies.money import Price, Usage

if TYPE_CHECKING:  # settings bring pydantic, which nothing here needs at run time
    from gateway.settings import BudgetSettings, Settings

log = structlog.get_logger("nearhit.ledger")

_SYNC_SECONDS = 0.05
_PROGRESS_SECONDS = 0.25
_MOST_NANO = 10**18  # a billion USD; balances are 64 bits
_LATER = (("retry-after", "1"),)
_MOST_PRICES = 4_096


class Ledger:
    """Money of one gateway process. `now` is wall-clock, `monotonic` counts sleep too (`gateway.clock`); in seconds.

    `instant` answers the database's time, by which everything here is dated: which window it is, which months are over.
    """

    def __init__(
        self,
        database: Database,
        journal_dir: Path,
        *,
        settings: "Settings",
        now: Callable[[], float],
        monotonic: Callable[[], float],
        tasks: Tasks,
    ) -> None:
        self.boot = uuid7()
        self._database = database
        self._settings = settings
        self._monotonic = monotonic
        self._tasks = tasks
        self._host = socket.gethostname()
        self._journal = Journal(journal_dir, Opened(self.boot, self._host, now()), settings.ledger.durability)
        self._windows = Windows(database.dialect)
        self._book = Book(database, self._windows)
        self._alerting = Alerting(database.dialect, settings.alerts.channels)
        self._pools = Pools()
        self._pulse = Pulse(self._book, self.boot, self._oldest, now=now, monotonic=monotonic, tasks=tasks)
        posts = Posts(database, self._windows, self._alerting, instant=self._pulse.instant)
        self._leases = Leases(
            self._book, self.boot, self._pools, instant=self._pulse.instant, monotonic=monotonic, tasks=tasks
        )
        self._leases.durable = self._journal.synced
        self._shipper = Shipper(posts, self.boot, self._journal, now=self._pulse.instant)
        self.waiting = self._shipper.waiting
        self._recorder = Recorder(database, explain_days=settings.telemetry.explain_days)
        self._recovery = Recovery(database, self._book, posts, journal_dir, now=self._pulse.instant)
        self._retention = Retention(database, kept(settings), now=self._pulse.instant)
        self.instant = self._pulse.instant
        self._tender = Tender(self._pulse, self._leases, self._recovery, self._refresh, monotonic=monotonic)
        self._rates: dict[str, Rates] = {}
        self._number = 0
        self._open = 0
        self._begun: dict[str, float] = {}
        self._stamp = (0, 0)
        self._loops: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._ready = False

    # -- life ------------------------------------------------------------------------------------------------------

    async def start(self, *, background: bool = True, said: stored.Said = unsaid) -> None:
        """Recover what dead processes left, open the journal, read the budgets. Raises as database and disk do."""
        journalled = self._journal.durability != "off"
        await self._pulse.begin(self._host, journalled=journalled)
        await sums.ensure(self._database)
        await self._recovery.recover()
        self._journal.open()
        await self.put_configured(self._settings.budgets, said)
        await self.reload_budgets()
        await self._pulse.beat()
        self._leases.processes = self._pulse.processes
        self._ready = True
        if background:
            self._loops = [
                self._tasks.spawn(self._shipper.run(self._stopping), "ledger-shipper"),
                self._tasks.spawn(self._recorder.run(self._stopping), "ledger-recorder"),
                self._tasks.spawn(self._tender.run(self._stopping), "ledger-tender"),
                self._tasks.spawn(self._retention.run(self._stopping), "ledger-retention"),
            ]

    async def catch_up(self) -> None:
        """Everything that has ended is in the database when this returns. Raises as an unreachable database does."""
        await self._shipper.ship_all()
        await self._recorder.write()

    async def flush(self) -> None:
        """`catch_up`, and leases are handed back: what the database then calls held, running requests hold."""
        await self.catch_up()
        await self._leases.release_all()

    async def report(self) -> None:
        """Flush, and tell other processes what is still under way here. Raises as an unreachable database does."""
        await self.flush()
        with suppress(BootClosed):  # said by whoever took the leases over
            await self._pulse.beat()

    async def close(self) -> None:
        """Write what is left, give back the leases; what cannot be written stays in the journal for the next start."""
        self._ready = False
        self._stopping.set()
        self._shipper.wake()
        await asyncio.gather(*self._loops)
        complete = False
        try:
            await self.flush()
            if self._open == 0:
                await self._book.close_boot(self.boot, self._pulse.instant())
                complete = True
        except UNREACHABLE as error:
            log.warning("the journal is kept: the database cannot be reached", error=repr(error)[:300])
        self._journal.close(remove=complete)

    # -- one attempt -----------------------------------------------------------------------------------------------

    async def hold(self, call: Call, attempt: AttemptPlan) -> Hold:
        """Reserve the most the attempt can cost in every budget it falls under, and journal that it is about to start.

        When this returns, the attempt may be sent and must be ended by `settle` or `void`. Raises BudgetExhausted;
        Overloaded when money cannot be accounted for at the moment; InvalidRequest for absurd amounts.
        """
        if not self._ready or self._shipper.is_full:
            raise _unavailable("The ledger cannot take on more at the moment.")
        if attempt.reserve_nano > _MOST_NANO:
            raise InvalidRequest("This request could cost more than any budget can hold; ask for fewer output tokens.")
        instant = self._begun[attempt.id] = self._pulse.instant()
        try:
            drawn = self._drawn_on(call, attempt, instant)
            if drawn.pools:
                if not self._pulse.is_fresh:
                    await self._pulse.require()
                if not self._leases.take(drawn.pools, attempt.reserve_nano, owed=call.owed):
                    await self._leases.obtain(drawn.pools, attempt.reserve_nano)
            hold = self._begin(call, attempt, drawn, instant)
            await self._promised(hold)
        except BaseException:
            self._begun.pop(attempt.id, None)
            raise
        return hold

    def _begin(self, call: Call, attempt: AttemptPlan, drawn: Drawn, instant: float) -> Hold:
        """Journal that an attempt is about to start; its reservation is given back when that fails."""
        record = dispatch_record(call, attempt, drawn.windows, instant, self._rates_of(attempt.price))
        began = self._monotonic()
        hold = Hold(attempt, drawn.pools, record, began, began)
        try:
            hold.segment = self._journal.dispatch(record)
        except JournalFailed as error:
            self._give_back(hold)
            raise _unavailable(str(error)) from error
        self._open += 1
        return hold

    def settle(self, hold: Hold, settlement: Settlement) -> int:
        """Post what an attempt cost, in nano-USD, and give back the rest of its hold; only the first end counts."""
        if hold.ended:
            return hold.amount
        return self._end(hold, posting(hold.plan, settlement, self._monotonic() - hold.began))

    def void(self, hold: Hold, reason: str) -> None:
        """End an attempt that provably cost nothing: refused, or never sent."""
        if not hold.ended:
            usage = Usage()
            self._end(hold, Posting(amount=0, usage=usage, source="void", ended="failed", note=clean(reason, 200)))

    def progress(self, hold: Hold, usage: Usage) -> None:
        """Note how far a stream has come; journalled a few times a second at most, never waited for."""
        now = self._monotonic()
        if not hold.ended and now - hold.noted >= _PROGRESS_SECONDS:
            hold.noted = now
            self._journal.append(Progress(hold.plan.id, usage.prompt, usage.completion))

    def record(self, outcome: Outcome) -> None:
        """One request has ended: its row, and why it went the way it went, will be written within moments."""
        self._recorder.record(outcome)

    def explain(self, request_id: str, more: dict[str, object]) -> None:
        """Add to the explanation of a request that has ended, once it is known."""
        self._recorder.explain(request_id, more)

    def degraded(self, call: Call, provider: str, model: str) -> tuple[str, str, float] | None:
        """The budget (scope, model, fraction used) that has a cheaper model answer than the one about to be asked."""
        if not self._pools.degrades:
            return None
        return self._pools.degraded(asker_of(call, provider, model), self._pulse.instant())

    def used(self, call: Call, provider: str, model: str) -> float:
        """The largest share used of any budget that such an attempt would draw on; 0 where there is none."""
        return max([pool.used for pool in self.drawn_on(call, provider, model)], default=0.0)

    def drawn_on(self, call: Call, provider: str, model: str) -> tuple[Pool, ...]:
        """The budgets that such an attempt would draw on, to look at."""
        return self._pools.drawn_on(asker_of(call, provider, model), self._pulse.instant()).pools if self._pools else ()

    @property
    def processes(self) -> int:
        """How many boots share this database."""
        return self._pulse.processes

    def remaining(self, call: Call, provider: str, model: str) -> int | None:
        """The smallest headroom of the hard budgets that such an attempt would draw on, nano-USD; None: of none."""
        return min([pool.headroom for pool in self.drawn_on(call, provider, model) if pool.hard], default=None)

    # -- budgets ---------------------------------------------------------------------------------------------------

    async def set_budget(self, budget: Budget, actor: str, also: Also = nothing) -> Budget:
        """Put a budget in force at once. Raises ValueError when it makes no sense."""
        now = self._pulse.instant()
        made = await stored.put(self._database, budget, self._opened, actor=actor, now=now, also=also)
        await self.reload_budgets()
        return made

    async def cap(self, scope: str, limit_nano: int) -> None:
        """See to it that `scope` may not cost more than this a day, whatever became of that budget meanwhile."""
        wanted = stored.check(Budget(scope=scope, limit_nano=limit_nano, window="day", alerts=()))
        found = self._pools.standing(scope)
        if found is None or structs.replace(found, version=1, alerts=()) != wanted:
            await self.set_budget(wanted, actor="nearhit")

    def follow(self, refresh: Callable[[], Awaitable[None]]) -> None:
        """Have `refresh` called every few seconds where other processes share the database."""
        if self._database.dialect == "postgresql":
            self._tender.add(refresh)

    async def remove_budget(self, scope: str, actor: str, also: Also = nothing) -> bool:
        """Take a budget out of force; False when there was none."""
        found = await stored.retire(self._database, scope, actor=actor, now=self._pulse.instant(), also=also)
        await self.reload_budgets()
        return found

    async def reload_budgets(self) -> None:
        """Bring the budgets in memory to what the database says, with the balances of their windows."""
        self._stamp = await stored.stamp(self._database)
        self._pools.put(await stored.load(self._database), self._pulse.instant())
        await self._read_balances()
        await self._leases.tend()

    async def _read_balances(self) -> None:
        names = [pool.id for pool in self._pools.all.values()]
        for name, balance in (await self._book.balances(names)).items():
            pool = self._pools.all.get(name)
            if pool is not None:
                pool.balance(*balance, self._monotonic())

    async def adjust(self, entry_id: str, delta_nano: int, *, reason: str, actor: str, also: Told | None = None) -> str:
        """Correct what an attempt cost by another entry; answers its id, which `also` is told. Raises ValueError."""
        wanted = Correction(entry_id=entry_id, delta=delta_nano, reason=reason, actor=actor, mark=uuid7(), also=also)
        made = await adjust(self._database, self._windows, self._alerting, wanted, self._pulse.instant())
        await self._read_balances()
        return made

    # -- checks ----------------------------------------------------------------------------------------------------

    async def verify(self) -> list[str]:
        """Balances, closed months and charges from the entries, sums from the rows; each difference in a sentence."""
        found = [*await checks.verify(self._database), *await seals.verify(self._database)]
        return [*found, *await sum_proof.differences(self._database)]

    async def rebuild_sums(self) -> int:
        """Make the sums of usage anew from the rows, as far back as rows are kept; answers how many days."""
        await self.catch_up()
        return await sums.rebuild(self._database)

    async def reconcile(self, bill: Path) -> Reconciliation:
        """Compare the entries with a provider's own bill."""
        return await reconcile(self._database, bill)

    # -- inside ----------------------------------------------------------------------------------------------------

    async def put_configured(self, budgets: "Sequence[BudgetSettings]", said: stored.Said = unsaid) -> None:
        """The budgets of the configuration file are set whenever it is read; others are left as they are.

        `said`: what else belongs to the change of one.
        """
        await put(self._database, budgets, self._opened, now=self._pulse.instant(), said=said)

    def _opened(self, connection: Connection, window: str) -> None:
        """A budget is being set: its running window is made if it has to be, and what it has reached is told."""
        self._windows.limit(connection, window, self._pulse.instant())
        self._alerting.begun(connection, window, self._pulse.instant())

    async def _refresh(self) -> None:
        """Follow what other processes do to budgets and balances; where there may be others."""
        if self._database.dialect == "postgresql":
            await self._pulse.look_around()
            self._leases.processes = self._pulse.processes
        if await stored.stamp(self._database) != self._stamp:
            await self.reload_budgets()
        elif self._leases.processes > 1:
            await self._read_balances()

    def _oldest(self) -> float | None:
        """Admission of the oldest attempt that is not in the database yet."""
        return min([*self._begun.values(), *self._shipper.admitted()], default=None)

    def _drawn_on(self, call: Call, attempt: AttemptPlan, instant: float) -> Drawn:
        asker = asker_of(call, attempt.provider, attempt.model)
        return self._pools.drawn_on(asker, instant) if self._pools else NOTHING

    async def _promised(self, hold: Hold) -> None:
        """Wait until the dispatch has survived a power cut; give it back when that fails or nobody waits any more."""
        try:
            if (waiting := self._journal.synced()) is not None:
                await waiting
        except JournalFailed as error:
            self.void(hold, "not journalled")
            raise _unavailable(str(error)) from error
        except asyncio.CancelledError:
            self.void(hold, "cancelled before it was sent")
            raise

    def _end(self, hold: Hold, end: Posting) -> int:
        self._open, self._number = self._open - 1, self._number + 1
        self._begun.pop(hold.plan.id, None)
        hold.ended, hold.amount = True, end.amount
        self._give_back(hold)
        facts = end.amount, tokens(end.usage), end.source, end.ended, end.provider_id, end.note
        which = self._number, hold.plan.id, self._pulse.instant()
        settle = Settle(*which, *facts, end.price and self._rates_of(end.price))
        if self._journal.append(settle):
            self._journal.sync_within(_SYNC_SECONDS)
        self._shipper.add(Line(hold.dispatch, settle), hold.pools, hold.segment)
        if end.note == "overrun":
            log.error("an attempt cost more than it could", attempt=hold.plan.id, amount=end.amount)
        return end.amount

    @staticmethod
    def _give_back(hold: Hold) -> None:
        for pool in hold.pools:
            pool.end(hold.plan.reserve_nano, hold.amount)

    def _rates_of(self, price: Price) -> Rates:
        found = self._rates.get(price.id)
        if found is None:
            if len(self._rates) >= _MOST_PRICES:
                self._rates.clear()
            found = self._rates[price.id] = rates(price)
        return found


def _unavailable(message: str) -> Overloaded:
    return Overloaded(message, code="ledger_unavailable", headers=_LATER)
