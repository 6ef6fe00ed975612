"""The parts of one batch that go to providers' own batch services: parted, handed in, waited for, brought back.

Knows: the order of these steps, each of which may be begun anew after a crash, and the money that is held meanwhile.
Does not know: SQL (`gateway.batches.parts`), any service's protocol, how an answer is charged and told (as any line's).

The most a part can cost is held before it is handed in, until every answer of it has been charged as its own request. A
process that ends before that leaves the whole of it charged, which is taken back once the answers are.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from gateway.auth import may_ask
from gateway.batches import parts
from gateway.batches.asking import Asking
from gateway.batches.lines import answered, unanswered
from gateway.batches.parts import Part
from gateway.batches.reach import Reach
from gateway.batches.shapes import Batch, Line, Result
from gateway.call import Call, Given, Principal
from gateway.catalog import Target
from gateway.db.session import Also
from gateway.errors import BudgetExhausted, GatewayError, InvalidRequest, Unauthorized, UpstreamRefused, in_doubt
from gateway.ids import uuid7
from gateway.kept_settings import KeptSettings
from gateway.ledger import AttemptPlan, Hold, doubtful
from gateway.ledger.shipper import set_within
from gateway.upstream.batching import Batching, Returned, Row

log = structlog.get_logger("nearhit.batches")

_CHUNK = 200  # lines in one transaction
_MOST_ROWS = 5_000  # of one part, and how many bytes of requests: services take more
_MOST_BYTES = 32 << 20
_MOST_TOKENS = (1 << 31) - 1
_PAUSE = 1.0
_LONGEST_PAUSE = 60.0
_INTERRUPTED = "The gateway stopped while this request was handed to the provider; it may have been billed."
REVOKED = Unauthorized("The key that this batch was made with has been revoked or has expired.")
_NOT_RUN = "The provider ended its batch before this request was run."
Transact = Callable[..., Awaitable[Any]]
_model = msgspec.json.Decoder(dict[str, object]).decode


class Means(Struct, frozen=True, kw_only=True):
    """What it works with. `transact` repeats until the database is there; `principal` says whose requests these are
    now, None once the key is revoked.
    """

    reach: Reach
    asking: Asking
    settings: KeptSettings
    transact: Transact
    principal: Callable[[], Awaitable[Principal | None]]


class Ends(Struct, frozen=True, kw_only=True):
    """When to stop: `halt` is set when no more lines are to be begun, `stopping` when the process is to end."""

    halt: asyncio.Event
    stopping: asyncio.Event

    async def pause(self, seconds: float) -> bool:
        """Whether the process is to end. Returns early when either begins."""
        waited_for = self.stopping if self.halt.is_set() else self.halt
        await set_within(waited_for, seconds)
        return self.stopping.is_set()


class Abroad:
    """One per running batch. `boot`: of this process."""

    def __init__(self, means: Means, batch: Batch, boot: str, ends: Ends) -> None:
        self._reach = means.reach
        self._asking = means.asking
        self._transact = means.transact
        self._principal = means.principal
        self._look = means.settings.batch_look
        self._repeat = means.settings.retry_interrupted
        self._batch = batch
        self._boot = boot
        self._ends = ends
        self._holds: dict[str, Hold] = {}
        self._came = asyncio.Event()
        self._over = False

    # -- parting -------------------------------------------------------------------------------------------------

    async def part(self) -> None:
        """Every line whose model lies at such a service joins a part; the others stay where they are."""
        if not self._reach.is_any:
            return
        groups: dict[Target, list[int]] = {}
        sizes: dict[Target, int] = {}
        after = -1
        while rows := await self._transact(parts.waiting, self._batch.id, after, _CHUNK):
            after = rows[-1].number
            for row in rows:
                target = self._reach.where(str(_model(row.request).get("model")))
                if target is None:
                    continue
                numbers = groups.setdefault(target, [])
                numbers.append(row.number)
                sizes[target] = sizes.get(target, 0) + len(row.request)
                if len(numbers) >= _MOST_ROWS or sizes[target] >= _MOST_BYTES:
                    await self._make(target, groups.pop(target))
                    sizes.pop(target)
        for target, numbers in groups.items():
            await self._make(target, numbers)

    async def _make(self, target: Target, numbers: list[int]) -> None:
        await self._transact(parts.make, self._batch.id, target.provider, target.model, numbers)

    # -- there and back ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until nothing is away any more, or the process is to end."""
        try:
            await self._undo_doubted()
            async with asyncio.TaskGroup() as group:
                for part in await self._transact(parts.of, self._batch.id):
                    if part.state != "back":
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
        while (service := self._reach.service(part.provider)) is None and not self._ends.halt.is_set():
            log.error("a provider whose batch is under way is not configured any more", provider=part.provider)
            await self._ends.pause(_LONGEST_PAUSE)
        if service is None:
            if not self._ends.stopping.is_set():
                await (self._keep_here(part) if part.state == "planned" else self._interrupted(part))
            return
        if (remote := part.remote) is None:
            part, remote = await self._hand_in(part, service)
        why = None if remote is None else await self._until_over(part, remote, service)
        if remote is not None and why is not None:
            await self._bring_back(part, remote, service, why)

    async def _until_over(self, part: Part, remote: str, service: Batching) -> str | None:
        """What the service says of its end; None where it was not waited for."""
        called_off = False
        while not self._ends.stopping.is_set():
            try:
                if self._ends.halt.is_set() and not called_off:
                    await service.call_off(remote)
                    called_off = True
                if (why := await service.look(remote)) is not None:
                    return why
            except GatewayError as error:
                if await self._is_lost(part, error):
                    return None
            await self._ends.pause(self._look)
        return None

    async def _is_lost(self, part: Part, error: GatewayError) -> bool:
        """Whether it is not worth waiting for any more: nobody wants it, and the service will not hear of it."""
        log.warning("a provider's batch cannot be seen", provider=part.provider, error=error.message[:200])
        if not isinstance(error, UpstreamRefused) or error.may_retry or not self._ends.halt.is_set():
            return False
        if not self._ends.stopping.is_set():
            await self._interrupted(part)
        return True

    async def _bring_back(self, part: Part, remote: str, service: Batching, why: str) -> None:
        while True:
            try:
                numbers = {str(number): (number, name) for number, name, _ in await self._transact(parts.lines, part)}
                async with aclosing(service.collect(remote)) as rows:
                    some: list[Returned] = []
                    async for row in rows:
                        some.append(row)
                        if len(some) >= _CHUNK:
                            await self._keep(part, some, numbers)
                            some = []
                    await self._keep(part, some, numbers)
                break
            except GatewayError as error:
                if await self._is_lost(part, error) or await self._ends.pause(self._look):
                    return
        left = [_unrun(number, name, why) for number, name, _ in await self._transact(parts.lines, part)]
        await self._transact(parts.returned, part, [], left)
        await self._transact(parts.move, part, "back", remote=remote, boot=part.boot)
        self._came.set()

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
                ended.append(_unrun(*mine, row.message))
        await self._transact(parts.returned, part, answers, ended)
        self._came.set()

    # -- handing in ----------------------------------------------------------------------------------------------

    async def _hand_in(self, part: Part, service: Batching) -> tuple[Part, str | None]:
        """The part as it is now and the service's id of it; None where there is nothing to wait for."""
        again = part.state == "sending"  # by a process that is gone: it may have arrived
        pause = _PAUSE
        while not self._ends.stopping.is_set() and (again or not self._ends.halt.is_set()):
            try:
                remote = await self._found(part, service) if again else None
                if remote is not None:
                    return part, await self._away(part, remote)
                again = False
                if not self._ends.halt.is_set():
                    part = await self._renewed(part)
                    return part, await self._send(part, service)
            except LookupError:
                await self._interrupted(part)
                return part, None
            except GatewayError as error:
                if not again and _is_final(error):
                    await self._refused(part, error)
                    return part, None
                log.warning("a batch cannot be handed in", provider=part.provider, error=error.message[:200])
                if not again and not (again := in_doubt(error)):
                    await self._transact(parts.move, part, "planned", remote=None, boot=None)
            await self._ends.pause(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)
        if not self._ends.stopping.is_set():
            await self._keep_here(part)
        return part, None

    async def _renewed(self, part: Part) -> Part:
        """Where a process that ended had its money charged: under another name, and that charge is taken back."""
        if part.id in self._holds or await self._transact(parts.charged, part.attempt) is None:
            return part
        rename = partial(parts.rename, part=part, name=(name := uuid7()))
        if not await self._take_back(part.attempt, rename):
            await self._transact(rename)
        return msgspec.structs.replace(part, id=name, state="planned", boot=None)

    async def _found(self, part: Part, service: Batching) -> str | None:
        """Raises LookupError where nobody can tell whether it was handed in."""
        try:
            return await service.find(part.id)
        except LookupError:
            if self._repeat:
                return None
            raise

    async def _keep_here(self, part: Part) -> None:
        """It was not handed in, and is not to be any more."""
        if (hold := self._holds.pop(part.id, None)) is not None:
            self._reach.ledger.void(hold, "not handed in")
        await self._transact(parts.release, part)
        self._came.set()

    async def _send(self, part: Part, service: Batching) -> str | None:
        calls, rows = await self._rows(part)
        if not rows:
            await self._transact(parts.move, part, "back", remote=None, boot=self._boot)
            return None
        if part.id not in self._holds:
            self._holds[part.id] = await self._reach.ledger.hold(calls[0], _together(part, [plan for plan, _ in rows]))
        await self._transact(parts.move, part, "sending", remote=None, boot=self._boot)
        handed = [row for _, row in rows]
        return await self._away(part, await service.hand_in(part.id, handed[0].sending.operation, handed))

    async def _rows(self, part: Part) -> tuple[list[Call], list[tuple[AttemptPlan, Row]]]:
        """The requests that can be sent; what cannot ends here, told why."""
        target, refused = Target(part.provider, part.model), list[Result]()
        calls: list[Call] = []
        rows: list[tuple[AttemptPlan, Row]] = []
        principal = await self._principal()
        to_come = Given(provider=part.provider, model=part.model)
        for number, name, request in await self._transact(parts.lines, part):
            line = Line(number=number, custom_id=name, request=request, request_id=uuid7(), given=to_come)
            try:
                if principal is None:
                    raise REVOKED
                call = self._asking.call(self._batch, principal, line, line.request_id)
                may_ask(principal, call.model)
                plan, sending = self._reach.quote(call, target)
            except GatewayError as error:
                refused.append(self._told(line, error))
                continue
            calls.append(call)
            rows.append((plan, Row(str(number), sending)))
        await self._transact(parts.returned, part, [], refused)
        return calls, rows

    async def _away(self, part: Part, remote: str) -> str:
        """Before anything else it stands in the database whose it is."""
        boot = self._boot if part.id in self._holds else part.boot
        await self._transact(parts.move, part, "away", remote=remote, boot=boot)
        return remote

    async def _refused(self, part: Part, error: GatewayError) -> None:
        """The service or a budget will have none of it: each of its requests is refused so."""
        if (hold := self._holds.pop(part.id, None)) is not None:
            self._reach.ledger.void(hold, error.code or "refused")
        lines = await self._transact(parts.lines, part)
        ended = [
            self._told(Line(number=number, custom_id=name, request=b"", request_id=uuid7()), error)
            for number, name, _ in lines
        ]
        await self._transact(parts.returned, part, [], ended)
        await self._transact(parts.move, part, "back", remote=None, boot=None)

    async def _interrupted(self, part: Part) -> None:
        """Nobody can tell whether it arrived: it may be billed, so its money stays charged and nothing is repeated."""
        self.let_go(part.id)
        lines = await self._transact(parts.lines, part)
        ended = [_failed(number, unanswered(name, "interrupted", _INTERRUPTED)) for number, name, _ in lines]
        await self._transact(parts.returned, part, [], ended)
        await self._transact(parts.drop, part.id)

    def _told(self, line: Line, error: GatewayError) -> Result:
        told = self._asking.refused(self._batch, error, line.request_id)
        return _failed(line.number, answered(line.custom_id, told.status, line.request_id, told.body))

    # -- money ---------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Of parts whose answers have all been charged nothing is held any more."""
        for part in await self._transact(parts.of, self._batch.id):
            if part.state != "back":
                continue
            if (hold := self._holds.pop(part.id, None)) is not None:
                self._reach.ledger.void(hold, "charged request by request")
            else:
                await self._take_back(part.attempt, partial(parts.drop, part_id=part.id))
            await self._transact(parts.drop, part.id)

    def let_go(self, *only: str) -> None:
        """This process will not see the end of these parts, or of any: all that they may cost is charged."""
        for name in only or list(self._holds):
            if (hold := self._holds.pop(name, None)) is not None:
                self._reach.ledger.settle(hold, doubtful(hold.plan))

    async def _undo_doubted(self) -> None:
        """Answers that were being charged when their process ended are charged anew, what was charged is taken back."""
        for number, request_id in await self._transact(parts.doubted, self._batch.id):
            loosen = partial(parts.loosen, batch_id=self._batch.id, number=number)
            if not await self._take_back(f"{request_id}.1", loosen):
                await self._transact(loosen)

    async def _take_back(self, attempt: str, then: Also) -> bool:
        """Whether there was anything to take back; `then` is done in the same transaction."""
        amount = await self._transact(parts.charged, attempt)
        if not amount:
            return False
        reason = "its requests were charged one by one"
        await self._reach.ledger.adjust(attempt, -amount, reason=reason, actor="nearhit", also=lambda _: then)
        return True


def _together(part: Part, plans: list[AttemptPlan]) -> AttemptPlan:
    """What holds the money of them all."""
    first = plans[0]
    return AttemptPlan(
        id=part.attempt,
        request_id=part.id,
        provider=part.provider,
        model=part.model,
        price=first.price,
        reserve_nano=sum(plan.reserve_nano for plan in plans),
        input_bound=min(_MOST_TOKENS, sum(plan.input_bound for plan in plans)),
        max_output=min(_MOST_TOKENS, sum(plan.max_output for plan in plans)),
        billing=first.billing,
    )


def _is_final(error: GatewayError) -> bool:
    """Whether handing it in again would not be taken either."""
    final = isinstance(error, BudgetExhausted | InvalidRequest)
    return final or (isinstance(error, UpstreamRefused) and not error.may_retry)


def _unrun(number: int, name: str, message: str) -> Result:
    return _failed(number, unanswered(name, "batch_expired", message or _NOT_RUN))


def _failed(number: int, told: bytes) -> Result:
    return Result(number=number, state="failed", told=told)
