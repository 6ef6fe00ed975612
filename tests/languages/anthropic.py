"""Anthropic's Messages API as a fake: words of a hash, usage that adds up, errors in its own shape."""

from typing import Any

import msgspec

from tests.wire_upstream import Answer, Request, count, words

encode = msgspec.json.encode


class Anthropic:
    """Refuses what the service refuses without fail: a request without max_tokens, a wrong header, empty text."""

    async def answer(self, asked: Request) -> Answer:
        if asked.line.startswith("GET "):
            return Answer(body=encode({"data": [{"type": "model", "id": "claude-fake"}], "has_more": False}))
        body = asked.body
        if asked.headers.get("anthropic-version") is None:
            return error("400 Bad Request", "invalid_request_error", "anthropic-version: header is required")
        if asked.path.endswith("/count_tokens"):
            if "max_tokens" in body:
                return error("400 Bad Request", "invalid_request_error", "max_tokens: Extra inputs are not permitted")
            return Answer(body=encode({"input_tokens": 4_000 + count(body["messages"])}))
        if not isinstance(body.get("max_tokens"), int):
            return error("400 Bad Request", "invalid_request_error", "max_tokens: Field required")
        said = words(body["messages"], body["max_tokens"])
        usage = {"input_tokens": count(body["messages"]), "output_tokens": 1}
        message: dict[str, Any] = {
            "id": "msg_fake",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        if not body.get("stream"):
            message["content"] = [{"type": "text", "text": "".join(said)}]
            message["stop_reason"] = "max_tokens"
            message["usage"] = {**usage, "output_tokens": len(said)}
            return Answer(body=encode(message))
        told: list[dict[str, Any]] = [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "ping"},
            *(text(word) for word in said),
            {"type": "content_block_stop", "index": 0},
            {
                "type": "message_delta",
                "delta": {"stop_reason": "max_tokens", "stop_sequence": None},
                "usage": {"output_tokens": len(said)},
            },
            {"type": "message_stop"},
        ]
        events = [event(item) for item in told]
        kind = ("content-type: text/event-stream",)
        return Answer(headers=kind, opening=b"".join(events[:4]), events=events[4:])

    def failure(self) -> Answer:
        return error("529 Overloaded", "overloaded_error", "Overloaded")


def error(status: str, kind: str, message: str) -> Answer:
    return Answer(status=status, body=encode({"type": "error", "error": {"type": kind, "message": message}}))


def event(told: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (told["type"].encode(), encode(told))


def text(word: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}


def message(blocks: list[dict[str, Any]], size: int) -> list[dict[str, Any]]:
    """The events of a message with these blocks, every text and input in pieces of `size` characters."""
    usage = {"input_tokens": 1, "output_tokens": 1}
    told: list[dict[str, Any]] = [{"type": "message_start", "message": {"id": "m", "usage": usage}}]
    for index, block in enumerate(blocks):
        is_text = block["type"] == "text"
        bare = {**block, "text": ""} if is_text else {**block, "input": {}}
        told.append({"type": "content_block_start", "index": index, "content_block": bare})
        whole = block["text"] if is_text else encode(block["input"]).decode()
        for start in range(0, len(whole), size):
            piece = whole[start : start + size]
            delta = {"type": "text_delta", "text": piece}
            if not is_text:
                delta = {"type": "input_json_delta", "partial_json": piece}
            told.append({"type": "content_block_delta", "index": index, "delta": delta})
        told.append({"type": "content_block_stop", "index": index})
    told.append({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}})
    return [*told, {"type": "message_stop"}]
