"""What was spent: entries that never change, contradictions, and the prices charges were made at."""

from sqlalchemy import Index, text, true
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import JSON

from gateway.db.models.base import Base

_HAS_CLASSES = text("classes IS NOT NULL")


class Entry(Base):
    """One terminal line per attempt (`id` = attempt id) or one correction (`attempt#adj.k`); never changed or deleted.

    `source` says what the amount rests on: provider, engine, estimated, upper_bound, void, adjust. `windows` is the
    sorted JSON list of window ids it was drawn from, fixed at admission. `digest` tells a repeat from a contradiction.
    `classes`: `[cache_write_1h, audio_in, audio_out, image_in, image_out]` as JSON, null in nearly every row; with
    `web_searches, file_searches, unpriced` behind them where there were any.
    `asked`: the model's name in the request; `tags`: JSON list of `name=value`; `charged` False: the gateway's own,
    which falls under no budget of its key, user, project and team.
    """

    __tablename__ = "entry"
    # sums of a month read the first alone, reports of searches the second
    __table_args__ = (
        Index("ix_entry_admitted", "admitted", "source", "amount_nano"),
        # in PostgreSQL of the same rows (migration 0019); to say so here would load its dialect where SQLite is used
        Index("ix_entry_classes", "admitted", sqlite_where=_HAS_CLASSES),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    request_id: Mapped[str] = mapped_column(index=True)
    admitted: Mapped[float]
    at: Mapped[float]
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
    classes: Mapped[str | None]
    asked: Mapped[str | None]
    tags: Mapped[str | None]
    charged: Mapped[bool] = mapped_column(server_default=true())


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
    `terms`: the whole price (`policies.money.Price`) where it has more than these columns, else null.
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
    terms: Mapped[dict[str, object] | None] = mapped_column(JSON(none_as_null=True))


class PriceOverride(Base):
    """A price set by the operator, in force from `effective_from` until `effective_until` or a later row takes over.

    `terms` as in `PriceVersion`. `service`: percent of it by service tier (`batch`, `priority`), where it differs.
    `basis`: the hour and the speeds that an engine's price was made from.
    """

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
    effective_until: Mapped[float | None]
    terms: Mapped[dict[str, object] | None] = mapped_column(JSON(none_as_null=True))
    service: Mapped[dict[str, str] | None] = mapped_column(JSON(none_as_null=True))
    basis: Mapped[dict[str, object] | None] = mapped_column(JSON(none_as_null=True))
