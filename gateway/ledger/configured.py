"""The limits in money that the configuration file sets, in the ledger's terms.

Knows: how a setting becomes a budget. Does not know: the database, what is in force.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gateway.db.budgets import check
from policies.budget import Budget
from policies.money import nano

if TYPE_CHECKING:  # settings bring pydantic, which nothing here needs at run time
    from gateway.settings import BudgetSettings


def configured(given: "Iterable[BudgetSettings]") -> list[Budget]:
    """Raises ValueError, which names its scope, where one makes no sense. What only limits rates is left out."""
    found: list[Budget] = []
    for one in given:
        if one.limit_usd is not None:
            try:
                found.append(_budget(one, one.limit_usd))
            except ValueError as error:
                raise ValueError(f"budgets: {one.scope}: {error}") from error
    return found


def _budget(given: "BudgetSettings", limit_usd: str) -> Budget:
    degrade_to = given.on_exhausted.partition(":")[2] or None
    return check(
        Budget(
            scope=given.scope,
            limit_nano=nano(limit_usd),
            window=given.window,
            timezone=given.timezone,
            mode=given.mode,
            alerts=tuple(sorted(given.alerts)),
            degrade_to=degrade_to,
            degrade_at=None if degrade_to is None else given.degrade_at,
        )
    )
