"""The limits in money that the configuration file sets, in the ledger's terms.

Knows: how a setting becomes a budget, and which of them have to be written. Does not know: what is in force.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import structs
from sqlalchemy.exc import IntegrityError

from gateway.db.budgets import Opened, Said, check, load, put_unless_same
from gateway.db.session import Also, Database, nothing
from policies.budget import Budget
from policies.money import nano

if TYPE_CHECKING:  # settings bring pydantic, which nothing here needs at run time
    from gateway.settings import BudgetSettings


FILE = "nearhit.yaml"  # as the author of what it sets


def unsaid(_before: Budget | None, _after: Budget) -> Also:
    """Nothing else belongs to a change."""
    return nothing


async def put(database: Database, given: "Iterable[BudgetSettings]", opened: Opened, *, now: float, said: Said) -> None:
    """Set those that differ from what is there; others are left as they are. Raises ValueError before anything is."""
    wanted = configured(given)
    known = {budget.scope: structs.replace(budget, version=1) for budget in await load(database)}
    for budget in wanted:
        if known.get(budget.scope) != budget:
            with suppress(IntegrityError):  # another worker that starts at the same time has put the same one
                await put_unless_same(database, budget, opened, actor=FILE, now=now, said=said)


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
