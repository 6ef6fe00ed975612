"""What clients have kept here: files, batches with their lines, responses and their events, answers under a key.

`team` and `project` are whose it is: nobody else ever sees it. Does not know: shapes of the API, who runs a batch.
"""

from sqlalchemy import Index
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import JSON

from gateway.db.models.base import Base


class StoredPiece(Base):
    """A part of something long: of a file, an answer, a stream. `owner` is the id of the row that it belongs to."""

    __tablename__ = "stored_piece"
    owner: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    data: Mapped[bytes]


class StoredFile(Base):
    """A file. `ready` False: it is still being written, and nobody may see it. `expires` None: kept until deleted."""

    __tablename__ = "stored_file"
    __table_args__ = (Index("ix_stored_file_team_project_created", "team", "project", "created"),)
    id: Mapped[str] = mapped_column(primary_key=True)
    team: Mapped[str]
    project: Mapped[str]
    name: Mapped[str]
    purpose: Mapped[str]
    size: Mapped[int]
    created: Mapped[float]
    expires: Mapped[float | None] = mapped_column(index=True)
    ready: Mapped[bool]


class BatchRow(Base):
    """A batch. `owner`: the boot that runs it. `lines`: how many there are, once the input has been read; `succeeded`
    and `unsuccessful`: how many ended so, once all have.

    `key_id`: of the key it was made with, whose requests its lines are. `directives`: what its headers asked of each.
    `once`: the digest of the idempotency key it was made under, `fingerprint`: of what was asked with it.
    """

    __tablename__ = "batch"
    __table_args__ = (Index("ix_batch_team_project_created", "team", "project", "created"),)
    id: Mapped[str] = mapped_column(primary_key=True)
    team: Mapped[str]
    project: Mapped[str]
    key_id: Mapped[str]
    endpoint: Mapped[str]
    input_file: Mapped[str]
    output_file: Mapped[str | None]
    error_file: Mapped[str | None]
    window: Mapped[str]
    status: Mapped[str] = mapped_column(index=True)
    metadata_: Mapped[dict[str, str] | None] = mapped_column("metadata", JSON(none_as_null=True))
    errors: Mapped[list[dict[str, object]] | None] = mapped_column(JSON(none_as_null=True))
    directives: Mapped[dict[str, object]] = mapped_column(JSON)
    lines: Mapped[int]
    succeeded: Mapped[int]
    unsuccessful: Mapped[int]
    output_lifetime: Mapped[float]
    created: Mapped[float]
    expires: Mapped[float]
    in_progress: Mapped[float | None]
    finalizing: Mapped[float | None]
    completed: Mapped[float | None]
    failed: Mapped[float | None]
    expired: Mapped[float | None]
    cancelling: Mapped[float | None]
    cancelled: Mapped[float | None]
    owner: Mapped[str | None]
    once: Mapped[str | None] = mapped_column(unique=True)
    fingerprint: Mapped[str]


class BatchLine(Base):
    """One request of a batch. `state`: waiting, away, running, done, failed, expired or cancelled.

    `request_id` and `boot`: of the latest try, so that after a crash the ledger can say whether it was sent.
    `result`: the line of the output or of the error file; it goes when that is written. `part`: of the batch that is at
    a provider's own batch service, which it belongs to; `answer`: what came back from there.
    """

    __tablename__ = "batch_line"
    __table_args__ = (Index("ix_batch_line_batch_id_state", "batch_id", "state", "number"),)
    batch_id: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    custom_id: Mapped[str]
    request: Mapped[bytes | None]
    state: Mapped[str]
    request_id: Mapped[str | None]
    boot: Mapped[str | None]
    result: Mapped[bytes | None]
    part: Mapped[str | None]
    answer: Mapped[bytes | None]


class BatchPart(Base):
    """Lines of a batch that are one batch at a provider. `state`: planned, sending, away or back.

    `remote`: the provider's own id of it. `boot`: of the process that holds its money, or held it.
    """

    __tablename__ = "batch_part"
    id: Mapped[str] = mapped_column(primary_key=True)
    batch_id: Mapped[str] = mapped_column(index=True)
    provider: Mapped[str]
    model: Mapped[str]
    state: Mapped[str]
    remote: Mapped[str | None]
    boot: Mapped[str | None]


class KeptResponse(Base):
    """A response of the Responses API. `body` as the client was told it, `items` as it asked, both JSON.

    `boot` while it is being made in the background. `streamed`: its events are kept too, for a while.
    """

    __tablename__ = "kept_response"
    __table_args__ = (Index("ix_kept_response_team_project_created", "team", "project", "created"),)
    id: Mapped[str] = mapped_column(primary_key=True)
    team: Mapped[str]
    project: Mapped[str]
    previous: Mapped[str | None]
    status: Mapped[str]
    body: Mapped[bytes]
    items: Mapped[bytes]
    size: Mapped[int]
    created: Mapped[float]
    expires: Mapped[float] = mapped_column(index=True)
    boot: Mapped[str | None]
    streamed: Mapped[bool | None]


class ResponseStream(Base):
    """The events of a response that is made in the background, as far as they are written: pieces under the same id.

    A piece is numbered as the first event in it. `events`: the number of the next one. `ended`: the last one is there.
    A row of its own, because it changes several times a second while the response itself may be megabytes.
    """

    __tablename__ = "response_stream"
    __table_args__ = (Index("ix_response_stream_team_project_created", "team", "project", "created"),)
    id: Mapped[str] = mapped_column(primary_key=True)
    team: Mapped[str]
    project: Mapped[str]
    events: Mapped[int]
    size: Mapped[int]
    ended: Mapped[bool]
    created: Mapped[float]
    expires: Mapped[float] = mapped_column(index=True)


class OnceAnswer(Base):
    """The answer given under an idempotency key; `id` is the digest of whose key it is and the key itself.

    `status` None: it is being made by `boot`, or the answer was too large to keep (`done`).
    """

    __tablename__ = "once_answer"
    __table_args__ = (Index("ix_once_answer_key_id_created", "key_id", "created"),)
    id: Mapped[str] = mapped_column(primary_key=True)
    key_id: Mapped[str]
    fingerprint: Mapped[str]
    request_id: Mapped[str]
    boot: Mapped[str]
    created: Mapped[float]
    expires: Mapped[float] = mapped_column(index=True)
    done: Mapped[bool]
    status: Mapped[int | None]
    headers: Mapped[list[list[str]] | None] = mapped_column(JSON(none_as_null=True))
    size: Mapped[int]
