"""How a part of a batch ends without the answers of its service: refused, never sent, or nobody can tell.

Knows: what each of its lines is told, and what becomes of the money. Does not know: services, when that is so.
"""

from collections.abc import Sequence
from functools import partial

from gateway.batches import parts
from gateway.batches.held import Held
from gateway.batches.lines import answered, unanswered
from gateway.batches.means import Means
from gateway.batches.parts import Part
from gateway.batches.shapes import Batch, Line, Result
from gateway.call import Call, Given, Principal
from gateway.catalog import Target
from gateway.errors import GatewayError
from gateway.ids import uuid7
from gateway.ledger import AttemptPlan
from gateway.providers import Sending

_INTERRUPTED = "The gateway stopped while this request was handed to the provider; it may have been billed."
_LOST = "The provider has this request, and said no more of it; it may have been billed."
_NOT_RUN = "The provider ended its batch before this request was run."


class Endings:
    """One per running batch."""

    def __init__(self, means: Means, batch: Batch, held: Held) -> None:
        self._asking = means.asking
        self._reach = means.reach
        self._transact = means.transact
        self._batch = batch
        self._held = held

    async def refused(self, part: Part, error: GatewayError) -> None:
        """The service or a budget will have none of it: each of its requests is refused so."""
        self._held.give_back(part, error.code or "refused")
        ended = [self.told(line, error) for line in await self.lines(part)]
        await self._transact(parts.returned, part, [], ended)
        await self._transact(parts.move, part, "back", remote=None, boot=None)

    async def never_sent(self, part: Part) -> None:
        """It was not handed in, and is not to be any more: its lines are nobody's again."""
        if not self._held.give_back(part, "not handed in"):  # a process that ended may have left it charged
            release = partial(parts.release, part=part)
            if await self._held.take_back(part.attempt, release):
                return
        await self._transact(parts.release, part)

    async def doubtful(self, part: Part) -> None:
        """Nobody can tell what became of what has not come back: it may be billed, so its money stays charged and
        nothing is repeated.
        """
        lines = await self.lines(part)
        await self._held.doubt(part, self._bounds(part, lines))
        why = _INTERRUPTED if part.remote is None else _LOST
        ended = [failed(line.number, unanswered(line.custom_id, "interrupted", why)) for line in lines]
        await self._transact(parts.returned, part, [], ended)
        await self._transact(parts.drop, part.id)

    async def lines(self, part: Part) -> list[Line]:
        """Those that are still away, each under an id of its own, their answer to come."""
        to_come = Given(provider=part.provider, model=part.model)
        return [
            Line(number=number, custom_id=name, request=request, request_id=uuid7(), given=to_come)
            for number, name, request in await self._transact(parts.lines, part)
        ]

    def told(self, line: Line, error: GatewayError) -> Result:
        told = self._asking.refused(self._batch, error, line.request_id)
        return failed(line.number, answered(line.custom_id, told.status, line.request_id, told.body))

    def quote(self, part: Part, line: Line, principal: Principal) -> tuple[Call, AttemptPlan, Sending]:
        """The request, the most it can cost, and how it is sent. Raises GatewayError."""
        call = self._asking.call(self._batch, principal, line, line.request_id)
        return (call, *self._reach.quote(call, Target(part.provider, part.model)))

    def _bounds(self, part: Part, lines: Sequence[Line]) -> list[AttemptPlan] | None:
        """None where one of them has no bound any more, as when its price is gone: then all of the part is meant."""
        owner = self._batch.owner
        try:
            return [self.quote(part, line, owner)[1] for line in lines]
        except GatewayError:
            return None


def unrun(number: int, name: str, message: str) -> Result:
    """The service ended before it."""
    return failed(number, unanswered(name, "batch_expired", message or _NOT_RUN))


def failed(number: int, told: bytes) -> Result:
    return Result(number=number, state="failed", told=told)
