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


class Delivery:
    """A message for one channel, in whichever table.

    `due`: when it is tried next; None once it was delivered or given up (then `delivered` is None).
    """

    id: Mapped[str] = mapped_column(primary_key=True)
    channel: Mapped[str]
    created: Mapped[float]
    attempts: Mapped[int] = mapped_column(server_default="0")
    due: Mapped[float | None] = mapped_column(index=True)
    delivered: Mapped[float | None]
    error: Mapped[str | None]


class AlertDelivery(Delivery, Base):
    """One alert for one channel. `id` is `window|threshold|limit|channel`, so it exists once whoever notices it."""

    __tablename__ = "alert_delivery"
    window_id: Mapped[str]
    threshold: Mapped[float]
    limit_nano: Mapped[int]
    spent_nano: Mapped[int]
    mode: Mapped[str]


class CacheAlert(Base):
    """Whether a group's hits by meaning are wrong too often, for all workers. `number` counts how often that began.

    `ended`: since when they are not; None while they are.
    """

    __tablename__ = "cache_alert"
    team: Mapped[str] = mapped_column(primary_key=True)
    project: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int]
    raised: Mapped[float]
    ended: Mapped[float | None] = mapped_column(index=True)


class CacheDelivery(Delivery, Base):
    """One beginning or end of a `CacheAlert` for one channel: the shares that were measured, never what was asked."""

    __tablename__ = "cache_delivery"
    team: Mapped[str]
    project: Mapped[str]
    model: Mapped[str]
    number: Mapped[int]
    over: Mapped[bool]
    rate: Mapped[float]
    low: Mapped[float]
    high: Mapped[float]
    allowed: Mapped[float]


class SpendingDelivery(Delivery, Base):
    """A dear day for one channel. `id` is `spending|day|channel`, so it exists once whoever judges; `told`: JSON."""

    __tablename__ = "spending_delivery"
    told: Mapped[str]
