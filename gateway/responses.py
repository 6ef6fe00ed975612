"""Responses that clients come back to: kept whole, continued, listed item by item, made in the background, deleted.

A project's own, for a time, and bounded in all: the oldest go first. Knows: rows and chains of them, and that what ends
a response ends its stream (`gateway.response_events`). Does not know: HTTP, dialects, how a response is made.
"""

import re
from collections.abc import Callable, Sequence
from typing import cast

import msgspec
import structlog
from msgspec import Struct
from sqlalchemy import ColumnElement, delete, func, insert, select, update
from sqlalchemy.engine import Connection

from gateway import response_events as streams
from gateway.aftermath import closed
from gateway.call import Body, Principal
from gateway.conversations import Conversations
from gateway.db.models import KeptResponse
from gateway.db.session import UNREACHABLE, Database
from gateway.errors import InvalidRequest, NotFound
from gateway.kept_settings import KeptSettings

log = structlog.get_logger("nearhit.responses")

LARGEST = 16 << 20  # bytes of one response with what it was asked
_LONGEST_CHAIN = 256
_LARGEST_CHAIN = 32 << 20
_COUNT_EVERY = 32  # responses of a project, until it is seen whether it keeps too much
_MOST_SWEPT = 200
_LOST = "The gateway stopped while it made this response."
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, object]).decode
_decode_items = msgspec.json.Decoder(list[dict[str, object]]).decode
# What a response is ever called here; a database is not asked about anything else (PostgreSQL's texts hold no NUL).
_is_name = re.compile(r"resp_[0-9A-Za-z_.-]{1,200}").fullmatch
_ASKED = "item_"  # how the names begin that what a client has sent without one is given


class Kept(Struct, frozen=True, kw_only=True):
    """One response. `body` as the client was told it, `items` as it asked. `streamed`: it was made to be followed."""

    id: str
    previous: str | None
    status: str
    body: bytes
    items: bytes
    boot: str | None
    streamed: bool | None = None

    @property
    def response(self) -> Body:
        return _decode(self.body)

    @property
    def asked(self) -> list[Body]:
        return _decode_items(self.items)


class _Name(Struct, gc=False):
    """Of an item its name alone; it is the client's own where it gave one, whatever that is."""

    id: object = None


class _Output(Struct, gc=False):
    """Of a response its items alone."""

    output: list[msgspec.Raw] = []


_decode_name = msgspec.json.Decoder(_Name).decode
_decode_output = msgspec.json.Decoder(_Output).decode
_decode_raw = msgspec.json.Decoder(list[msgspec.Raw]).decode
_COLUMNS = [getattr(KeptResponse, name) for name in Kept.__struct_fields__]


