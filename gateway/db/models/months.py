"""Closed months: seals that never change, what was booked later, costs that teams share, exports that ran.

Does not know: how a month is closed (`gateway.ledger.closing`), who may.
"""

from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import JSON

from gateway.db.models.base import Base


class MonthSeal(Base):
    """One month that is closed (`digest` set) or being closed. A row with a digest is never changed or deleted.

    `facts`: what statements need beside the lines, as it was then. `previous` is the digest of the month before.
    `reason`: why it was closed although something was open; null otherwise.
    """

    __tablename__ = "month_seal"
    month: Mapped[str] = mapped_column(primary_key=True)
    began: Mapped[float]
    actor: Mapped[str]
    reason: Mapped[str | None]
    sealed: Mapped[float | None]
    entries: Mapped[int]
    amount_nano: Mapped[int]
    estimated_nano: Mapped[int]
    adjustments_nano: Mapped[int]
    facts: Mapped[dict[str, object] | None] = mapped_column(JSON(none_as_null=True))
    previous: Mapped[str | None]
    digest: Mapped[str | None]


class MonthLine(Base):
    """One sum of a closed month. `kind` own or adjustment; `belongs`: the month the entries were admitted in.

    `quantity`: tokens or requests of the meter; `entries` counts each entry on one of its meters only.
    """

    __tablename__ = "month_line"
    month: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str]
    belongs: Mapped[str]
    team: Mapped[str]
    project: Mapped[str]
    key_id: Mapped[str]
    user: Mapped[str]
    provider: Mapped[str]
    model: Mapped[str]
    meter: Mapped[str]
    quantity: Mapped[int]
    amount_nano: Mapped[int]
    estimated_nano: Mapped[int]
    entries: Mapped[int]


class MonthHit(Base):
    """Requests of a closed month that the cache answered on a day (whole days since the epoch), of one key and model.

    `kind`: exact, semantic or shared.
    """

    __tablename__ = "month_hit"
    month: Mapped[str] = mapped_column(primary_key=True)
    day: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    team: Mapped[str]
    project: Mapped[str]
    key_id: Mapped[str]
    model: Mapped[str]
    kind: Mapped[str]
    requests: Mapped[int]
    avoided_nano: Mapped[int]


class LateEntry(Base):
    """An entry of a month (`belongs`) that was closed when it was posted; it is booked in `month` instead."""

    __tablename__ = "late_entry"
    entry_id: Mapped[str] = mapped_column(primary_key=True)
    month: Mapped[str] = mapped_column(index=True)
    belongs: Mapped[str]
    at: Mapped[float]


class SharedCost(Base):
    """A monthly cost that teams share: a fixed amount, or what one team spends (`team`). One of the two is set.

    `shares`: team -> weight, for the split `fixed` only. In force from `from_month` to `until_month`, both included.
    """

    __tablename__ = "shared_cost"
    name: Mapped[str] = mapped_column(primary_key=True)
    amount_nano: Mapped[int | None]
    team: Mapped[str | None]
    split: Mapped[str]
    shares: Mapped[dict[str, int]] = mapped_column(JSON)
    from_month: Mapped[str]
    until_month: Mapped[str | None]
    actor: Mapped[str]
    updated: Mapped[float]


class ExportRun(Base):
    """The last run of a scheduled export. `period`: the day or month it wrote; `error` is null when it worked."""

    __tablename__ = "export_run"
    name: Mapped[str] = mapped_column(primary_key=True)
    period: Mapped[str]
    began: Mapped[float]
    ended: Mapped[float | None]
    files: Mapped[list[str]] = mapped_column(JSON)
    error: Mapped[str | None]
