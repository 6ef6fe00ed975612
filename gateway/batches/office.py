"""The batches of this worker: made, listed, cancelled; those that nobody runs are taken and run.

Knows: how many run here at once, and that what clients have left is swept. Does not know: SQL, HTTP, how one is run.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence

import structlog

from gateway.batches import store
from gateway.batches.runner import Means, Runner
from gateway.batches.shapes import Batch, Counts
from gateway.call import Principal
from gateway.db.session import UNREACHABLE
from gateway.errors import NotFound
from gateway.ledger.shipper import set_within
from gateway.outage import Outage
from gateway.tasks import Tasks

log = structlog.get_logger("nearhit.batches")

Sweep = Callable[[], Awaitable[int]]
_MOST_RUNNING = 16
_LOOK_SECONDS = 2.0  # how soon a dead worker's batches are taken over
_AGAIN_SECONDS = 30.0
_SWEEP_EVERY = 300  # looks
_is_name = re.compile(r"batch_[0-9a-f]{32}").fullmatch  # a database is not asked about anything else


class Office:
    """One per worker. `boot`: this process's life in the ledger. `sweeps`: throw away what has expired."""

    def __init__(self, means: Means, boot: str, tasks: Tasks, sweeps: Sequence[Sweep]) -> None:
        self._means = means
        self._boot = boot
        self._tasks = tasks
        self._sweeps = sweeps
        self._running: dict[str, Batch] = {}
        self._work = asyncio.Event()
        self._stopping = asyncio.Event()

    # -- for clients -----------------------------------------------------------------------------------------------

    async def make(self, batch: Batch, once: str | None, fingerprint: str) -> Batch:
        """Raises Conflict."""
        most = self._means.settings.project_batches
        made = await self._means.database.transact(store.add, batch, once, fingerprint, most)
        self._work.set()
        return made

    async def get(self, owner: Principal, batch_id: str) -> tuple[Batch, Counts]:
        """Raises NotFound, also for another project's batch."""
        if _is_name(batch_id):
            async with self._means.database.read() as connection:
                batch = await connection.run_sync(store.owned, owner.team, owner.project, batch_id)
                if batch is not None:
                    return batch, await connection.run_sync(store.counts, batch)
        raise NotFound(f"No batch found with id '{batch_id[:100]}'.", param="id", code="batch_not_found")

    async def list(self, owner: Principal, after: str | None, limit: int) -> list[tuple[Batch, Counts]]:
        """One more than `limit`, where there is more."""
        async with self._means.database.read() as connection:
            found = await connection.run_sync(store.listed, owner.team, owner.project, after, limit + 1)
            return [(batch, await connection.run_sync(store.counts, batch)) for batch in found]

    async def cancel(self, owner: Principal, batch_id: str) -> tuple[Batch, Counts]:
        """Raises NotFound, Conflict."""
        batch, _ = await self.get(owner, batch_id)
        await self._means.database.transact(store.cancel, batch, self._means.now())
        self._work.set()
        return await self.get(owner, batch_id)

    # -- for itself ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until `stop`."""
        looks = 0
        away = Outage(log, "batches wait for the database", "batches go on")
        while not self._stopping.is_set():
            try:
                while await self._take():
                    pass
                if looks % _SWEEP_EVERY == 0:
                    for sweep in self._sweeps:
                        await sweep()
                    await self._means.database.transact(store.sweep, self._means.now())
                away.over()
            except UNREACHABLE as error:
                away.goes_on(error)
            looks += 1
            self._work.clear()
            try:
                await asyncio.wait_for(self._work.wait(), _LOOK_SECONDS)
            except TimeoutError:
                continue

    def stop(self) -> None:
        """What is under way is finished, nothing else is begun; what is left goes on elsewhere or later."""
        self._stopping.set()
        self._work.set()

    async def _take(self) -> bool:
        if len(self._running) >= _MOST_RUNNING or self._stopping.is_set():
            return False
        busy = [(batch.team, batch.project) for batch in self._running.values()]
        batch = await self._means.database.transact(store.take, self._boot, busy)
        if batch is None:
            return False
        self._running[batch.id] = batch
        self._tasks.spawn(self._run(batch), f"batch {batch.id}")
        return True

    async def _run(self, batch: Batch) -> None:
        try:
            await Runner(self._means, batch, self._boot, self._stopping).run()
        except Exception:
            log.exception("a batch cannot go on; it is tried again", batch=batch.id)
            await set_within(self._stopping, _AGAIN_SECONDS)
            await self._let_go(batch)
        finally:
            del self._running[batch.id]
            self._work.set()

    async def _let_go(self, batch: Batch) -> None:
        """As often as it takes: what stands there as this process's nobody takes while this process lives."""
        away = Outage(log, "a batch waits for the database", "a batch goes on")
        while True:
            try:
                await self._means.database.transact(store.give_back, batch.id, self._boot)
                away.over()
                return
            except UNREACHABLE as error:
                away.goes_on(error, batch=batch.id)
                if await set_within(self._stopping, _LOOK_SECONDS):
                    return  # the next process takes what a dead one had
