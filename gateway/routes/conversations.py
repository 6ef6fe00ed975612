"""`/v1/conversations`: make, read, describe, delete, and their items; with and without `/v1`.

Knows: OpenAI's paths and lists. Does not know: how conversations are kept, what responses make of them.
"""

from collections.abc import Callable
from typing import Any

from litestar import delete, get, post
from litestar.params import FromPath

from gateway.auth import Keyring
from gateway.body import decode_object, read_body
from gateway.conversations import Conversations, no_item
from gateway.dialects.conversations import ConversationChange, NewConversation, NewItems, shown, understood
from gateway.routes.asker import AnyRequest, after_of, asker, changer, limit_of, order_of
from gateway.routes.desks import desk
from gateway.settings import Server

_LISTED = 20
Json = dict[str, object]


class Desk:
    """`monotonic`: seconds that never go back."""

    def __init__(
        self, conversations: Conversations, keyring: Keyring, server: Server, *, monotonic: Callable[[], float]
    ) -> None:
        self._conversations = conversations
        self._keyring = keyring
        self._server = server
        self._monotonic = monotonic

    async def make(self, request: AnyRequest) -> Json:
        owner = await changer(self._keyring, request.scope)
        asked, items = understood(await self._body(request), NewConversation)
        return await self._conversations.make(owner, items, asked.metadata or {})

    async def get(self, request: AnyRequest, name: str) -> Json:
        return (await self._conversations.get(await asker(self._keyring, request.scope), name)).body

    async def describe(self, request: AnyRequest, name: str) -> Json:
        owner = await changer(self._keyring, request.scope)
        asked, _ = understood(await self._body(request), ConversationChange)
        return await self._conversations.describe(owner, name, asked.metadata or {})

    async def delete(self, request: AnyRequest, name: str) -> Json:
        await self._conversations.delete(await changer(self._keyring, request.scope), name)
        return {"id": name, "object": "conversation.deleted", "deleted": True}

    async def add(self, request: AnyRequest, name: str) -> Json:
        owner = await changer(self._keyring, request.scope)
        _, items = understood(await self._body(request), NewItems)
        added = await self._conversations.add(owner, name, items)
        return _page([shown(item) for item in added], more=False)

    async def list(self, request: AnyRequest, name: str) -> Json:
        owner = await asker(self._keyring, request.scope)
        limit, after, newest = limit_of(request, _LISTED), after_of(request), order_of(request)
        items = (await self._conversations.get(owner, name)).items
        if newest:
            items = items[::-1]
        names = [item["id"] for item in items]
        start = names.index(after) + 1 if after in names else 0
        return _page([shown(item) for item in items[start : start + limit]], more=len(items) > start + limit)

    async def item(self, request: AnyRequest, name: str, item_id: str) -> Json:
        found = (await self._conversations.get(await asker(self._keyring, request.scope), name)).items
        for item in found:
            if item["id"] == item_id:
                return shown(item)
        raise no_item(item_id)

    async def remove(self, request: AnyRequest, name: str, item_id: str) -> Json:
        return await self._conversations.remove(await changer(self._keyring, request.scope), name, item_id)

    async def _body(self, request: AnyRequest) -> Json:
        headers: Any = request.scope["headers"]
        limit, patience = self._server.max_body, self._server.body_timeout
        raw = await read_body(request.receive, headers, limit=limit, timeout=patience, monotonic=self._monotonic)
        return decode_object(raw) if raw else {}


def _page(data: list[Json], *, more: bool) -> Json:
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": more}


def route_handlers() -> list[Any]:
    """With and without `/v1`."""
    both: Any = {"tags": ["Data plane"], "status_code": 200}
    all_of, one = (["/v1/conversations", "/conversations"], _paths(""))
    items, item = _paths("/items"), _paths("/items/{item_id:str}")

    @post(all_of, summary="Make a conversation", **both)
    async def make_conversation(request: AnyRequest) -> Json:
        return await desk(Desk, request).make(request)

    @get(one, summary="A conversation", **both)
    async def get_conversation(request: AnyRequest, conversation_id: FromPath[str]) -> Json:
        return await desk(Desk, request).get(request, conversation_id)

    @post(one, summary="Describe a conversation", **both)
    async def describe_conversation(request: AnyRequest, conversation_id: FromPath[str]) -> Json:
        return await desk(Desk, request).describe(request, conversation_id)

    @delete(one, summary="Delete a conversation", **both)
    async def delete_conversation(request: AnyRequest, conversation_id: FromPath[str]) -> Json:
        return await desk(Desk, request).delete(request, conversation_id)

    @post(items, summary="Add items", **both)
    async def add_conversation_items(request: AnyRequest, conversation_id: FromPath[str]) -> Json:
        return await desk(Desk, request).add(request, conversation_id)

    @get(items, summary="Items of a conversation", **both)
    async def get_conversation_items(request: AnyRequest, conversation_id: FromPath[str]) -> Json:
        return await desk(Desk, request).list(request, conversation_id)

    @get(item, summary="One item", **both)
    async def get_conversation_item(
        request: AnyRequest, conversation_id: FromPath[str], item_id: FromPath[str]
    ) -> Json:
        return await desk(Desk, request).item(request, conversation_id, item_id)

    @delete(item, summary="Take an item out", **both)
    async def delete_conversation_item(
        request: AnyRequest, conversation_id: FromPath[str], item_id: FromPath[str]
    ) -> Json:
        return await desk(Desk, request).remove(request, conversation_id, item_id)

    return [
        *(make_conversation, get_conversation, describe_conversation, delete_conversation),
        *(add_conversation_items, get_conversation_items, get_conversation_item, delete_conversation_item),
    ]


def _paths(rest: str) -> list[str]:
    return [f"{base}/conversations/{{conversation_id:str}}{rest}" for base in ("/v1", "")]
