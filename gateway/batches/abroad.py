"""The parts of one batch that go to providers' own batch services: parted, handed in, waited for, brought back.

Knows: the order of these steps, each of which may be begun anew after a crash. Does not know: SQL
(`gateway.batches.parts`), any service's protocol, how an answer is charged and told (as any line's).

The most a part can cost is held before it is handed in, until every answer of it has been charged as its own request. A
process that ends before that leaves the whole of it charged, which is taken back once the answers are.
"""

import asyncio
from contextlib import aclosing
from functools import partial

import msgspec
import structlog

from gateway.batches import parts
from gateway.batches.asking import operation_of
from gateway.batches.endings import Endings, unrun
from gateway.batches.handing import Handing
from gateway.batches.held import Held
from gateway.batches.means import Ends, Means, Silence
from gateway.batches.parts import Part
from gateway.batches.shapes import Batch, Result
from gateway.call import Given
from gateway.catalog import Target
from gateway.errors import GatewayError
from gateway.upstream.batching import Batching, Returned

log = structlog.get_logger("nearhit.batches")

_CHUNK = 200  # lines in one transaction
_MOST_ROWS = 5_000  # of one part, and how many bytes of requests: services take more
_MOST_BYTES = 32 << 20
_LONG_PAUSE = 60.0
_CHARGED = "charged request by request"
_TO_FORGET = 5.0  # seconds
_model = msgspec.json.Decoder(dict[str, object]).decode


