"""A reservation that runs: what was promised, where it is drawn from, whether it has ended.

Knows only shapes. Does not know: how it is journalled or posted.
"""

from collections.abc import Sequence

from gateway.call import Call
from gateway.db.clean import clean, cleaned
from gateway.ledger.plan import AttemptPlan
from gateway.ledger.pools import Pool
from gateway.ledger.records import Dispatch, Rates
from gateway.ledger.segments import Segment


class Hold:
    """One attempt from `Ledger.hold` to its end. `began`, `noted`: monotonic seconds; `amount`: nano-USD once ended."""

    __slots__ = ("amount", "began", "dispatch", "ended", "noted", "plan", "pools", "segment")

    def __init__(self, plan: AttemptPlan, pools: Sequence[Pool], dispatch: Dispatch, began: float) -> None:
        self.plan = plan
        self.pools = pools
        self.dispatch = dispatch
        self.began = began
        self.noted = began
        self.segment: Segment | None = None
        self.ended = False
        self.amount = 0


def dispatch_record(call: Call, plan: AttemptPlan, pools: Sequence[Pool], instant: float, price: Rates) -> Dispatch:
    """The journal record of an attempt that is about to start; its windows are those of `instant`, for good."""
    who = call.principal
    return Dispatch(
        plan.id,
        plan.request_id,
        instant,
        tuple(sorted([pool.id for pool in pools])),
        plan.reserve_nano,
        plan.input_bound,
        plan.max_output,
        plan.provider,
        plan.model,
        price,
        who.team,
        who.project,
        who.key_id,
        cleaned(call.directives.user),
        call.operation,
        clean(call.model),
        tuple([clean(f"{name}={value}") for name, value in call.directives.tags]) if call.directives.tags else (),
        call.charged,
    )
