"""The rows behind keys: reading and writing `api_key`, `team` and `project`.

Knows: SQL for keys. Does not know: secrets (only their stored form), roles' meaning, HTTP.
"""

from typing import Any, cast

from msgspec import Struct
from sqlalchemy import insert, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway import keyform
from gateway.call import Role
from gateway.db.models import ApiKey, Project, Team
from gateway.db.session import Also, Database, Dialect, nothing
from gateway.ledger.balances import insert_once


class KeyRow(Struct, frozen=True, kw_only=True):
    """One key as stored. `hash`: 32 bytes of `keyform.stored_form`. Times in seconds since the epoch.

    `old_hash`: the secret before the last rotation, good until `old_until`.
    """

    id: str
    name: str
    hash: bytes
    team: str
    project: str
    role: Role
    created: float
    models: frozenset[str] | None = None
    expires: float | None = None
    revoked: float | None = None
    last_used: float | None = None
    old_hash: bytes | None = None
    old_until: float | None = None

    @property
    def prefix(self) -> str:
        """The public beginning of the key, enough for a person to recognise it."""
        return f"{keyform.PREFIX}{self.id}"

    def unusable(self, now: float) -> str | None:
        """None while the key works, else why not, as the end of a sentence."""
        if self.revoked is not None:
            return "has been revoked"
        if self.expires is not None and self.expires <= now:
            return "has expired"
        return None


class KeyRows:
    """Each method is one short transaction. When a key was last used is written with its requests, to a minute."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, key_id: str) -> KeyRow | None:
        """Asked once more where the connection had been cut meanwhile, by a restart of the database say: that shows
        only when it is used, the pool then forgets all that are older, and nobody should be refused for it.
        """
        try:
            return await self._find(key_id)
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
        return await self._find(key_id)

    async def _find(self, key_id: str) -> KeyRow | None:
        async with self._database.read() as connection:
            found = (await connection.execute(_WANTED.where(ApiKey.id == key_id))).first()
        return None if found is None else _row(found)

    async def all(self, team: str | None) -> list[KeyRow]:
        """Newest first; `team` None means every team's."""
        wanted = _WANTED.order_by(ApiKey.created.desc(), ApiKey.id)
        if team is not None:
            wanted = wanted.where(ApiKey.team == team)
        async with self._database.read() as connection:
            return [_row(row) for row in (await connection.execute(wanted)).all()]

    async def any(self) -> bool:
        async with self._database.read() as connection:
            return await connection.scalar(select(ApiKey.id).limit(1)) is not None

    async def add(self, row: KeyRow, also: Also = nothing) -> None:
        """Insert the key, and its team and project when they are new."""
        async with self._database.begin() as connection:
            if row.team:
                await _ensure_owner(connection, row)
            await connection.execute(
                insert(ApiKey).values(
                    id=row.id,
                    name=row.name,
                    prefix=row.prefix,
                    hash=row.hash.hex(),
                    team=row.team,
                    project=row.project,
                    role=row.role,
                    models=None if row.models is None else sorted(row.models),
                    created=row.created,
                    expires=row.expires,
                )
            )
            await connection.run_sync(also)

    async def put_hash(self, row: KeyRow, also: Also = nothing) -> None:
        """The secrets of a key, the new one and the one before it."""
        values = {
            "hash": row.hash.hex(),
            "old_hash": None if row.old_hash is None else row.old_hash.hex(),
            "old_until": row.old_until,
        }
        async with self._database.begin() as connection:
            await connection.execute(update(ApiKey).where(ApiKey.id == row.id).values(values))
            await connection.run_sync(also)

    async def revoke(self, key_id: str, at: float, also: Also = nothing) -> None:
        wanted = update(ApiKey).where(ApiKey.id == key_id, ApiKey.revoked.is_(None)).values(revoked=at)
        async with self._database.begin() as connection:
            await connection.execute(wanted)
            await connection.run_sync(also)


async def _ensure_owner(connection: AsyncConnection, row: KeyRow) -> None:
    """The team and the project of a new key, unless they are there; two makers at once do not disturb each other."""
    dialect = cast("Dialect", connection.dialect.name)
    team = {"id": row.team, "name": row.team, "created": row.created}
    await connection.execute(insert_once(dialect, Team).values(team))
    if row.project:
        project = {"id": f"{row.team}/{row.project}", "team": row.team, "name": row.project, "created": row.created}
        await connection.execute(insert_once(dialect, Project).values(project))


_WANTED = select(
    ApiKey.id,
    ApiKey.name,
    ApiKey.hash,
    ApiKey.team,
    ApiKey.project,
    ApiKey.role,
    ApiKey.models,
    ApiKey.created,
    ApiKey.expires,
    ApiKey.revoked,
    ApiKey.last_used,
    ApiKey.old_hash,
    ApiKey.old_until,
)


def _row(found: Any) -> KeyRow:
    return KeyRow(
        id=found.id,
        name=found.name,
        hash=bytes.fromhex(found.hash),
        team=found.team,
        project=found.project,
        role=cast("Role", found.role),
        models=None if found.models is None else frozenset(found.models),
        created=found.created,
        expires=found.expires,
        revoked=found.revoked,
        last_used=found.last_used,
        old_hash=None if found.old_hash is None else bytes.fromhex(found.old_hash),
        old_until=found.old_until,
    )