class Responses:
    """`boot`: this process's life in the ledger; `now`: wall-clock seconds."""

    def __init__(self, database: Database, boot: str, settings: KeptSettings, *, now: Callable[[], float]) -> None:
        self._database = database
        self._boot = boot
        self._settings = settings
        self._now = now
        self._fresh: dict[tuple[str, str], int] = {}
        self.conversations = Conversations(database, settings, now=now, tidy=self._tidy)

    @property
    def keeps(self) -> bool:
        """Whether anything is kept at all."""
        return self._settings.responses_ttl > 0

    async def put(
        self, owner: Principal, response: Body, items: list[Body], *, background: bool = False, announced: bytes = b""
    ) -> bool:
        """Keep it, and what it continues as long as it; whether that was possible.

        `announced`: the first events, of one that is to be followed while it is made.
        """
        body, asked = _encode(response), _encode(numbered(items, str(response["id"])))
        if len(body) + len(asked) > LARGEST:
            return False
        row = {"id": response["id"], "team": owner.team, "project": owner.project, "status": response["status"]}
        row |= {"previous": response.get("previous_response_id"), "body": body, "items": asked}
        row |= {"size": len(body) + len(asked), "boot": self._boot if background else None}
        row |= {"streamed": True if announced else None}
        ttl = self._settings.responses_ttl
        try:
            await self._database.transact(_put, row, _sources(items), self._now(), ttl, announced)
            await self._tidy(owner)
        except UNREACHABLE as error:
            log.warning("a response could not be kept", error=repr(error)[:200])
            return False
        return True

    async def get(self, owner: Principal, response_id: str) -> Kept:
        """Raises NotFound, also for another project's response."""
        found = await self._database.transact(_get, owner, response_id, self._now())
        if found is None:
            raise NotFound(f"Response with id '{response_id[:100]}' not found.", param="id", code="response_not_found")
        return found

    async def earlier(self, owner: Principal, response_id: str) -> list[Body]:
        """The whole conversation up to a response, in order. Raises InvalidRequest where some of it is not there."""
        chain = await self._database.transact(_chain, owner, response_id, self._now())
        if chain is None:
            raise not_found(response_id)
        if chain[-1].status not in ("completed", "incomplete"):
            message = f"Previous response with id '{response_id[:100]}' is {chain[-1].status}."
            raise InvalidRequest(message, param="previous_response_id", code="invalid_value")
        found: list[Body] = []
        for kept in chain:
            response = kept.response
            if response.get("conversation"):
                message = "That response is a part of a conversation: continue with 'conversation'."
                raise InvalidRequest(message, param="previous_response_id", code="invalid_value")
            found += [*kept.asked, *cast("list[Body]", response["output"])]
        return found

    async def referred(self, owner: Principal, given: list[object]) -> list[object]:
        """What a client has sent, with the items that it only names. Raises InvalidRequest for one that is not here."""
        names = {index: name for index, item in enumerate(given) if (name := _referred(item)) is not None}
        if not names:
            return given
        raw = await self._named(owner, set(names.values()))
        size = 0
        for index, name in names.items():
            if name not in raw:
                message = f"Item with id '{name[:100]}' not found. Send the item itself, or 'previous_response_id'."
                raise InvalidRequest(message, param=f"input[{index}].id", code="item_not_found")
            size += len(raw[name])  # once for each place: that often it is read, sent and kept
            _bound(0, size, "input")
        items = {name: _decode(item) for name, item in raw.items()}
        return [items[names[index]] if index in names else item for index, item in enumerate(given)]

    async def _named(self, owner: Principal, names: set[str]) -> dict[str, msgspec.Raw]:
        """The items of these names that are here. What stands beside them in their responses is not kept in mind."""
        wanted: dict[tuple[str, bool], set[str]] = {}
        for name in names:
            wanted.setdefault((_of_response(name), name.startswith(_ASKED)), set()).add(name)
        found: dict[str, msgspec.Raw] = {}
        seen = 0
        for count, ((response_id, asked), those) in enumerate(wanted.items(), 1):
            _bound(count, seen, "input")
            told = await self._database.transact(_read, owner, response_id, self._now(), asked)
            seen += len(told)
            # A name is no string where a client chose it; such an item cannot be named.
            items = ((_decode_name(item).id, item) for item in _decode_parts(told, asked=asked))
            found |= {name: item.copy() for name, item in items if isinstance(name, str) and name in those}
        return found

    async def delete(self, owner: Principal, response_id: str) -> None:
        """Raises NotFound."""
        await self.get(owner, response_id)
        await self._database.transact(_forget, (_own(owner), KeptResponse.id == response_id))

    async def cancel(self, owner: Principal, response_id: str) -> Kept:
        """Stop one that is made in the background. Raises NotFound, InvalidRequest."""
        kept = await self.get(owner, response_id)
        if kept.response.get("background") is not True:
            message = "Cannot cancel a synchronous response. It has to be made with 'background' set to true."
            raise InvalidRequest(message, param="response_id", code="invalid_value")
        if kept.status in streams.UNDER_WAY:
            told = {**kept.response, "status": "cancelled"}
            mine = _own(owner) & KeptResponse.boot.is_not(None)
            await self._database.transact(_end, mine, told, self._now())
        return await self.get(owner, response_id)

    async def begun(self, response: Body) -> None:
        """One that was queued is being made from now on, unless it was cancelled or deleted meanwhile."""
        told = _encode({**response, "status": "in_progress"})
        mine = update(KeptResponse).where(
            KeptResponse.id == response["id"], KeptResponse.boot == self._boot, KeptResponse.status == "queued"
        )
        values: Body = {"status": "in_progress", "body": told, "size": func.length(KeptResponse.items) + len(told)}

        def work(connection: Connection) -> None:
            connection.execute(mine.values(values))

        await self._database.transact(work)

    async def finish(self, response: Body, rest: streams.Writing | None = None) -> None:
        """One that was made in the background is done, unless it was cancelled or deleted meanwhile.

        `rest`: the last of its events, where it is streamed.
        """

        def work(connection: Connection) -> None:
            now = self._now()
            if _end(connection, KeptResponse.boot == self._boot, response, now, told=rest is not None) and rest:
                streams.append(connection, rest, self._settings.project_responses)
                streams.end(connection, rest.id, now)

        await self._database.transact(work)

    async def settle(self, owner: Principal, response_id: str) -> None:
        """If it is over, its stream says so, whoever ended it: also a version that knows no streams."""

        def work(connection: Connection) -> None:
            kept = _get(connection, owner, response_id, self._now())
            if kept is None:
                streams.drop_of(connection, [response_id])
            elif kept.status not in streams.UNDER_WAY:
                streams.conclude(connection, kept.response, self._now())

        await self._database.transact(work)

    async def wanted(self, response_id: str) -> bool:
        """Whether one that is being made here still should be."""
        mine = select(KeptResponse.boot).where(KeptResponse.id == response_id)
        async with self._database.read() as connection:
            return await connection.scalar(mine) == self._boot

    async def sweep(self) -> int:
        """Away with what has expired; answers how many responses."""
        while await self._database.transact(streams.sweep, self._now()):
            pass
        return await self._database.transact(_drop, KeptResponse.expires <= self._now())

    async def _tidy(self, owner: Principal) -> None:
        who = (owner.team, owner.project)
        self._fresh[who] = self._fresh.get(who, 0) + 1
        if self._fresh[who] >= _COUNT_EVERY or len(self._fresh) > _MOST_SWEPT:
            self._fresh.clear()
            await self._database.transact(_shrink, owner, self._settings.project_responses)


