"""Limits that the configuration file sets, put in force with their rows in the audit log whenever it is read.

Knows: both kinds of limit, in money and per minute. Does not know: how one is held (`gateway.ledger`, `gateway.rates`),
when a file is read.
"""

from collections.abc import Callable

from gateway.audit import Change, said_at
from gateway.catalog import Catalog
from gateway.db import budgets
from gateway.db.session import Also
from gateway.errors import NotFound
from gateway.ledger import Ledger
from gateway.ledger.configured import FILE
from gateway.ledger.configured import configured as in_money
from gateway.limits_told import told
from gateway.rates import Rates
from gateway.rates import configured as per_minute
from gateway.settings import Settings
from policies.budget import Budget
from policies.rate import Rate


def check(settings: Settings, catalog: Catalog | None = None) -> None:
    """Raises ValueError for a limit that makes no sense, or whose cheaper model leads nowhere: it would only refuse."""
    in_money(settings.budgets)
    per_minute(settings)
    for budget in settings.budgets:
        model = budget.on_exhausted.partition(":")[2]
        try:
            if model and catalog is not None:
                catalog.resolve(model)
        except NotFound as error:
            raise ValueError(f"budgets: {budget.scope}: on_exhausted: {error.message}") from error


def said_of_money(now: Callable[[], float]) -> budgets.Said:
    """The row of a limit in money."""

    def said(before: Budget | None, after: Budget) -> Also:
        return said_at(
            now(), FILE, Change("budget.set", after.scope, before=told(before, None), after=told(after, None))
        )

    return said


async def put_per_minute(limits: Rates, settings: Settings, now: Callable[[], float]) -> None:
    """Requests and tokens per minute, in force from the next request on."""

    def said(before: Rate | None, after: Rate) -> Also:
        return said_at(
            now(), FILE, Change("budget.set", after.scope, before=told(None, before), after=told(None, after))
        )

    await limits.start(per_minute(settings), said)


async def put(ledger: Ledger, limits: Rates, settings: Settings, now: Callable[[], float]) -> None:
    """All of them, where a ledger is running."""
    await ledger.put_configured(settings.budgets, said_of_money(now))
    await ledger.reload_budgets()
    await put_per_minute(limits, settings, now)
