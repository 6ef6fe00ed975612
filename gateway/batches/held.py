"""The money of parts that are at providers: held before one is handed in, until each answer is charged by itself.

Knows: the holds of this process, what stands charged for those of processes that ended, how both are taken back.
Does not know: services, lines, when a part is over.
"""

from collections.abc import Sequence

import structlog
from sqlalchemy.engine import Connection

from gateway.batches import parts
from gateway.batches.means import Transact
from gateway.batches.parts import Part
from gateway.call import Call
from gateway.db.session import Also
from gateway.ledger import AttemptPlan, Hold, Ledger, doubtful

log = structlog.get_logger("nearhit.batches")

_MOST_TOKENS = (1 << 31) - 1


class Held:
    """One per running batch. A process that ends leaves what it held charged in full."""

    def __init__(self, ledger: Ledger, transact: Transact) -> None:
        self._ledger = ledger
        self._transact = transact
        self._holds: dict[str, Hold] = {}

    def __len__(self) -> int:
        return len(self._holds)

    def __contains__(self, part: Part) -> bool:
        return part.id in self._holds

    async def take(self, part: Part, call: Call, plans: Sequence[AttemptPlan]) -> None:
        """The most it can cost, once. Raises GatewayError where a budget will not have it."""
        if part not in self:
            self._holds[part.id] = await self._ledger.hold(call, together(part, plans))

    def give_back(self, part: Part, why: str) -> bool:
        """Whether this process held anything for it."""
        if (hold := self._holds.pop(part.id, None)) is None:
            return False
        self._ledger.void(hold, why)
        return True

    def let_go(self) -> None:
        """This process will not see the end of any part: all that they may cost is charged."""
        while self._holds:
            _, hold = self._holds.popitem()
            self._ledger.settle(hold, doubtful(hold.plan))

    async def doubt(self, part: Part, left: Sequence[AttemptPlan] | None) -> None:
        """Nobody will learn what became of the requests that are `left` of it (None: of any): they stay charged at the
        most they can cost.
        """
        if (hold := self._holds.pop(part.id, None)) is not None:
            self._ledger.settle(hold, doubtful(hold.plan))
            await self._ledger.catch_up()  # only what stands in the database can be corrected
        if left is not None:
            await self.take_back(part.attempt, but=sum(plan.reserve_nano for plan in left))

    async def take_back(self, attempt: str, then: Also | None = None, *, but: int = 0) -> bool:
        """Whether more than `but` (nano-USD) stands charged; that is taken back, and `then` done in the same
        transaction.
        """
        amount = (await self._transact(parts.charged, attempt) or 0) - but
        if amount <= 0:
            return False

        def also(made: str) -> Also:
            log.info("what was held for a part of a batch is taken back", entry=made, nano_usd=amount)
            return then or _nothing

        reason = "its requests were charged one by one"
        await self._ledger.adjust(attempt, -amount, reason=reason, actor="nearhit", also=also)
        return True


def _nothing(_: Connection) -> None:
    """There is nothing else to be done with it."""


def together(part: Part, plans: Sequence[AttemptPlan]) -> AttemptPlan:
    """What holds the money of them all, one or more."""
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
