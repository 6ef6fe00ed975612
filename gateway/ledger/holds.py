"""A reservation that runs: what was promised, where it is drawn from, whether it has ended.

Knows only shapes. Does not know: how it is journalled or posted.
"""

from msgspec import Struct

from gateway.call import Call
from gateway.db.clean import clean, cleaned
from gateway.ledger.plan import AttemptPlan
from gateway.ledger.pools import Pool
from gateway.ledger.records import Dispatch, Rates
from gateway.ledger.segments import Segment


class Hold(Struct, eq=False, gc=False):
    """One attempt from `Ledger.hold` to its end. `began`, `noted`: monotonic seconds; `amount`: nano-USD once ended."""

    plan: AttemptPlan
    pools: tuple[Pool, ...]
    dispatch: Dispatch
    began: float
    noted: float
    segment: Segment | None = None
    ended: bool = False
    amount: int = 0


def dispatch_record(call: Call, plan: AttemptPlan, windows: tuple[str, ...], instant: float, price: Rates) -> Dispatch:
    """The journal record of an attempt that is about to start; `windows` are those of `instant`, for good."""
    who = call.principal
    return Dispatch(
        plan.id,
        plan.request_id,
        instant,
        windows,
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
