"""How fast: limits per minute, what is left of them where several workers share one, alerts on their way to people."""

from sqlalchemy.orm import Mapped, mapped_column

from gateway.db.models.base import Base


class RateRow(Base):
    """Requests and tokens that one scope may use per minute; None is no limit. Both None: retired, the row stays."""

    __tablename__ = "rate_limit"
    scope: Mapped[str] = mapped_column(primary_key=True)
    rpm: Mapped[int | None]
    tpm: Mapped[int | None]
    version: Mapped[int]
    actor: Mapped[str]
    updated: Mapped[float]


class RateBucket(Base):
    """What nobody has taken of a shared limit at `at`. `id` is `scope|requests` or `scope|tokens`."""

    __tablename__ = "rate_bucket"
    id: Mapped[str] = mapped_column(primary_key=True)
    level: Mapped[float]
    at: Mapped[float]


class AlertDelivery(Base):
    """One alert for one channel. `id` is `window|threshold|channel`, so it exists once whoever notices the crossing.

    `due`: when it is tried next; None once it was delivered or given up (then `delivered` is None).
    """

    __tablename__ = "alert_delivery"
    id: Mapped[str] = mapped_column(primary_key=True)
    channel: Mapped[str]
    window_id: Mapped[str]
    threshold: Mapped[float]
    limit_nano: Mapped[int]
    spent_nano: Mapped[int]
    mode: Mapped[str]
    created: Mapped[float]
    attempts: Mapped[int] = mapped_column(server_default="0")
    due: Mapped[float | None] = mapped_column(index=True)
    delivered: Mapped[float | None]
    error: Mapped[str | None]
