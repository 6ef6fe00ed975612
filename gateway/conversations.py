"""Conversations that clients keep here: items in their order, which responses read and add to.

One row each among the kept responses (`gateway.responses`), with their owner, their time and their bound; its `created`
is when it was last added to, so that those nobody uses go first. Knows: rows. Does not know: HTTP, what items mean.
"""

import re
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

import msgspec
from msgspec import Struct
from sqlalchemy import ColumnElement, delete, insert, select, update
from sqlalchemy.engine import Connection

from gateway.call import Body, Principal
from gateway.db.models import KeptResponse
from gateway.db.session import Database
from gateway.errors import InvalidRequest, NotFound
from gateway.ids import uuid7
from gateway.kept_settings import KeptSettings

LARGEST = 16 << 20  # bytes of one conversation
READ = LARGEST - (1 << 20)  # of one that is to be answered: what comes of it is to have room
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, object]).decode
_decode_items = msgspec.json.Decoder(list[dict[str, object]]).decode
_is_name = re.compile(r"conv_[0-9a-f]{32}").fullmatch
_STATUS = "conversation"
Told = TypeVar("Told")


class Conversation(Struct, frozen=True):
    """`body` as clients are told it."""

    body: Body
    items: list[Body]


class Conversations:
    """`now`: wall-clock seconds. `tidy`: is told of everything a project has written, to keep it within its bound."""

    def __init__(
        self,
        database: Database,
        settings: KeptSettings,
        *,
        now: Callable[[], float],
        tidy: Callable[[Principal], Awaitable[None]],
    ) -> None:
        self._tidy = tidy
        self._database = database
        self._settings = settings
        self._now = now

    @property
    def keeps(self) -> bool:
        """Whether anything is kept at all."""
        return self._settings.responses_ttl > 0

    async def make(self, owner: Principal, items: list[Body], metadata: dict[str, str]) -> Body:
        """Raises InvalidRequest where it is too large, or nothing is kept."""
        if not self.keeps:
            raise InvalidRequest("Conversations are not kept here.", code="unsupported_operation")
        name, now = f"conv_{uuid7().replace('-', '')}", self._now()
        body: Body = {"id": name, "object": "conversation", "created_at": int(now), "metadata": metadata}
        row: Body = {"id": name, "team": owner.team, "project": owner.project, "status": _STATUS, "previous": None}
        row |= {"boot": None, **_written(Conversation(body, named(items, set())), now, self._settings.responses_ttl)}
        await self._database.transact(lambda connection: connection.execute(insert(KeptResponse).values(row)))
        await self._tidy(owner)
        return body

    async def get(self, owner: Principal, name: str) -> Conversation:
        """Raises NotFound, also for another project's."""
        found = await self._database.transact(_read, owner, name, self._now())
        if found is None:
            raise not_found(name)
        return found

    async def earlier(self, owner: Principal, name: str) -> list[Body]:
        """All that was said in it, to be answered. Raises NotFound, InvalidRequest where there is no room for more."""
        found = await self._database.transact(_read, owner, name, self._now())
        if found is None:
            raise not_found(name, "conversation")
        items = found.items
        if len(_encode(items)) > READ:
            raise _too_long()
        return items

    async def describe(self, owner: Principal, name: str, metadata: dict[str, str]) -> Body:
        """Other metadata. Raises NotFound."""

        def changed(found: Conversation) -> tuple[Conversation, Body]:
            body = {**found.body, "metadata": metadata}
            return Conversation(body, found.items), body

        return await self._change(owner, name, changed)

    async def add(self, owner: Principal, name: str, items: list[Body]) -> list[Body]:
        """At its end, all of them at once; as they are called now. Raises NotFound, InvalidRequest."""

        def changed(found: Conversation) -> tuple[Conversation, list[Body]]:
            more = named(items, {str(item.get("id")) for item in found.items})
            return Conversation(found.body, [*found.items, *more]), more

        return await self._change(owner, name, changed)

    async def remove(self, owner: Principal, name: str, item_id: str) -> Body:
        """One item. Raises NotFound."""

        def changed(found: Conversation) -> tuple[Conversation, Body]:
            left = [item for item in found.items if item.get("id") != item_id]
            if len(left) == len(found.items):
                raise no_item(item_id)
            return Conversation(found.body, left), found.body

        return await self._change(owner, name, changed)

    async def delete(self, owner: Principal, name: str) -> None:
        """Raises NotFound."""
        await self.get(owner, name)
        async with self._database.begin() as connection:
            await connection.execute(delete(KeptResponse).where(_own(owner, name)))

    async def _change(
        self, owner: Principal, name: str, change: Callable[[Conversation], tuple[Conversation, Told]]
    ) -> Told:
        """Of two at once none is lost: the row is held meanwhile."""

        def work(connection: Connection) -> Told:
            now = self._now()
            found = _read(connection, owner, name, now, hold=True)
            if found is None:
                raise not_found(name)
            made, told = change(found)
            values = _written(made, now, self._settings.responses_ttl)
            connection.execute(update(KeptResponse).where(_own(owner, name)).values(values))
            return told

        told = await self._database.transact(work)
        await self._tidy(owner)
        return told


def named(items: list[Body], taken: set[str]) -> list[Body]:
    """Every item with a name of its own, by which it is found and removed; that of the client where it is one."""
    found: list[Body] = []
    for item in items:
        name = item.get("id")
        of_its_call = item.get("type") == "local_shell_call_output"
        if not isinstance(name, str) or not name or (name in taken and not of_its_call):
            name = f"item_{uuid7().replace('-', '')}"
        taken.add(name)
        found.append({**item, "id": name})
    return found


def not_found(name: str, param: str = "id") -> NotFound:
    """There is none, or it is another project's."""
    return NotFound(f"Conversation with id '{name[:100]}' not found.", param=param, code="conversation_not_found")


def no_item(item_id: str) -> NotFound:
    """It holds no such item."""
    return NotFound(f"Item with id '{item_id[:100]}' not found.", param="item_id", code="item_not_found")


def _too_long() -> InvalidRequest:
    message = "This conversation has grown too long: remove items from it, or begin another one."
    return InvalidRequest(message, param="conversation", code="conversation_too_long")


def _written(made: Conversation, now: float, ttl: float) -> Body:
    """Raises InvalidRequest where it is too large."""
    body, items = _encode(made.body), _encode(made.items)
    if (size := len(body) + len(items)) > LARGEST:
        raise _too_long()
    return {"body": body, "items": items, "size": size, "created": now, "expires": now + ttl}


def _own(owner: Principal, name: str) -> ColumnElement[bool]:
    return (KeptResponse.team == owner.team) & (KeptResponse.project == owner.project) & (KeptResponse.id == name)


def _read(
    connection: Connection, owner: Principal, name: str, now: float, *, hold: bool = False
) -> Conversation | None:
    """`hold`: nobody else changes it before this transaction ends."""
    if not _is_name(name):
        return None
    mine = select(KeptResponse.body, KeptResponse.items).where(_own(owner, name), KeptResponse.expires > now)
    row = connection.execute(mine.with_for_update() if hold else mine).first()
    return None if row is None else Conversation(_decode(cast("bytes", row.body)), _decode_items(row.items))
