"""Files of projects: written piece by piece, seen by nobody before they are whole, gone when they expire.

Knows: rows, pieces, what a project may keep in all. Does not know: HTTP, what stands in a file.
"""

import re
from collections.abc import AsyncGenerator, Callable
from typing import Any

from msgspec import Struct
from sqlalchemy import Select, delete, func, insert, select, update
from sqlalchemy.engine import Connection

from gateway import pieces
from gateway.call import Principal
from gateway.db.models import StoredFile
from gateway.db.session import Database
from gateway.errors import InvalidRequest, NotFound
from gateway.ids import uuid7
from gateway.kept_settings import KeptSettings

PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
_LONGEST_NAME = 255
_ABANDONED = 86_400.0  # seconds after which a file that was never finished is thrown away
_MOST_SWEPT = 100
_is_name = re.compile(r"file-[0-9a-f]{32}").fullmatch  # a database is not asked about anything else


class File(Struct, frozen=True, kw_only=True):
    """Times in seconds since the epoch, `size` in bytes."""

    id: str
    name: str
    purpose: str
    size: int
    created: float
    expires: float | None

    def shown(self) -> dict[str, object]:
        """OpenAI's file object; what it does not have is left out, since strict clients refuse null there."""
        told: dict[str, object] = {
            "id": self.id,
            "object": "file",
            "bytes": self.size,
            "created_at": int(self.created),
            "filename": self.name,
            "purpose": self.purpose,
            "status": "processed",
        }
        return told if self.expires is None else {**told, "expires_at": int(self.expires)}


Room = tuple[Principal, int]
_COLUMNS = [getattr(StoredFile, name) for name in File.__struct_fields__]


class Files:
    """`now`: wall-clock seconds."""

    def __init__(self, database: Database, settings: KeptSettings, *, now: Callable[[], float]) -> None:
        self._database = database
        self._settings = settings
        self._now = now

    @property
    def max_file(self) -> int:
        return self._settings.max_file

    async def begin(self, owner: Principal, *, limited: bool = True) -> "Writing":
        """A place for a new file. Raises InvalidRequest where the project has no room left, if it is `limited`."""
        file_id = f"file-{uuid7().replace('-', '')}"
        if limited:
            await self._database.transact(_make_room, owner, self._settings.project_files)
        row = {"id": file_id, "team": owner.team, "project": owner.project, "name": "", "purpose": "", "size": 0}
        created = self._now()
        row |= {"created": created, "expires": None, "ready": False}
        async with self._database.begin() as connection:
            await connection.execute(insert(StoredFile).values(row))
        return Writing(self._database, file_id, created, (owner, self._settings.project_files) if limited else None)

    async def get(self, owner: Principal, file_id: str, param: str = "id") -> File:
        """Raises NotFound, also for another project's file. `param`: where its id was told."""
        if _is_name(file_id):
            async with self._database.read() as connection:
                row = (await connection.execute(_mine(owner, self._now()).where(StoredFile.id == file_id))).first()
            if row is not None:
                return _file(row)
        raise NotFound(f"No such File object: {file_id[:100]}", param=param, code="file_not_found")

    async def list(
        self, owner: Principal, *, after: str | None, limit: int, newest_first: bool, purpose: str | None
    ) -> list[File]:
        """One more than `limit`, where there is more. Ids begin with their time, so they are the order."""
        wanted = _mine(owner, self._now())
        if purpose is not None:
            wanted = wanted.where(StoredFile.purpose == purpose)
        if after is not None:
            wanted = wanted.where(StoredFile.id < after if newest_first else StoredFile.id > after)
        wanted = wanted.order_by(StoredFile.id.desc() if newest_first else StoredFile.id).limit(limit + 1)
        async with self._database.read() as connection:
            return [_file(row) for row in await connection.execute(wanted)]

    async def delete(self, owner: Principal, file_id: str) -> None:
        """Raises NotFound."""
        await self.get(owner, file_id)
        await self._database.transact(remove, [file_id])

    async def is_there(self, file_id: str) -> bool:
        """Whether it has been neither deleted nor swept; its content goes in the same moment."""
        async with self._database.read() as connection:
            return await connection.scalar(select(StoredFile.id).where(StoredFile.id == file_id)) is not None

    def content(self, file_id: str) -> AsyncGenerator[bytes, None]:
        return pieces.read(self._database, file_id)

    async def sweep(self) -> int:
        """Away with what has expired and what was never finished; answers how many."""
        return await self._database.transact(_sweep, self._now())