class Abroad:
    """One per running batch. `boot`: of this process."""

    def __init__(self, means: Means, batch: Batch, boot: str, ends: Ends) -> None:
        self._reach = means.reach
        self._transact = means.transact
        self._settings = means.settings
        self._batch = batch
        self._ends = ends
        self._held = Held(means.reach.ledger, means.transact)
        self._endings = Endings(means, batch, self._held)
        self._handing = Handing(means, batch, boot, ends, self._held)
        self._came = asyncio.Event()
        self._over = False

    # -- parting -------------------------------------------------------------------------------------------------

    async def part(self) -> None:
        """Every line whose model lies at such a service joins a part; the others stay where they are, and so do those
        that are too few for it, or ask for what it has no batches of.
        """
        if not self._reach.is_any:
            return
        groups: dict[Target, list[int]] = {}
        sizes: dict[Target, int] = {}
        after = -1
        while rows := await self._transact(parts.waiting, self._batch.id, after, _CHUNK):
            after = rows[-1].number
            for row in rows:
                target = self._reach.where(str(_model(row.request).get("model")))
                if target is None or not self._takes(target):
                    continue
                numbers = groups.setdefault(target, [])
                numbers.append(row.number)
                sizes[target] = sizes.get(target, 0) + len(row.request)
                service = self._reach.service(target.provider)
                rows_at_once: int = getattr(service, "most_rows", _MOST_ROWS)
                if len(numbers) >= rows_at_once or sizes[target] >= getattr(service, "most_bytes", _MOST_BYTES):
                    await self._make(target, groups.pop(target))
                    sizes.pop(target)
        for target, numbers in groups.items():
            # What is too little for the service is run line by line, as if it had none.
            if len(numbers) >= getattr(self._reach.service(target.provider), "least_rows", 1):
                await self._make(target, numbers)

    def _takes(self, target: Target) -> bool:
        chats_alone: bool = getattr(self._reach.service(target.provider), "chats_alone", False)
        return operation_of(self._batch) == "chat" or not chats_alone

    async def _make(self, target: Target, numbers: list[int]) -> None:
        await self._transact(parts.make, self._batch.id, target.provider, target.model, numbers)

    # -- there and back ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until nothing is away any more, or the process is to end."""
        try:
            await self._undo_doubted()
            async with asyncio.TaskGroup() as group:
                for part in await self._transact(parts.of, self._batch.id):
                    group.create_task(self._follow(part))
        finally:
            self._over = True
            self._came.set()

    async def more(self) -> bool:
        """Wait for answers; False once no more will come."""
        if self._over and not self._came.is_set():
            return False
        await self._came.wait()
        self._came.clear()
        return True

    async def _follow(self, part: Part) -> None:
        service = self._reach.service(part.provider)
        if part.state == "back":
            if part.remote is not None and service is not None:
                await self._forget(part, part.remote, service)
            return
        while service is None and not self._ends.halt.is_set():
            log.error("a provider whose batch is under way is not configured any more", provider=part.provider)
            await self._ends.pause(_LONG_PAUSE)
            service = self._reach.service(part.provider)
        if service is None:
            if not self._ends.stopping.is_set():
                await (self._endings.never_sent(part) if part.state == "planned" else self._endings.doubtful(part))
        elif (away := part if part.remote else await self._handing.hand_in(part, service)) is not None:
            await self._fetch(away, str(away.remote), service)
        self._came.set()

    async def _fetch(self, part: Part, remote: str, service: Batching) -> None:
        """Look after it until its answers are here, or are not worth waiting for any more."""
        called_off, silence = False, Silence(self._ends, self._settings.batch_patience)
        while not self._ends.stopping.is_set():
            try:
                if (why := await service.look(remote)) is not None:
                    await self._bring_back(part, remote, service, why)
                    return await self._forget(part, remote, service)
                silence.broken()
                if self._ends.halt.is_set() and not called_off:
                    called_off = await _called_off(part, remote, service)
            except GatewayError as error:
                log.warning("a provider's batch cannot be seen", provider=part.provider, error=error.message[:200])
                if silence.is_final(error):
                    return await self._endings.doubtful(part)
            await self._ends.pause(self._settings.batch_look)
        return None

    async def _bring_back(self, part: Part, remote: str, service: Batching, why: str) -> None:
        numbers = {str(number): (number, name) for number, name, _ in await self._transact(parts.lines, part)}
        async with aclosing(service.collect(remote)) as rows:
            some: list[Returned] = []
            async for row in rows:
                some.append(row)
                if len(some) >= _CHUNK:
                    await self._keep(part, some, numbers)
                    some = []
            await self._keep(part, some, numbers)
        left = [unrun(number, name, why) for number, name, _ in await self._transact(parts.lines, part)]
        await self._transact(parts.returned, part, [], left)
        await self._transact(parts.move, part, "back", remote=remote, boot=part.boot)

    async def _keep(self, part: Part, rows: list[Returned], numbers: dict[str, tuple[int, str]]) -> None:
        answers: list[parts.Answer] = []
        ended: list[Result] = []
        for row in rows:
            if (mine := numbers.get(row.name)) is None:
                continue
            if row.status:
                given = Given(provider=part.provider, model=part.model, status=row.status, raw=row.raw)
                answers.append(parts.Answer(mine[0], given))
            else:
                ended.append(unrun(*mine, row.message))
        await self._transact(parts.returned, part, answers, ended)
        self._came.set()

    async def _forget(self, part: Part, remote: str, service: Batching) -> None:
        """What people asked and were told lies at the service no longer than it must."""
        self._came.set()
        if self._ends.stopping.is_set():
            return
        try:
            async with asyncio.timeout(_TO_FORGET):  # finished results wait for it
                await service.forget(remote)
        except (GatewayError, TimeoutError) as error:
            log.warning("a provider keeps a batch's files", provider=part.provider, error=str(error)[:200])

    # -- money ---------------------------------------------------------------------------------------------------

    async def lighten(self) -> bool:
        """Give back what is held for parts whose answers have all been charged, before all is over: others wait for
        it. Whether there was any.
        """
        given = False
        for part in await self._transact(parts.of, self._batch.id) if self._held else ():
            if part.state == "back" and part in self._held and await self._transact(parts.is_over, part):
                given |= self._held.give_back(part, _CHARGED)
        return given

    async def settle(self) -> None:
        """Of parts whose answers have all been charged nothing is held any more."""
        for part in await self._transact(parts.of, self._batch.id):
            if part.state != "back":
                continue
            if not self._held.give_back(part, _CHARGED):
                await self._held.take_back(part.attempt, partial(parts.drop, part_id=part.id))
            await self._transact(parts.drop, part.id)

    def let_go(self) -> None:
        """This process will not see the end of what is away."""
        self._held.let_go()

    async def _undo_doubted(self) -> None:
        """Answers that were being charged when their process ended are charged anew, what was charged is taken back."""
        for number, request_id in await self._transact(parts.doubted, self._batch.id):
            loosen = partial(parts.loosen, batch_id=self._batch.id, number=number)
            if not await self._held.take_back(f"{request_id}.1", loosen):
                await self._transact(loosen)


async def _called_off(part: Part, remote: str, service: Batching) -> bool:
    """Whether the service took it; where it does not, as it is done by now or cannot stop it, its end is waited for."""
    try:
        await service.call_off(remote)
    except GatewayError as error:
        log.warning("a provider's batch cannot be called off", provider=part.provider, error=error.message[:200])
        return False
    return True