def not_found(response_id: str) -> InvalidRequest:
    """A conversation that cannot be continued."""
    message = f"Previous response with id '{response_id[:100]}' not found."
    return InvalidRequest(message, param="previous_response_id", code="previous_response_not_found")


def numbered(items: list[Body], response_id: str) -> list[Body]:
    """Every item with an id, so that they can be listed page by page."""
    name = response_id.removeprefix("resp_")
    return [item if item.get("id") else {**item, "id": f"{_ASKED}{name}_{n}"} for n, item in enumerate(items)]


def refers(given: object) -> bool:
    """Whether some of what a client has sent is only named."""
    return isinstance(given, list) and any(_referred(item) is not None for item in cast("list[object]", given))


def _referred(item: object) -> str | None:
    """The id of an item that is only named; the type may be left out there."""
    if not isinstance(item, dict):
        return None
    told = cast("Body", item)
    name, kind = told.get("id"), told.get("type")
    is_name = kind == "item_reference" or (kind is None and "role" not in told)
    return name if is_name and isinstance(name, str) else None


def _of_response(name: str) -> str:
    """Whose item it is: ids of ours say it (`msg_0198…_2`)."""
    return f"resp_{re.sub(r'^[a-z]+_|_[0-9]+$', '', name)}"


def _decode_parts(told: bytes, *, asked: bool) -> list[msgspec.Raw]:
    """The items one by one, unread: nearly all of them nobody has named."""
    if not told:
        return []
    return _decode_raw(told) if asked else _decode_output(told).output


def _bound(count: int, size: int, param: str) -> None:
    if count > _LONGEST_CHAIN or size > _LARGEST_CHAIN:
        message = f"This conversation has grown too long to be continued by '{param}'."
        raise InvalidRequest(message, param=param, code="conversation_too_long")


def _own(owner: Principal) -> ColumnElement[bool]:
    return (KeptResponse.team == owner.team) & (KeptResponse.project == owner.project)


def _sources(items: list[Body]) -> list[str]:
    """The responses whose items these are, by their names; the latest of them where they are many."""
    names = {_of_response(name): None for item in reversed(items) if isinstance(name := item.get("id"), str)}
    return list(filter(_is_name, names))[:_LONGEST_CHAIN]


