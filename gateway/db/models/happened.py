"""What happened: a row per request, corrections of savings, explanations that are kept for a few days."""

from sqlalchemy import BigInteger, Integer, String
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import JSON

from gateway.db.models.base import Base

# SQLite stores every number as short as it is, and cannot change the type of a column where it stands.
_TOKENS = Integer().with_variant(BigInteger(), "sqlite")

LARGEST_COUNT = 2**31 - 1
"""Of tokens in one row: what a provider says beyond is no count (`gateway.ledger.plan` charges the bound then)."""


class RequestRow(Base):
    """One row per request, answered, refused or broken off. `source` is upstream, exact, semantic,
    shared, none, or replayed (told again under an idempotency key).

    `model` is the name asked for, `model_used` what answered. Durations in milliseconds. `discount_nano`: what the
    provider's own prompt cache took off the cost; negative where writing to it cost more than reading it saved.
    `routed_nano`: what choosing among the places of its route took off (`gateway.routed`); negative where it cost more.
    `embed_nano`: what the encoder's time cost that looked for a kept answer.

    Every byte here is paid a million times: tokens are four bytes, and no index but that of time is kept up, for the
    sums tell in which hours the rows of a key, team or model are.
    """

    __tablename__ = "request"
    id: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[float] = mapped_column(index=True)
    key_id: Mapped[str]
    team: Mapped[str]
    project: Mapped[str]
    user: Mapped[str | None]
    model: Mapped[str]
    provider: Mapped[str]
    model_used: Mapped[str]
    operation: Mapped[str]
    stream: Mapped[bool]
    source: Mapped[str]
    cache: Mapped[str]
    status: Mapped[int] = mapped_column(Integer)
    error: Mapped[str | None]
    prompt: Mapped[int] = mapped_column(_TOKENS)
    cached: Mapped[int] = mapped_column(_TOKENS)
    cache_write: Mapped[int] = mapped_column(_TOKENS)
    completion: Mapped[int] = mapped_column(_TOKENS)
    reasoning: Mapped[int] = mapped_column(_TOKENS)
    cost_nano: Mapped[int]
    saved_nano: Mapped[int]
    discount_nano: Mapped[int] = mapped_column(server_default="0")
    routed_nano: Mapped[int] = mapped_column(server_default="0")
    embed_nano: Mapped[int] = mapped_column(Integer, server_default="0")
    cost_status: Mapped[str] = mapped_column(String(16))
    similarity: Mapped[float | None]
    confidence: Mapped[float | None]
    ttft_ms: Mapped[float | None]
    tpot_ms: Mapped[float | None]
    total_ms: Mapped[float]
    overhead_ms: Mapped[float | None]
    attempts: Mapped[int] = mapped_column(Integer)
    finish: Mapped[str | None]
    complete: Mapped[bool]
    client_gone: Mapped[bool]
    tags: Mapped[dict[str, str] | None] = mapped_column(JSON(none_as_null=True))


class SavingCorrection(Base):
    """What feedback takes back of a saving, or gives back: a hit that was wrong saved nothing. Never changed.

    `id` is `<request id>#<n>`; `amount_nano` is added to what the request saved.
    """

    __tablename__ = "saving_correction"
    id: Mapped[str] = mapped_column(primary_key=True)
    request_id: Mapped[str] = mapped_column(index=True)
    at: Mapped[float] = mapped_column(index=True)
    team: Mapped[str]
    project: Mapped[str]
    model: Mapped[str]
    amount_nano: Mapped[int]
    reason: Mapped[str]
    actor: Mapped[str]


class Explain(Base):
    """Why a request went the way it went; kept for a few days."""

    __tablename__ = "explain"
    request_id: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[float] = mapped_column(index=True)
    data: Mapped[dict[str, object]] = mapped_column(JSON)
