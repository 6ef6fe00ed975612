"""What an attempt is promised to cost at most, how it ended, and what is therefore posted.

Knows: the rule from an ending to an amount. Does not know: budgets, journals, databases, the clock.
"""

import math
from typing import Literal

from msgspec import Struct

from gateway.db.clean import cleaned
from gateway.providers import Billing
from policies.money import Price, Usage, checked, cost_nano

Source = Literal["provider", "engine", "estimated", "upper_bound", "void", "adjust"]
Ended = Literal["complete", "cut", "cancelled", "failed"]

_SLACK_SECONDS = 1.0  # an upstream may go on for that long after its connection was closed
_MOST_TOKENS = 100_000_000  # a larger count is no count
_BEGUN_TOKENS = 256  # of a body that was closed before it came
_SLACK_TOKENS = 8  # and has produced at least that much that was still on its way
_UNSEEN_TOKENS = 64  # of which nothing was seen, so much: what a busy process has not read yet was written all the same


class AttemptPlan(Struct, frozen=True, kw_only=True, gc=False):
    """One try at one upstream, before it starts. `id` is `<request id>.<n>`, made before anything happens.

    `reserve_nano` is the most it can cost (`policies.money.bound_nano`); `input_bound` and `max_output` are tokens,
    all choices together. `billing`: what a closed connection costs at this provider.
    """

    id: str
    request_id: str
    provider: str
    model: str
    price: Price
    reserve_nano: int
    input_bound: int
    max_output: int
    billing: Billing = "bills-anyway"


class Settlement(Struct, frozen=True, kw_only=True, gc=False):
    """How an attempt ended. `source`: whose count `usage` is; `provider_id`: the upstream's own id of the answer.

    `price`: another than was planned, where the answer says that it was made in another service tier.
    """

    usage: Usage
    source: Literal["provider", "engine", "estimated", "upper_bound"]
    ended: Ended
    provider_id: str | None = None
    price: Price | None = None


def doubtful(plan: AttemptPlan) -> Settlement:
    """Sent, and never heard of again: the provider may bill all of it."""
    worst = Usage(prompt=plan.input_bound, completion=plan.max_output)
    return Settlement(usage=worst, source="upper_bound", ended="failed", provider_id="")


def given_up(plan: AttemptPlan, *, streamed: bool) -> Settlement:
    """Closed before the first chunk: an upstream that stops at the close has read the prompt, and of a stream written
    no more than `posting` adds for what was not seen; of a body nobody knows how much.
    """
    begun = 0 if streamed else min(plan.max_output, _BEGUN_TOKENS)
    output = plan.max_output if plan.billing == "bills-anyway" else begun
    usage = Usage(prompt=plan.input_bound, completion=output)
    return Settlement(usage=usage, source="estimated", ended="cancelled", provider_id="")


class Posting(Struct, frozen=True, kw_only=True, gc=False):
    """What goes into the ledger for one attempt, nano-USD. `note` names an anomaly or why nothing is charged.

    `price`: what `amount` follows from, where that is not the plan's.
    """

    amount: int
    usage: Usage
    source: Source
    ended: Ended
    provider_id: str | None = None
    note: str | None = None
    price: Price | None = None


def posting(plan: AttemptPlan, settlement: Settlement, elapsed: float) -> Posting:
    """The amount an ending costs; `elapsed` seconds since dispatch.

    A count by the provider or the engine is exact, and posted even above the reservation (noted as an overrun) unless
    it cannot be a count at all.
    An answer that broke off at a provider which stops on close: the prompt, what was received and a second more; where
    nothing was received, what may lie unread.
    At one that bills the whole answer anyway, and whenever nothing is known: the reservation.
    """
    usage, price = checked(settlement.usage), settlement.price or plan.price
    if max(usage.prompt, usage.completion) > _MOST_TOKENS:
        return upper_bound(plan, settlement, "implausible count")
    if settlement.source in ("provider", "engine"):
        amount = cost_nano(usage, price)
        note = "overrun" if amount > plan.reserve_nano else None
        return _posting(settlement, amount, usage, settlement.source, note)
    if settlement.source == "estimated" and (settlement.ended == "complete" or plan.billing == "stops-on-close"):
        usage = _estimated(plan, usage, settlement.ended, elapsed)
        amount = cost_nano(usage, price)
        if amount <= plan.reserve_nano:
            return _posting(settlement, amount, usage, "estimated", None)
    return upper_bound(plan, settlement)


def upper_bound(plan: AttemptPlan, settlement: Settlement, note: str | None = None) -> Posting:
    """All that was reserved, because nothing better is known."""
    usage = Usage(prompt=plan.input_bound, completion=plan.max_output)
    return _posting(settlement, plan.reserve_nano, usage, "upper_bound", note)


def _estimated(plan: AttemptPlan, usage: Usage, ended: Ended, elapsed: float) -> Usage:
    prompt = usage.prompt or plan.input_bound
    completion = usage.completion
    if ended != "complete":
        rate = completion / max(elapsed, 0.05)
        least = _SLACK_TOKENS if completion else _UNSEEN_TOKENS
        completion += max(least, math.ceil(rate * _SLACK_SECONDS))
    return Usage(prompt=prompt, completion=min(completion, max(plan.max_output, usage.completion)))


def _posting(settlement: Settlement, amount: int, usage: Usage, source: Source, note: str | None) -> Posting:
    return Posting(
        amount=amount,
        usage=usage,
        source=source,
        ended=settlement.ended,
        provider_id=cleaned(settlement.provider_id),
        note=note,
        price=None if source == "upper_bound" else settlement.price,
    )
