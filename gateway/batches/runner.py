"""Runs one batch from where it stands to its end: reads its input, makes its requests, writes its files.

Knows: the order of these steps, and that each may be begun anew after a crash. Does not know: which batch comes next,
SQL, how one request is answered.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from typing import Concatenate, Literal, ParamSpec, TypeVar

import structlog
from msgspec import Struct
from sqlalchemy.engine import Connection

from gateway.auth import Keyring
from gateway.batches import store
from gateway.batches.abroad import Abroad
from gateway.batches.asking import Asking, Told
from gateway.batches.handing import REVOKED
from gateway.batches.lines import Faults, Read, answered, read
from gateway.batches.means import Ends
from gateway.batches.means import Means as Far
from gateway.batches.reach import Reach
from gateway.batches.shapes import Batch, Line, Result, Status
from gateway.call import Principal
from gateway.db.session import UNREACHABLE, Database
from gateway.files import Files
from gateway.ids import uuid7
from gateway.kept_settings import KeptSettings
from gateway.ledger.shipper import set_within

log = structlog.get_logger("nearhit.batches")

P = ParamSpec("P")
T = TypeVar("T")

_CHUNK = 200  # lines read or given up in one transaction
_WRITTEN = 20  # results written in one turn
_LOOK_SECONDS = 1.0  # how soon a cancellation is noticed
_MOST_TRIES = 5  # of one line, at upstreams
_LONGEST_PAUSE = 60.0
_CANCELLED = "This batch was cancelled before this request was executed."
_DELETED = "The input file was deleted, or expired, before all of it had been read."
_EXPIRED = "This request could not be executed before the completion window expired."
Halt = Literal["", "stopping", "cancelling", "expired"]


class Means(Struct, frozen=True, kw_only=True):
    """What it takes to run batches. `places`: how many requests this worker may have under way, of all of them."""

    database: Database
    files: Files
    keyring: Keyring
    asking: Asking
    settings: KeptSettings
    places: asyncio.Semaphore
    reach: Reach
    now: Callable[[], float]


class Runner:
    """One batch. `boot`: of this process. `stopping` is set when the process is to end."""

    def __init__(self, means: Means, batch: Batch, boot: str, stopping: asyncio.Event) -> None:
        self._means = means
        self._batch = batch
        self._boot = boot
        self._stopping = stopping
        self._mine = asyncio.Semaphore(means.settings.batch_in_flight)
        self._halt = asyncio.Event()
        self._why: Halt = ""
        self._results: list[Result] = []
        self._news = asyncio.Event()
        self._queue: deque[asyncio.Event] = deque()  # lines that wait for money their neighbours hold
        self._eased = asyncio.Event()  # none does
        self._over = False
        ends = Ends(halt=self._halt, stopping=stopping)
        far = Far(
            reach=means.reach,
            asking=means.asking,
            settings=means.settings,
            transact=self._transact,
            principal=self._principal,
        )
        self._abroad = Abroad(far, batch, boot, ends)

    async def run(self) -> None:
        status = self._batch.status
        if status == "validating":
            status = await self._validate()
        if status == "failed":
            return
        if status in ("in_progress", "cancelling"):
            repeat = self._means.settings.retry_interrupted
            # Nothing has been begun here yet: what is under way was left by a process or a runner that ended.
            await self._transact(store.heal, self._batch.id, "", repeat=repeat)
            if status == "cancelling":
                self._stop("cancelling")
            elif self._means.now() >= self._batch.expires:  # where it waited for its turn, or for a process, till then
                self._stop("expired")
            else:
                await self._abroad.part()
            try:
                await self._make_all()
                await self._abroad.settle()
            finally:
                self._abroad.let_go()
        await self._transact(store.loosen, self._batch.id, self._boot)
        if self._stopping.is_set():  # what is left, answers that are not charged yet among it, is for the next process
            await self._transact(store.give_back, self._batch.id, self._boot)
            return
        if self._why == "cancelling":
            await self._drop("cancelled", _CANCELLED)
        elif self._why == "expired":
            await self._drop("expired", _EXPIRED)
        await self._conclude()

    async def _transact(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As often as it takes: what runs must not be given up because the database is away for a moment."""
        while True:
            try:
                return await self._means.database.transact(work, *args, **kwargs)
            except UNREACHABLE as error:
                log.warning("a batch waits for the database", batch=self._batch.id, error=repr(error)[:200])
                await asyncio.sleep(_LOOK_SECONDS)

    # -- the input -------------------------------------------------------------------------------------------------

    async def _validate(self) -> Status:
        batch, faults = self._batch, Faults()
        await self._transact(store.clear, batch.id)
        count, some = 0, list[Read]()
        content = self._means.files.content(batch.input_file)
        async with aclosing(read(content, batch.endpoint, self._means.settings.batch_lines, faults)) as lines:
            async for line in lines:
                some.append(line)
                count += 1
                if len(some) >= _CHUNK:
                    await self._transact(store.fill, batch.id, some)
                    some = []
        if not await self._means.files.is_there(batch.input_file):  # what was read may be a part of it
            faults = Faults()
            faults.add(None, "input_file_deleted", _DELETED, "input_file_id")
        now = self._means.now()
        if faults.found:
            await self._transact(store.clear, batch.id)
            return await self._transact(store.move, batch.id, "failed", now, errors=faults.found, owner=None)
        if some:
            await self._transact(store.fill, batch.id, some)
        return await self._transact(store.move, batch.id, "in_progress", now, lines=count)

    # -- its requests ----------------------------------------------------------------------------------------------

    async def _make_all(self) -> None:
        """Until nothing waits any more, or something wants it to stop; what is under way is always waited for."""
        async with asyncio.TaskGroup() as around:
            around.create_task(self._write())
            watching = around.create_task(self._watch())
            around.create_task(self._abroad.run())
            async with asyncio.TaskGroup() as lines:
                await self._begin_lines(lines)
            watching.cancel()
            self._over = True
            self._news.set()

    async def _begin_lines(self, tasks: asyncio.TaskGroup) -> None:
        batch, most = self._batch, self._means.settings.batch_in_flight
        while not self._stopping.is_set():
            principal, halted, crowded = await self._principal(), self._halt.is_set(), bool(self._queue)
            found = await self._transact(store.claim, batch.id, self._boot, most, given=halted or crowded)
            if not found and crowded:  # answers may come, whose charging gives back what others wait for
                await set_within(self._eased, _LOOK_SECONDS)
            elif not found and not await self._abroad.more():
                return
            for line in found:
                await self._mine.acquire()
                if self._stopping.is_set() or (self._halt.is_set() and line.given is None):
                    self._mine.release()
                    break
                tasks.create_task(self._line(line, principal))

    async def _principal(self) -> Principal | None:
        """Whose requests these are, as the key stands now."""
        while True:
            try:
                return await self._means.keyring.still_good(self._batch.key_id)
            except UNREACHABLE:
                await asyncio.sleep(_LOOK_SECONDS)

    async def _watch(self) -> None:
        """Notice who wants it to stop."""
        while not self._why:
            if await set_within(self._stopping, _LOOK_SECONDS):
                self._stop("stopping")
            elif self._means.now() >= self._batch.expires:
                self._stop("expired")
            elif await self._transact(store.status, self._batch.id) == "cancelling":
                self._stop("cancelling")

    def _stop(self, why: Halt) -> None:
        self._why = why
        self._halt.set()
        while self._queue:
            self._next()

    async def _line(self, line: Line, principal: Principal | None) -> None:
        try:
            if line.given is not None:  # made, and so charged, whatever has become of the key
                told, request_id = await self._tried(line, self._batch.owner)
            elif principal is None:
                told, request_id = Told(status=401, body=REVOKED.body()), line.request_id
            else:
                told, request_id = await self._tried(line, principal)
            if told is not None:
                raw = answered(line.custom_id, told.status, request_id, told.body)
                state = "done" if told.status == 200 else "failed"
                self._results.append(Result(number=line.number, state=state, told=raw))
                self._news.set()
        finally:
            self._mine.release()
            self._next()

    async def _tried(self, line: Line, principal: Principal) -> tuple[Told | None, str]:
        """What became of it, and the id of its last try; None where it was to be tried again and may not any more."""
        request_id, tries, held_up = line.request_id, 0, 0
        while True:
            async with self._means.places:
                told = await self._means.asking.ask(self._batch, principal, line, request_id)
            tries += not told.turned_away
            held_up += told.held_up and held_up < _MOST_TRIES  # every look is a row; a provider's batch holds for a day
            if told.again is None or tries >= _MOST_TRIES:
                return told, request_id
            until = self._halt if line.given is None else self._stopping
            pause = min(_LONGEST_PAUSE, max(told.again, 2.0 ** max(tries, held_up)))
            if not until.is_set():
                await (self._turn(pause) if told.held_up else set_within(until, pause))
            if until.is_set():
                return None, request_id
            request_id = uuid7()
            await self._transact(store.rename, self._batch.id, line.number, request_id)

    async def _turn(self, longest: float) -> None:
        """Until a line has ended, which gives back what it held; one waiter each time, so that few try in vain.

        Others have its place meanwhile: only answers that are here already, as long as any line waits.
        """
        mine = asyncio.Event()
        self._queue.append(mine)
        self._eased.clear()
        self._mine.release()
        try:
            await set_within(mine, longest)
        finally:
            if mine in self._queue:
                self._queue.remove(mine)
            if not self._queue:
                self._eased.set()
        await self._mine.acquire()

    def _next(self) -> None:
        if self._queue:
            self._queue.popleft().set()

    async def _write(self) -> None:
        """Results into the database, whatever has come meanwhile in one transaction."""
        while not self._over or self._results:
            await self._news.wait()
            self._news.clear()
            while self._results:
                some, self._results = self._results, []
                await self._transact(store.finish, self._batch.id, some)
                if await self._abroad.lighten():
                    self._next()

    async def _drop(self, state: Literal["cancelled", "expired"], message: str) -> None:
        while await self._transact(store.give_up, self._batch.id, state, message, _CHUNK):
            pass

    # -- its files -------------------------------------------------------------------------------------------------

    async def _conclude(self) -> None:
        batch, now = self._batch, self._means.now
        await self._transact(store.move, batch.id, "finalizing", now())
        files = (await self._file("output", good=True), await self._file("error", good=False))
        await self._transact(store.conclude, batch, now(), files)

    async def _file(self, kind: str, *, good: bool) -> str | None:
        """The id of the file, which nobody can see yet; None where there is nothing to write."""
        batch = self._batch
        rows = await self._transact(store.results, batch.id, -1, _WRITTEN, good=good)
        if not rows:
            return None
        writing = await self._means.files.begin(batch.owner, limited=False)
        while rows:
            await writing.write(b"".join(raw for _, raw in rows))
            rows = await self._transact(store.results, batch.id, rows[-1][0], _WRITTEN, good=good)
        lifetime = batch.output_lifetime or None
        await writing.finish(f"{batch.id}_{kind}.jsonl", "batch_output", lifetime, ready=False)
        return writing.id