def _put(connection: Connection, row: Body, sources: list[str], now: float, ttl: float, announced: bytes) -> None:
    """What it continues is kept as long as it, and so is what its items may be named by again."""
    connection.execute(insert(KeptResponse).values({**row, "created": now, "expires": now + ttl}))
    if announced:
        streams.begin(connection, row, announced, now)
    if sources:
        mine = (KeptResponse.team == row["team"]) & (KeptResponse.project == row["project"])
        named = update(KeptResponse).where(mine, KeptResponse.id.in_(sources), KeptResponse.expires > now)
        connection.execute(named.values(expires=now + ttl))
    ids: list[str] = []
    previous = cast("str | None", row["previous"])
    while previous is not None and len(ids) < _LONGEST_CHAIN:
        ids.append(previous)
        previous = connection.execute(select(KeptResponse.previous).where(KeptResponse.id == previous)).scalar()
    if ids:
        connection.execute(update(KeptResponse).where(KeptResponse.id.in_(ids)).values(expires=now + ttl))


def _get(connection: Connection, owner: Principal, response_id: str, now: float) -> Kept | None:
    if not _is_name(response_id):
        return None
    mine = select(*_COLUMNS).where(_own(owner), KeptResponse.id == response_id, KeptResponse.expires > now)
    row = connection.execute(mine).first()
    if row is None:
        return None
    kept = Kept(**{name: getattr(row, name) for name in Kept.__struct_fields__})
    if kept.boot is None or not closed(connection, kept.boot):
        return kept
    told = {**kept.response, "status": "failed", "error": {"code": "server_error", "message": _LOST}}
    _end(connection, KeptResponse.boot == kept.boot, told, now)
    return msgspec.structs.replace(kept, status="failed", body=_encode(told), boot=None)


def _end(connection: Connection, mine: ColumnElement[bool], response: Body, now: float, *, told: bool = False) -> bool:
    """It is over as `response` says, if it still is as `mine` says. `told`: its stream gets another last event."""
    body = _encode(response)
    values: Body = {"status": response["status"], "body": body, "boot": None}
    values["size"] = func.length(KeptResponse.items) + len(body)
    was = update(KeptResponse).where(KeptResponse.id == response["id"], mine)
    if not connection.execute(was.values(values)).rowcount:
        return False
    if not told:
        streams.conclude(connection, response, now)
    return True


def _read(connection: Connection, owner: Principal, response_id: str, now: float, asked: bool) -> bytes:
    """A response, or what it was asked with, which holds the whole conversation before it; nothing if not here."""
    if not _is_name(response_id):
        return b""
    column = KeptResponse.items if asked else KeptResponse.body
    mine = select(column).where(_own(owner), KeptResponse.id == response_id, KeptResponse.expires > now)
    return connection.execute(mine).scalar() or b""


def _chain(connection: Connection, owner: Principal, response_id: str, now: float) -> list[Kept] | None:
    """From the first to this one; None where one of them is not there (any more)."""
    chain: list[Kept] = []
    size, name = 0, cast("str | None", response_id)
    while name is not None:
        kept = _get(connection, owner, name, now)
        if kept is None:
            return None
        chain.append(kept)
        size += len(kept.body) + len(kept.items)
        _bound(len(chain), size, "previous_response_id")
        name = kept.previous
    return chain[::-1]


def _shrink(connection: Connection, owner: Principal, most: int) -> None:
    """The oldest give way, and so do the oldest events."""
    streams.trim(connection, owner, most)
    sizes = select(func.coalesce(func.sum(KeptResponse.size), 0)).where(_own(owner))
    while int(connection.execute(sizes).scalar_one()) > most:
        oldest = select(KeptResponse.id).where(_own(owner)).order_by(KeptResponse.created).limit(_COUNT_EVERY)
        ids = [row.id for row in connection.execute(oldest)]
        _forget(connection, (KeptResponse.id.in_(ids),))


def _drop(connection: Connection, condition: ColumnElement[bool]) -> int:
    ids = [row.id for row in connection.execute(select(KeptResponse.id).where(condition).limit(_MOST_SWEPT))]
    if ids:
        _forget(connection, (KeptResponse.id.in_(ids),))
    return len(ids)


def _forget(connection: Connection, mine: Sequence[ColumnElement[bool]]) -> None:
    gone = connection.execute(delete(KeptResponse).where(*mine).returning(KeptResponse.id)).scalars()
    streams.drop_of(connection, list(gone))
