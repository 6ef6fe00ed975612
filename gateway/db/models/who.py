"""Who: teams, projects, keys, dashboard sessions, the audit log, and small facts about this database."""

from sqlalchemy import BigInteger, ForeignKey, Integer
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import JSON

from gateway.db.models.base import Base


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
    """`hash` is an HMAC of the secret under a pepper that is not in this database. `models` None: all of them.

    `old_hash`: the secret before the last rotation, which works on until `old_until`.
    """

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
    old_hash: Mapped[str | None]
    old_until: Mapped[float | None]


class LoginSession(Base):
    """A dashboard session. `id` is the digest of the cookie's token, never the token; `csrf` likewise.

    `team` is null where `actor` is a key, which says so itself; else the person's team, empty for every team.
    `secret` marks which of the key's secrets opened it (`Keyring.sign_in`); null for persons.
    """

    __tablename__ = "session"
    id: Mapped[str] = mapped_column(primary_key=True)
    actor: Mapped[str]
    role: Mapped[str]
    csrf: Mapped[str]
    created: Mapped[float]
    seen: Mapped[float]
    expires: Mapped[float] = mapped_column(index=True)
    team: Mapped[str | None]
    secret: Mapped[str | None]


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