class Writing:
    """A file on its way in: `piece` after `piece`, then `finish`; or `abandon`. `room`: whose it has to fit into."""

    def __init__(self, database: Database, file_id: str, created: float, room: Room | None) -> None:
        self._database = database
        self._created = created
        self._room = room
        self.id = file_id
        self._count = 0
        self._size = 0

    async def piece(self, data: bytes) -> None:
        """Counts from now on, so that files that come at once share the room. Raises InvalidRequest."""
        await self._database.transact(self._grow, data)
        self._count += 1
        self._size += len(data)

    def _grow(self, connection: Connection, data: bytes) -> None:
        pieces.add(connection, self.id, [data], self._count)
        mine = update(StoredFile).where(StoredFile.id == self.id)
        connection.execute(mine.values(size=self._size + len(data)))
        if self._room is not None and _taken(connection, self._room[0]) > self._room[1]:
            raise InvalidRequest(
                f"With this file the project would keep more than the {self._room[1]:,} bytes that are allowed "
                "(kept.project_files). Delete some first.",
                code="storage_full",
            )

    async def write(self, data: bytes) -> None:
        """Any amount at once."""
        for piece in pieces.cut(data):
            await self.piece(piece)

    async def finish(self, name: str, purpose: str, lifetime: float | None, *, ready: bool = True) -> File:
        """From now on it can be seen, if `ready`. `lifetime` in seconds; None: until it is deleted."""
        expires = None if lifetime is None else self._created + lifetime
        values = {"name": name[:_LONGEST_NAME], "purpose": purpose, "expires": expires}
        done = update(StoredFile).where(StoredFile.id == self.id).values(**values, size=self._size, ready=ready)
        async with self._database.begin() as connection:
            await connection.execute(done)
            row = (await connection.execute(select(*_COLUMNS).where(StoredFile.id == self.id))).one()
        return _file(row)

    async def abandon(self) -> None:
        await self._database.transact(remove, [self.id])


def remove(connection: Connection, ids: list[str]) -> None:
    pieces.drop(connection, ids)
    connection.execute(delete(StoredFile).where(StoredFile.id.in_(ids)))


def _mine(owner: Principal, now: float) -> "Select[*tuple[Any, ...]]":
    own = (StoredFile.team == owner.team) & (StoredFile.project == owner.project)
    lasting = StoredFile.expires.is_(None) | (StoredFile.expires > now)
    return select(*_COLUMNS).where(own, StoredFile.ready.is_(True), lasting)


def _make_room(connection: Connection, owner: Principal, most: int) -> None:
    if (taken := _taken(connection, owner)) >= most:
        raise InvalidRequest(
            f"This project keeps {taken:,} bytes of files; {most:,} are allowed (kept.project_files). "
            "Delete some first.",
            code="storage_full",
        )


def _taken(connection: Connection, owner: Principal) -> int:
    """Bytes, of files on their way in as well."""
    own = (StoredFile.team == owner.team) & (StoredFile.project == owner.project)
    return int(connection.execute(select(func.coalesce(func.sum(StoredFile.size), 0)).where(own)).scalar_one())


def _sweep(connection: Connection, now: float) -> int:
    gone = (StoredFile.expires <= now) | (StoredFile.ready.is_(False) & (StoredFile.created <= now - _ABANDONED))
    ids = [row.id for row in connection.execute(select(StoredFile.id).where(gone).limit(_MOST_SWEPT))]
    if ids:
        remove(connection, ids)
    return len(ids)


def _file(row: object) -> File:
    return File(**{name: getattr(row, name) for name in File.__struct_fields__})
