"""Every table, typed.

Knows: columns, keys, checks. Does not know: who writes them, dialects beyond what SQLAlchemy hides, migrations.

Amounts are BIGINT nano-USD (10^-9), prices BIGINT pico-USD per token, instants seconds since the epoch (UTC) as
doubles, window bounds whole seconds. Ids are text made before the row is written, so that a retried write is a no-op.
"""

from typing import Any, ClassVar

from sqlalchemy import BigInteger, CheckConstraint, Double, ForeignKey, Index, Integer, MetaData, String, Text, false
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import JSON, TypeEngine

_TAKEN = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """`int` is BIGINT, `float` a double, `str` unbounded text."""

    metadata = MetaData(naming_convention=_TAKEN)
    type_annotation_map: ClassVar[dict[Any, type[TypeEngine[Any]]]] = {int: BigInteger, float: Double, str: Text}


# -- who -----------------------------------------------------------------------------------------------------------


class Team(Base):
    """`id` is the short name that keys and scopes use."""

    __tablename__ = "team"
    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    created: Mapped[float]


class Project(Base):
    """`id` is `<team>/<name>`."""

    __tablename__ = "project"
    id: Mapped[str] = mapped_column(primary_key=True)
    team: Mapped[str] = mapped_column(ForeignKey("team.id"), index=True)
    name: Mapped[str]
    created: Mapped[float]


class ApiKey(Base):
    """`hash` is an HMAC of the secret under a pepper that is not in this database. `models` None: all of them."""

    __tablename__ = "api_key"
    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    prefix: Mapped[str]
    hash: Mapped[str] = mapped_column(unique=True)
    team: Mapped[str]
    project: Mapped[str]
    role: Mapped[str]
    models: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    created: Mapped[float]
    expires: Mapped[float | None]
    revoked: Mapped[float | None]
    last_used: Mapped[float | None]


class LoginSession(Base):
    """A dashboard session. `id` is the digest of the cookie's token, never the token; `csrf` likewise."""

    __tablename__ = "session"
    id: Mapped[str] = mapped_column(primary_key=True)
    actor: Mapped[str]
    role: Mapped[str]
    csrf: Mapped[str]
    created: Mapped[float]
    seen: Mapped[float]
    expires: Mapped[float] = mapped_column(index=True)


class Audit(Base):
    """Who changed what. `digest` chains each row to the one before it; `before` and `after` hold no secrets."""

    __tablename__ = "audit"
    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer(), "sqlite"), primary_key=True)
    at: Mapped[float] = mapped_column(index=True)
    actor: Mapped[str]
    action: Mapped[str]
    target: Mapped[str]
    before: Mapped[dict[str, object] | None] = mapped_column(JSON(none_as_null=True))
    after: Mapped[dict[str, object] | None] = mapped_column(JSON(none_as_null=True))
    ip: Mapped[str | None]
    digest: Mapped[str]


class Setting(Base):
    """Small facts about this database, such as the check value of the pepper it was filled under."""

    __tablename__ = "setting"
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str]


# -- limits --------------------------------------------------------------------------------------------------------


class BudgetRow(Base):
    """One limit for one scope. Retired, never deleted: windows and entries refer to it."""

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


