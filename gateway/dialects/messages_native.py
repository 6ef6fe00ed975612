"""What of a Messages request only Anthropic's own servers understand.

Blocks that have no counterpart (what their tools did, files kept there, a conversation they shortened) stand in the
inner request as their own JSON, so that they are counted and no two requests are taken for one. Does not know: turns,
what becomes of the blocks that are understood here.
"""

from collections.abc import Iterator
from typing import Any, cast

import msgspec

from gateway.call import Body, Need
from gateway.dialects.chat import dicts

_encode = msgspec.json.Encoder().encode
# Fields of a block that the inner request says in full. Of thoughts it says nothing.
_SAID: dict[str, frozenset[str]] = {
    kind: frozenset(("type", "cache_control", *fields.split()))
    for kind, fields in {
        "text": "text",
        "image": "source",
        "document": "source title",
        "search_result": "source title content",
        "tool_result": "tool_use_id content",
        "tool_use": "id name input",
        "thinking": "",
        "redacted_thinking": "",
    }.items()
}
_SAID_OF_TOOLS = frozenset(("type", "cache_control", "name", "description", "input_schema", "strict"))
_SOURCES = {
    "image": frozenset(("base64", "url")),
    "document": frozenset(("base64", "text", "content")),
}
# What the inner request says in full; anything else makes another request of it at an upstream that knows it.
_TRANSLATED = frozenset(
    (
        *("model", "messages", "max_tokens", "system", "stop_sequences", "stream", "temperature", "top_p", "top_k"),
        *("tools", "tool_choice", "metadata", "output_format", "service_tier", "cache_control"),
    )
)


def readable(body: Body) -> tuple[Body, Need | None]:
    """The request without what only Anthropic understands, and what that was; `body` itself is not changed."""
    given = body.get("messages")
    if not isinstance(given, list):
        return body, None
    found: list[Need] = []
    turns = [_turn(turn, f"messages[{index}]", found) for index, turn in enumerate(cast("list[object]", given))]
    if not found:
        return body, None
    return {**body, "messages": turns}, next((need for need in found if need.unbounded), found[0])


def apart(body: Body) -> Body:
    """What of a request is not in the inner one, and changes the answer of an upstream that is sent all of it."""
    found: Body = {name: value for name, value in body.items() if name not in _TRANSLATED and value is not None}
    if typed := [tool for tool in dicts(body.get("tools")) if tool.get("type") not in (None, "custom")]:
        found |= {"tools": typed, "tool_choice": body.get("tool_choice")}
    own = [tool for tool in dicts(body.get("tools")) if tool.get("type") in (None, "custom")]
    unsaid = [*_unsaid(_blocks(body), None), *_unsaid(own, _SAID_OF_TOOLS)]
    return found | ({"blocks": unsaid} if unsaid else {})


def _turn(turn: object, path: str, found: list[Need]) -> object:
    if not isinstance(turn, dict) or not isinstance(content := cast("Body", turn).get("content"), list):
        return cast("object", turn)
    return {**cast("Body", turn), "content": _content(cast("list[object]", content), f"{path}.content", found)}


def _content(blocks: list[object], path: str, found: list[Need]) -> list[object]:
    return [_block(block, f"{path}[{index}]", found) for index, block in enumerate(blocks)]


def _block(block: object, path: str, found: list[Need]) -> object:
    if not isinstance(block, dict):
        return block
    told = cast("Body", block)
    kind = told.get("type")
    if not isinstance(kind, str):
        return told
    if kind == "tool_result" and isinstance(told.get("content"), list):
        return {**told, "content": _content(cast("list[object]", told["content"]), f"{path}.content", found)}
    source: Any = told.get("source")
    where = source.get("type") if isinstance(source, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - a client's JSON
    if kind not in _SAID:
        message = f"Blocks of the type {kind[:64]!r} are not supported here."
        found.append(Need(param=f"{path}.type", message=message, unbounded=kind == "container_upload"))
    elif kind in _SOURCES and isinstance(where, str) and where not in _SOURCES[kind]:
        message = f"This model reads an {kind} only from the request itself." if kind == "image" else _OF_DOCUMENTS
        found.append(Need(param=f"{path}.source.type", message=message, unbounded=True))
    else:
        return told
    return {"type": "text", "text": _encode(told).decode()}


_OF_DOCUMENTS = "This model reads documents only from the request itself (base64, text or content)."


def _blocks(body: Body) -> list[Body]:
    found: list[Body] = []
    for turn in dicts(body.get("messages")):
        for block in dicts(turn.get("content")):
            found.append(block)
            if block.get("type") == "tool_result":
                found += dicts(block.get("content"))
    return found


def _unsaid(rows: list[Body], said: frozenset[str] | None) -> Iterator[Body]:
    """Fields of blocks, or of tools, that the inner request does not say, each with its place among them."""
    for at, row in enumerate(rows):
        known = _SAID.get(cast("str", row.get("type"))) if said is None else said
        if known is None or row.keys() <= known:
            continue
        if rest := {key: row[key] for key in row.keys() - known if row[key] not in _NOTHING}:
            yield {"at": at, **rest}


_NOTHING = (None, False)
