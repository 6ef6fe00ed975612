"""An Anthropic answer told to Anthropic's clients as it came: its own events, and whole blocks as events.

Knows: what of an event is ours (id, model, cost), how a block that is whole would have been streamed. Does not know:
chat completions.
"""

from collections.abc import Iterator
from typing import cast

import msgspec

from gateway.call import Body
from gateway.dialects.chat import dicts, text_of

_encode = msgspec.json.Encoder().encode
_CALLS = frozenset(("tool_use", "server_tool_use", "mcp_tool_use"))


class Relay:
    """`used`: there were such events, so nobody needs to make any."""

    def __init__(self) -> None:
        self.used = False
        self._last: Body = {}

    def told(self, events: list[Body], message: Body) -> Iterator[Body]:
        """`message`: what is ours of it. The event that ends it waits until its cost is known."""
        self.used = True
        for event in events:
            kind = event.get("type")
            if kind == "message_start":
                yield {**event, "message": {**cast("Body", event.get("message") or {}), **message}}
            elif kind == "message_delta":
                self._last = {**self._last, **event}
            else:
                yield event

    def ended(self, cost: Body) -> Body | None:
        """None where no end was told."""
        if not self._last:
            return None
        return {**self._last, "usage": {**cast("Body", self._last.get("usage") or {}), **cost}}


def events_of(block: Body, index: int) -> Iterator[Body]:
    """The events of one block."""
    begun, deltas = _apart(block)
    yield {"type": "content_block_start", "index": index, "content_block": begun}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def _apart(block: Body) -> tuple[Body, list[Body]]:
    """A block as it begins, and what comes to it."""
    kind = block.get("type")
    if kind == "text":
        cited = dicts(block.get("citations"))
        begun: Body = {**block, "text": ""}
        if cited:
            begun["citations"] = []
        return begun, [
            {"type": "text_delta", "text": text_of(block.get("text"))},
            *({"type": "citations_delta", "citation": citation} for citation in cited),
        ]
    if kind == "thinking":
        return {**block, "thinking": "", "signature": ""}, [
            {"type": "thinking_delta", "thinking": text_of(block.get("thinking"))},
            {"type": "signature_delta", "signature": text_of(block.get("signature"))},
        ]
    if kind in _CALLS:
        told = _encode(block.get("input") or {}).decode()
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": told}]
    if kind == "compaction":
        more = {name: value for name, value in block.items() if name != "type"}
        return {"type": "compaction", "content": None}, [{"type": "compaction_delta", **more}]
    return block, []