class BudgetWindow(Base):
    """The balance of one budget in one period. `id` is `scope|window|start|end`; a new period is a new row.

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


class BudgetAlert(Base):
    """A threshold that was crossed, once per window."""

    __tablename__ = "budget_alert"
    window_id: Mapped[str] = mapped_column(primary_key=True)
    threshold: Mapped[float] = mapped_column(primary_key=True)
    spent_nano: Mapped[int]
    at: Mapped[float]


class Boot(Base):
    """One life of one gateway process. `closed` is set by a clean stop or by whoever recovers its journal.

    `journalled` False: it kept no journal, so there is nothing to wait for once it is silent.
    """

    __tablename__ = "boot"
    id: Mapped[str] = mapped_column(primary_key=True)
    host: Mapped[str]
    journalled: Mapped[bool]
    started: Mapped[float]
    seen: Mapped[float]
    closed: Mapped[float | None]


class Lease(Base):
    """The part of a window that one boot may spend from memory."""

    __tablename__ = "lease"
    __table_args__ = (CheckConstraint("consumed_nano >= 0 AND granted_nano >= consumed_nano", name="consumed"),)
    boot: Mapped[str] = mapped_column(primary_key=True)
    window_id: Mapped[str] = mapped_column(primary_key=True, index=True)
    granted_nano: Mapped[int]
    consumed_nano: Mapped[int]
    closed: Mapped[bool] = mapped_column(server_default=false())


# -- what was spent ------------------------------------------------------------------------------------------------


class Entry(Base):
    """One terminal line per attempt (`id` = attempt id) or one correction (`attempt#adj.k`); never changed or deleted.

    `source` says what the amount rests on: provider, engine, estimated, upper_bound, void, adjust. `windows` is the
    sorted JSON list of window ids it was drawn from, fixed at admission. `digest` tells a repeat from a contradiction.
    """

    __tablename__ = "entry"
    id: Mapped[str] = mapped_column(primary_key=True)
    request_id: Mapped[str] = mapped_column(index=True)
    admitted: Mapped[float]
    at: Mapped[float] = mapped_column(index=True)
    boot: Mapped[str]
    windows: Mapped[str]
    team: Mapped[str]
    project: Mapped[str]
    key_id: Mapped[str]
    user: Mapped[str | None]
    provider: Mapped[str]
    model: Mapped[str]
    provider_id: Mapped[str | None]
    price: Mapped[str]
    prompt: Mapped[int]
    cached: Mapped[int]
    cache_write: Mapped[int]
    completion: Mapped[int]
    reasoning: Mapped[int]
    amount_nano: Mapped[int]
    reserved_nano: Mapped[int]
    source: Mapped[str]
    ended: Mapped[str]
    note: Mapped[str | None]
    digest: Mapped[str]


class EntryConflict(Base):
    """A second, different terminal line for the same attempt: kept for a person, never applied."""

    __tablename__ = "entry_conflict"
    entry_id: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[float]
    amount_nano: Mapped[int]
    source: Mapped[str]


class PriceVersion(Base):
    """Each price a charge was ever made at, so that any charge can be recomputed. Rows never change.

    `tiers`: `[start, input, output, cached, cache_write]` in pico-USD, for prompts longer than `start` tokens.
    """

    __tablename__ = "price_version"
    id: Mapped[str] = mapped_column(primary_key=True)
    input_pico: Mapped[int]
    output_pico: Mapped[int]
    cached_pico: Mapped[int]
    cache_write_pico: Mapped[int]
    request_pico: Mapped[int]
    tiers: Mapped[list[list[int]]] = mapped_column(JSON)
    status: Mapped[str]
    first_used: Mapped[float]


class PriceOverride(Base):
    """A price set by the operator, in force from `effective_from` until the next row of the same provider and model."""

    __tablename__ = "price_override"
    __table_args__ = (Index("uq_price_override_model", "provider", "model", "effective_from", unique=True),)
    id: Mapped[str] = mapped_column(primary_key=True)
    provider: Mapped[str]
    model: Mapped[str]
    input_pico: Mapped[int]
    output_pico: Mapped[int]
    cached_pico: Mapped[int]
    cache_write_pico: Mapped[int]
    request_pico: Mapped[int]
    status: Mapped[str]
    effective_from: Mapped[float]
    source: Mapped[str]
    actor: Mapped[str]
    created: Mapped[float]


# -- what happened -------------------------------------------------------------------------------------------------


class RequestRow(Base):
    """One row per request, answered, refused or broken off. `source` is upstream, exact, semantic, shared or none.

    `model` is the name asked for, `model_used` what answered. Durations in milliseconds.
    """

    __tablename__ = "request"
    __table_args__ = (Index("ix_request_team_at", "team", "at"), Index("ix_request_key_id_at", "key_id", "at"))
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
    prompt: Mapped[int]
    cached: Mapped[int]
    cache_write: Mapped[int]
    completion: Mapped[int]
    reasoning: Mapped[int]
    cost_nano: Mapped[int]
    saved_nano: Mapped[int]
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
