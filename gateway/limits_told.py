"""What the audit log says of a limit, whoever has set it: a person, or the configuration file.

Knows: both kinds of limit. Does not know: who changes one, how the log is kept.
"""

from gateway.db.rows import BudgetState
from policies.budget import Budget
from policies.money import usd
from policies.rate import Rate


def exhausted(degrade_to: str | None) -> str:
    """How it is written."""
    return "refuse" if degrade_to is None else f"degrade:{degrade_to}"


def told(state: BudgetState | Budget | None, rate: Rate | None) -> dict[str, object] | None:
    """For the audit log; None where there is no limit of any kind."""
    said: dict[str, object] = {}
    if state is not None:
        said |= {
            "limit_usd": usd(state.limit_nano),
            "window": state.window,
            "timezone": state.timezone,
            "mode": state.mode,
            "alerts": sorted(state.alerts),
            "on_exhausted": exhausted(state.degrade_to),
            "degrade_at": state.degrade_at,
        }
    if rate is not None and (rate.rpm is not None or rate.tpm is not None):
        said |= {"rpm": rate.rpm, "tpm": rate.tpm}
    return said or None
