"""Limits: budgets with their history, the balance of each window, alerts, boots and leases."""

from sqlalchemy import CheckConstraint, Index, false
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import JSON

from gateway.db.models.base import Base


class BudgetRow(Base):
    """One limit for one scope. Retired, never deleted: windows and entries refer to it.

    `degrade_to`: the model that answers instead once the share `degrade_at` is used; None refuses.
    """

    __tablename__ = "budget"
    __table_args__ = (CheckConstraint("limit_nano >= 0", name="limit"),)
    scope: Mapped[str] = mapped_column(primary_key=True)
    limit_nano: Mapped[int]
    window: Mapped[str]
    timezone: Mapped[str]
    mode: Mapped[str]
    alerts: Mapped[list[float]] = mapped_column(JSON)
    version: Mapped[int]
    actor: Mapped[str]
    created: Mapped[float]
    updated: Mapped[float]
    retired: Mapped[float | None]
    degrade_to: Mapped[str | None]
    degrade_at: Mapped[float | None]


class BudgetVersion(Base):
    """Every edit of a limit, with who and when."""

    __tablename__ = "budget_version"
    scope: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    limit_nano: Mapped[int]
    window: Mapped[str]
    timezone: Mapped[str]
    mode: Mapped[str]
    retired: Mapped[bool] = mapped_column(server_default=false())
    actor: Mapped[str]
    at: Mapped[float]
    degrade_to: Mapped[str | None]
    degrade_at: Mapped[float | None]


class BudgetWindow(Base):
    """The balance of one budget in one period. `id` is `scope|window|start|end`; a new period is a new row.

    `opening_nano` is the part of `spent_nano` by entries that fall under it and do not name it, because they were
    admitted before it was known. `opened` numbers the windows that count those; None: none do.

    `held_nano` is what open leases have not consumed yet. `estimated_nano` is the part of `spent_nano` that no
    provider confirmed. `wanted` is when a process was last refused, so that others hand idle leases back.
    """

    __tablename__ = "budget_window"
    __table_args__ = (
        CheckConstraint("spent_nano >= 0", name="spent"),
        CheckConstraint("held_nano >= 0", name="held"),
        Index("ix_budget_window_scope_starts", "scope", "starts"),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    scope: Mapped[str]
    window: Mapped[str]
    starts: Mapped[int]
    ends: Mapped[int]
    limit_nano: Mapped[int]
    spent_nano: Mapped[int] = mapped_column(server_default="0")
    estimated_nano: Mapped[int] = mapped_column(server_default="0")
    held_nano: Mapped[int] = mapped_column(server_default="0")
    wanted: Mapped[float | None]
    opening_nano: Mapped[int] = mapped_column(server_default="0")
    opened: Mapped[int | None] = mapped_column(index=True)


class BudgetAlert(Base):
    """A threshold that was crossed, once per window; of several limits that it had, under the last."""

    __tablename__ = "budget_alert"
    window_id: Mapped[str] = mapped_column(primary_key=True)
    threshold: Mapped[float] = mapped_column(primary_key=True)
    spent_nano: Mapped[int]
    at: Mapped[float]


class Boot(Base):
    """One life of one gateway process. `closed` is set by a clean stop or by whoever recovers its journal.

    `journalled` False: it kept no journal, so there is nothing to wait for once it is silent. `oldest`: when its oldest
    attempt was admitted that was not in the database when it was last `seen`; null: none. `marks`: of what its file
    says (`gateway.agreement`); null in the version before.
    """

    __tablename__ = "boot"
    id: Mapped[str] = mapped_column(primary_key=True)
    host: Mapped[str]
    journalled: Mapped[bool]
    started: Mapped[float]
    seen: Mapped[float]
    closed: Mapped[float | None]
    oldest: Mapped[float | None]
    marks: Mapped[dict[str, str] | None] = mapped_column(JSON(none_as_null=True))


class Lease(Base):
    """The part of a window that one boot may spend from memory."""

    __tablename__ = "lease"
    __table_args__ = (CheckConstraint("consumed_nano >= 0 AND granted_nano >= consumed_nano", name="consumed"),)
    boot: Mapped[str] = mapped_column(primary_key=True)
    window_id: Mapped[str] = mapped_column(primary_key=True, index=True)
    granted_nano: Mapped[int]
    consumed_nano: Mapped[int]
    closed: Mapped[bool] = mapped_column(server_default=false())
