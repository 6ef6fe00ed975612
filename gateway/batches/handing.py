"""One part of a batch, handed in to its provider's batch service: once, whatever breaks on the way.

Knows: which of its requests can be sent, that their money is held first, how a part is looked for whose arrival was
never confirmed. Does not know: any service's protocol, what happens afterwards.
"""

from functools import partial

import msgspec
import structlog

from gateway.auth import may_ask
from gateway.batches import parts
from gateway.batches.endings import Endings
from gateway.batches.held import Held
from gateway.batches.means import Ends, Means, Silence
from gateway.batches.parts import Part
from gateway.batches.shapes import Batch, Result
from gateway.call import Call
from gateway.errors import BudgetExhausted, GatewayError, InvalidRequest, Unauthorized, UpstreamRefused, in_doubt
from gateway.ids import moment, uuid7
from gateway.ledger import AttemptPlan
from gateway.upstream.batching import Batching, Row

log = structlog.get_logger("nearhit.batches")

REVOKED = Unauthorized("The key that this batch was made with has been revoked or has expired.")
_PAUSE = 1.0
_LONGEST_PAUSE = 60.0


class Handing:
    """One per running batch. `boot`: of this process."""

    def __init__(self, means: Means, batch: Batch, boot: str, ends: Ends, held: Held) -> None:
        self._principal = means.principal
        self._transact = means.transact
        self._settings = means.settings
        self._batch = batch
        self._boot = boot
        self._ends = ends
        self._held = held
        self._endings = Endings(means, batch, held)

    async def hand_in(self, part: Part, service: Batching) -> Part | None:
        """The part as it is away now; None where there is nothing to wait for."""
        again = part.state == "sending"  # by a process that is gone: it may have arrived
        pause, silence = _PAUSE, Silence(self._ends, self._settings.batch_patience)
        while not self._ends.stopping.is_set() and (again or not self._ends.halt.is_set()):
            try:
                if again and (remote := await self._found(part, service)) is not None:
                    return await self._away(part, remote)
                again = False
                if not self._ends.halt.is_set():
                    part = await self._renewed(part)
                    return await self._send(part, service)
            except LookupError:
                await self._endings.doubtful(part)
                return None
            except GatewayError as error:
                log.warning("a batch cannot be handed in", provider=part.provider, error=error.message[:200])
                if await self._gave_up(part, error, silence if again else None):
                    return None
                again = again or in_doubt(error)
            await self._ends.pause(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)
        if not self._ends.stopping.is_set():
            await self._endings.never_sent(part)
        return None

    async def _gave_up(self, part: Part, error: GatewayError, silence: Silence | None) -> bool:
        """`silence`: of the service while it is asked for a part that may have arrived, else None."""
        if silence is not None:
            if final := silence.is_final(error):
                await self._endings.doubtful(part)
        elif final := _is_final(error):
            await self._endings.refused(part, error)
        elif not in_doubt(error):
            await self._transact(parts.move, part, "planned", remote=None, boot=None)
        return final

    async def _found(self, part: Part, service: Batching) -> str | None:
        """Raises LookupError where nobody can tell whether it was handed in."""
        try:
            return await service.find(part.id, moment(part.id))
        except LookupError:
            if self._settings.retry_interrupted:
                return None
            raise

    async def _renewed(self, part: Part) -> Part:
        """Where a process that ended had its money charged: under another name, and that charge is taken back."""
        if part in self._held or await self._transact(parts.charged, part.attempt) is None:
            return part
        rename = partial(parts.rename, part=part, name=(name := uuid7()))
        if not await self._held.take_back(part.attempt, rename):
            await self._transact(rename)
        return msgspec.structs.replace(part, id=name, state="planned", boot=None)

    async def _send(self, part: Part, service: Batching) -> Part | None:
        calls, plans, rows = await self._rows(part)
        if not rows:
            await self._transact(parts.move, part, "back", remote=None, boot=self._boot)
            return None
        if len(rows) < getattr(service, "least_rows", 1):  # some were refused: the others are run one by one
            await self._endings.never_sent(part)
            return None
        await self._held.take(part, calls[0], plans)
        await self._transact(parts.move, part, "sending", remote=None, boot=self._boot)
        return await self._away(part, await service.hand_in(part.id, rows[0].sending.operation, rows))

    async def _rows(self, part: Part) -> tuple[list[Call], list[AttemptPlan], list[Row]]:
        """The requests that can be sent; what cannot ends here, told why."""
        calls: list[Call] = []
        plans: list[AttemptPlan] = []
        rows: list[Row] = []
        refused: list[Result] = []
        principal = await self._principal()
        for line in await self._endings.lines(part):
            try:
                if principal is None:
                    raise REVOKED
                call, plan, sending = self._endings.quote(part, line, principal)
                may_ask(principal, call.model)
            except GatewayError as error:
                refused.append(self._endings.told(line, error))
                continue
            calls.append(call)
            plans.append(plan)
            rows.append(Row(str(line.number), sending))
        await self._transact(parts.returned, part, [], refused)
        return calls, plans, rows

    async def _away(self, part: Part, remote: str) -> Part:
        """Before anything else it stands in the database whose it is."""
        boot = self._boot if part in self._held else part.boot
        await self._transact(parts.move, part, "away", remote=remote, boot=boot)
        return msgspec.structs.replace(part, state="away", remote=remote, boot=boot)


def _is_final(error: GatewayError) -> bool:
    """Whether handing it in again would not be taken either; what others hold may come back within the day."""
    if isinstance(error, BudgetExhausted):
        return not error.held_up
    return isinstance(error, InvalidRequest) or (isinstance(error, UpstreamRefused) and not error.may_retry)
