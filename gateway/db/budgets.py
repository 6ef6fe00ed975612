"""Setting and retiring budgets: the row, its version history, and the window that is running.

Knows: the budget tables. Does not know: leases, who is allowed to, the audit log (its writer is the control plane).
Every edit is a new version with its author; lowering a limit below what is spent simply refuses from then on.
"""

from collections.abc import Callable
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import structs
from sqlalchemy import func, insert, select, update
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.models import BudgetRow, BudgetVersion
from gateway.db.queries import budget_of
from gateway.db.session import Also, Database, nothing
from policies.budget import KINDS, Budget, check_scope, period, window_id

Opened = Callable[[Connection, str], None]
Said = Callable[[Budget | None, Budget], Also]
_MOST_BUDGETS = 100_000
_LONGEST_MODEL = 200


def check(budget: Budget) -> Budget:
    """The budget as given. Raises ValueError that names what is wrong with it."""
    check_scope(budget.scope)
    if budget.limit_nano < 0:
        raise ValueError("a limit cannot be negative")
    if budget.window not in KINDS:
        raise ValueError(f"unknown window {budget.window!r}. Known: {', '.join(KINDS)}")
    if budget.mode not in ("hard", "soft"):
        raise ValueError(f"unknown mode {budget.mode!r}. Known: hard, soft")
    if any(not 0 < share <= 10 for share in budget.alerts) or len(budget.alerts) > 20:
        raise ValueError("alerts are at most 20 fractions of the limit, such as 0.8")
    if (budget.degrade_to is None) != (budget.degrade_at is None):
        raise ValueError("degrade_to and degrade_at go together")
    if budget.degrade_to is not None and not 0 < len(budget.degrade_to) <= _LONGEST_MODEL:
        raise ValueError("on_exhausted is `refuse` or `degrade:<model>`")
    if budget.degrade_at is not None and not 0 < budget.degrade_at <= 1:
        raise ValueError("degrade_at is a fraction of the limit, above 0 and at most 1")
    try:
        ZoneInfo(budget.timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(
            f"unknown time zone {budget.timezone[:60]!r}; use an IANA name such as Europe/Berlin"
        ) from error
    return budget


async def load(database: Database) -> list[Budget]:
    """Every budget in force."""
    wanted = select(BudgetRow).where(BudgetRow.retired.is_(None)).order_by(BudgetRow.scope).limit(_MOST_BUDGETS)
    async with database.read() as connection:
        return [budget_of(row) for row in (await connection.execute(wanted)).mappings()]


async def stamp(database: Database) -> tuple[int, int]:
    """Changes whenever any budget does: each edit adds a version."""
    async with database.read() as connection:
        row = (await connection.execute(select(func.count(), func.coalesce(func.sum(BudgetRow.version), 0)))).one()
    return int(row[0]), int(row[1])


async def put(
    database: Database, budget: Budget, opened: Opened, *, actor: str, now: float, also: Also = nothing
) -> Budget:
    """Set the budget of its scope; answers it with its new version. Raises ValueError when it makes no sense.

    `opened` sees to it that the running window is there, with this limit and with what was spent in it before the
    budget was known. `also`: what else belongs to the change.
    """
    check(budget)
    async with database.begin() as connection:
        before = await _latest(connection, budget.scope)
        await _write(connection, budget, before, opened, actor, now)
        await connection.run_sync(also)
    return structs.replace(budget, alerts=tuple(sorted(budget.alerts)), version=before + 1)


async def put_unless_same(
    database: Database, budget: Budget, opened: Opened, *, actor: str, now: float, said: Said
) -> None:
    """`put`, where the scope does not have this very budget: of several workers with one file the first sets it.

    `said`: what else belongs to the change from one budget, None where there was none, to the other.
    """
    check(budget)
    async with database.begin() as connection:
        wanted = select(BudgetRow).where(BudgetRow.scope == budget.scope).with_for_update()
        row = (await connection.execute(wanted)).mappings().first()
        before = None if row is None or row["retired"] is not None else budget_of(row)
        if before is not None and structs.replace(before, version=1) == budget:
            return
        await _write(connection, budget, 0 if row is None else row["version"], opened, actor, now)
        await connection.run_sync(said(before, budget))


async def _write(
    connection: AsyncConnection, budget: Budget, before: int, opened: Opened, actor: str, now: float
) -> None:
    """`before`: the version that stands in the table, 0 for none."""
    values = {
        "limit_nano": budget.limit_nano,
        "window": budget.window,
        "timezone": budget.timezone,
        "mode": budget.mode,
        "alerts": sorted(budget.alerts),
        "degrade_to": budget.degrade_to,
        "degrade_at": budget.degrade_at,
        "version": before + 1,
        "actor": actor,
        "updated": now,
        "retired": None,
    }
    if before:
        await connection.execute(update(BudgetRow).where(BudgetRow.scope == budget.scope).values(values))
    else:
        await connection.execute(insert(BudgetRow).values(values | {"scope": budget.scope, "created": now}))
    await _remember(connection, budget, before + 1, actor, now)
    name = window_id(budget, period(budget.window, ZoneInfo(budget.timezone), now))
    await connection.run_sync(opened, name)


async def retire(database: Database, scope: str, *, actor: str, now: float, also: Also = nothing) -> bool:
    """Take a budget out of force; its history stays. False when there is none."""
    async with database.begin() as connection:
        wanted = select(BudgetRow).where(BudgetRow.scope == scope, BudgetRow.retired.is_(None)).with_for_update()
        found = (await connection.execute(wanted)).mappings().first()
        if found is None:
            return False
        version = found["version"] + 1
        await connection.execute(
            update(BudgetRow)
            .where(BudgetRow.scope == scope)
            .values(retired=now, updated=now, actor=actor, version=version)
        )
        await _remember(connection, budget_of(found), version, actor, now, retired=True)
        await connection.run_sync(also)
    return True


async def _latest(connection: AsyncConnection, scope: str) -> int:
    """The version in the table, 0 without one; locks the row so that two editors take turns."""
    wanted = select(BudgetRow.version).where(BudgetRow.scope == scope).with_for_update()
    return await connection.scalar(wanted) or 0


async def _remember(
    connection: AsyncConnection, budget: Budget, version: int, actor: str, now: float, *, retired: bool = False
) -> None:
    await connection.execute(
        insert(BudgetVersion).values(
            scope=budget.scope,
            version=version,
            limit_nano=budget.limit_nano,
            window=budget.window,
            timezone=budget.timezone,
            mode=budget.mode,
            retired=retired,
            actor=actor,
            at=now,
            degrade_to=budget.degrade_to,
            degrade_at=budget.degrade_at,
        )
    )
