"""OpenAI's conversations: what a request about one holds, and how its items are told.

Knows: shapes. Does not know: where conversations are kept, HTTP.
"""

from typing import Annotated, TypeVar, cast

import msgspec
from msgspec import Meta, Struct

from gateway import wire
from gateway.call import Body
from gateway.dialects.responses_native import readable
from gateway.dialects.responses_request import items_of
from gateway.dialects.responses_shapes import AnyItem
from gateway.errors import InvalidRequest
from gateway.wire_shapes import Metadata

_MOST = 20  # items of one request
_WITH_STATUS = frozenset(
    ("message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning")
)


class NewConversation(Struct, gc=False):
    """POST /v1/conversations."""

    items: Annotated[list[AnyItem], Meta(max_length=_MOST)] | None = None
    metadata: Metadata = None


class ConversationChange(Struct, gc=False):
    """POST /v1/conversations/{id}."""

    metadata: Metadata


class NewItems(Struct, gc=False):
    """POST /v1/conversations/{id}/items."""

    items: Annotated[list[AnyItem], Meta(min_length=1, max_length=_MOST)]


Shape = TypeVar("Shape", NewConversation, ConversationChange, NewItems)


def understood(body: Body, shape: type[Shape]) -> tuple[Shape, list[Body]]:
    """What is asked, and the items as they are to be kept. Raises InvalidRequest.

    Items that only their own service understands are kept as well; whether a model can be asked with them is found out
    then.
    """
    items = items_of(body.get("items"))
    told, _ = readable(items, "items")
    try:
        asked = msgspec.convert({**body, "items": told} if isinstance(body.get("items"), list) else body, shape)
    except msgspec.ValidationError as error:
        raise wire.explain(str(error)) from None
    return asked, items


def shown(item: Body) -> Body:
    """An item as a list shows it: its text in parts, and that it is done."""
    kind, content = item.get("type"), item.get("content")
    if kind not in _WITH_STATUS:
        return item
    if kind == "message" and isinstance(content, str):
        part = "output_text" if item.get("role") == "assistant" else "input_text"
        more: Body = {"annotations": list[Body](), "logprobs": list[Body]()} if part == "output_text" else {}
        item = {**item, "content": [{"type": part, "text": content, **more}]}
    return {"status": "completed", **item}


def name_of(given: object) -> str | None:
    """Which conversation a response belongs to. Raises InvalidRequest."""
    if isinstance(given, dict):
        given = cast("Body", given).get("id")
        if not isinstance(given, str):
            raise InvalidRequest("'conversation.id' must be a string.", param="conversation.id", code="invalid_type")
    if given is not None and not isinstance(given, str):
        why = "'conversation' must be an id, or an object with one."
        raise InvalidRequest(why, param="conversation", code="invalid_type")
    return given
