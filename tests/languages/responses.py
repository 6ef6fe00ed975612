"""OpenAI's Responses API as a fake: a search, a sealed thought, words of a hash, and the function that is offered."""

from typing import Any

import msgspec

from tests.wire_upstream import Answer, Request, count, words

encode = msgspec.json.encode


class Responses:
    """Refuses what the service refuses without fail: ids of others, unsealed thoughts, too short an answer."""

    async def answer(self, asked: Request) -> Answer:
        body = asked.body
        if not asked.path.endswith("/responses"):
            return error(
                "400 Bad Request", "This model is only supported in v1/responses and not in v1/chat/completions."
            )
        if body.get("store") is not False or body.get("previous_response_id") is not None:
            return error("400 Bad Request", "Nothing is stored here.")
        items: Any = body["input"] if isinstance(body["input"], list) else []
        if any(item.get("type") == "reasoning" and not item.get("encrypted_content") for item in items):
            return error("404 Not Found", "Items are not persisted when `store` is set to false.")
        if any(str(item.get("id", "")).startswith(("item_", "msg_", "fc_")) for item in items):
            return error("400 Bad Request", "Unknown id.")
        if body.get("max_output_tokens", 16) < 16:
            return error("400 Bad Request", "integer below minimum value")
        return _streamed(_whole(body)) if body.get("stream") else Answer(body=encode(_whole(body)))

    def failure(self) -> Answer:
        return error("503 Service Unavailable", "The server is overloaded.")


def _whole(body: dict[str, Any]) -> dict[str, Any]:
    said = "".join(words(body["input"], 4))
    cited = {"type": "url_citation", "url": "https://x/", "title": "X", "start_index": 0, "end_index": 3}
    part = {"type": "output_text", "text": said, "annotations": [cited], "logprobs": []}
    thought = {"type": "summary_text", "text": "Hm."}
    sealed = "sealed" * (10_000 if "Think long." in str(body["input"]) else 1)
    output: list[dict[str, Any]] = [
        {"id": "rs_up", "type": "reasoning", "summary": [thought], "encrypted_content": sealed},
        {"id": "ws_up", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"id": "msg_up", "type": "message", "status": "completed", "role": "assistant", "content": [part]},
    ]
    function = next((tool for tool in body.get("tools", []) if tool["type"] == "function"), None)
    if function is not None:
        call = {"call_id": "call_up", "name": function["name"], "arguments": '{"a":1}'}
        output.append({"id": "fc_up", "type": "function_call", "status": "completed", **call})
    if {"type": "local_shell"} in body.get("tools", []):
        action = {"type": "exec", "command": ["ls"], "env": {}}
        output.append(
            {"id": "lsh_up", "type": "local_shell_call", "call_id": "c", "status": "completed", "action": action}
        )
    read = count(body["input"])
    usage = {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": 12,
        "output_tokens_details": {"reasoning_tokens": 5},
        "total_tokens": read + 12,
    }
    head = {
        "id": "resp_up",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "gpt-5.6-2026-08-01",
    }
    return {**head, "error": None, "incomplete_details": None, "output": output, "store": False, "usage": usage}


def _streamed(whole: dict[str, Any]) -> Answer:
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    told: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for index, item in enumerate(whole["output"]):
        empty = {name: [] if name in ("content", "summary") else value for name, value in item.items()}
        told.append({"type": "response.output_item.added", "output_index": index, "item": empty})
        where = {"item_id": item["id"], "output_index": index}
        if item["type"] == "message":
            part = {**item["content"][0], "text": "", "annotations": []}
            told.append({"type": "response.content_part.added", **where, "content_index": 0, "part": part})
            told += [
                {"type": "response.output_text.delta", **where, "content_index": 0, "delta": word, "logprobs": []}
                for word in item["content"][0]["text"].split(" ")
            ]
        if item["type"] == "function_call":
            told.append({"type": "response.function_call_arguments.delta", **where, "delta": item["arguments"]})
        told.append({"type": "response.output_item.done", "output_index": index, "item": item})
    told.append({"type": "response.completed", "response": whole})
    events = [
        b"event: %b\ndata: %b\n\n" % (one["type"].encode(), encode({**one, "sequence_number": number}))
        for number, one in enumerate(told)
    ]
    return Answer(headers=("content-type: text/event-stream",), opening=b"".join(events[:4]), events=events[4:])


def error(status: str, message: str) -> Answer:
    told = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return Answer(status=status, body=encode({"error": told}))
