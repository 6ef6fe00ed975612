"""What of a Responses request only OpenAI's own servers understand.

Items and files that have no counterpart stand in the inner request as their own JSON, so that they are counted and no
two requests are taken for one. Does not know: turns, what becomes of the items that are understood here.
"""

from typing import cast, get_args

import msgspec

from gateway.call import Body, Native, Need
from gateway.dialects import responses_compaction as compaction
from gateway.dialects import responses_unread as unread
from gateway.dialects.chat import dicts
from gateway.dialects.responses_shapes import AnyItem
from gateway.dialects.responses_tools import INSTEAD, refuse

_encode = msgspec.json.Encoder().encode
# What only names an item of ours has been looked up before; it would be unknown there.
_KNOWN = frozenset({"item_reference", *(str(shape.__struct_config__.tag) for shape in get_args(AnyItem))})
# What the inner request says in full, or what changes no answer.
_TRANSLATED = frozenset(
    (
        *("model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "text", "max_output_tokens"),
        *("temperature", "top_p", "stream", "store", "background", "previous_response_id", "metadata"),
        "conversation",
        *("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
        *("service_tier", "client_metadata", "stream_options", "reasoning", "truncation"),
    )
)
_SEARCHES = frozenset(("tool_search_call", "tool_search_output"))
_BRINGING_TOOLS = frozenset(("tool_search_output", "additional_tools"))
_USUAL = _KNOWN - {"compaction", "item_reference"} - _SEARCHES
_TOOLS_OF_CLIENTS = frozenset(("function", "custom", "namespace"))


def readable(items: list[Body], path: str = "input") -> tuple[list[Body], Need | None]:
    """The items, those that only OpenAI understands as text, and what they need."""
    if all(map(_is_usual, items)):
        return items, None
    found: list[Need] = []
    told = [_item(item, f"{path}[{index}]", found) for index, item in enumerate(items)]
    return told, next((need for need in found if need.unbounded), found[0] if found else None)


def _is_usual(item: Body) -> bool:
    """Whether there is surely nothing to be found in it."""
    if item.__class__ is not dict:
        return False
    kind = item.get("type")
    if kind.__class__ is not str or kind not in _USUAL:
        return False
    content = item.get("content")
    return content.__class__ is not list or not any(map(_is_file, cast("list[object]", content)))


def _is_file(part: object) -> bool:
    return part.__class__ is not dict or cast("Body", part).get("type") == "input_file"


def _item(item: Body, path: str, found: list[Need]) -> Body:
    if not isinstance(cast("object", item), dict):
        return item
    kind, sealed = item.get("type"), item.get("encrypted_content")
    if kind == "item_reference":
        refuse(f"{path}.type", f"'{path}' only names an item, and is not kept here: send the item itself.")
    theirs = kind == "compaction" and isinstance(sealed, str) and not compaction.is_ours(sealed)
    if isinstance(kind, str) and (kind not in _KNOWN or theirs or (kind in _SEARCHES and not _is_of_client(item))):
        message = f"'{path}': items of the type {kind[:64]!r} mean something to their service alone. {INSTEAD}, "
        message += "or leave it out."
        if theirs:
            message = f"'{path}.encrypted_content' was not made by nearhit, so what it stands for cannot be read here. "
            message += f"{INSTEAD}, or send what it stands for."
        found.append(Need(param=f"{path}.encrypted_content" if theirs else f"{path}.type", message=message))
        return {"type": "message", "role": "user", "content": _encode(item).decode()}
    if kind == "message" and isinstance(content := item.get("content"), list):
        parts = [_part(part, f"{path}.content[{index}]", found) for index, part in enumerate(dicts(content))]  # pyright: ignore[reportUnknownArgumentType] - a client's JSON
        return {**item, "content": parts}
    return item


def _is_of_client(search: Body) -> bool:
    """Whether tools were looked for by the client; OpenAI's own searches have no call's id."""
    who = search.get("execution")
    return who == "client" or (who is None and search.get("call_id") is not None)


def _part(part: Body, path: str, found: list[Need]) -> Body:
    is_file = isinstance(cast("object", part), dict) and part.get("type") == "input_file"
    if not is_file or not isinstance(part.get("file_url"), str) or part.get("file_data") is not None:
        return part
    message = f"'{path}.file_url': this model reads files only from the request itself. {INSTEAD}, or send 'file_data'."
    found.append(Need(param=f"{path}.file_url", message=message, unbounded=True))
    return {"type": "input_text", "text": _encode(part).decode()}


def native(body: Body, items: list[Body]) -> Native:
    """The request as OpenAI would take it; `items`: of the whole conversation."""
    told: list[Body] = []
    for index, item in enumerate(items):
        content = item.get("encrypted_content")
        if item.get("type") == "compaction" and isinstance(content, str) and compaction.is_ours(content):
            item = {"type": "message", **compaction.told_again(content, f"input[{index}]")}
        told.append(item)
    return Native(dialect="responses", body={**body, "input": told}, headers={}, apart=_apart(body, items))


def _is_of_clients(tool: object) -> bool:
    """Also what is no tool at all, in a search of OpenAI's own."""
    return not isinstance(tool, dict) or str(cast("Body", tool).get("type")) in _TOOLS_OF_CLIENTS


def _apart(body: Body, items: list[Body]) -> Body:
    """What changes an answer and is not in the inner request."""
    found: Body = {name: value for name, value in body.items() if name not in _TRANSLATED and value is not None}
    brought = [tool for item in items if item.get("type") in _BRINGING_TOOLS for tool in dicts(item.get("tools"))]
    offered = [*dicts(body.get("tools")), *brought]
    if tools := [tool for tool in offered if not _is_of_clients(tool)]:
        found |= {"tools": tools, "tool_choice": body.get("tool_choice")}
    reasoning = body.get("reasoning")
    given = cast("Body", reasoning) if isinstance(reasoning, dict) else {}
    if rest := {name: value for name, value in given.items() if name != "effort" and value is not None}:
        found["reasoning"] = rest
    if rest := unread.of_items(items):
        found["items"] = rest
    if rest := unread.of_tools(body.get("tools")):
        found["offered"] = rest
    if rest := unread.of_settings(body):
        found["settings"] = rest
    return found
