"""NVIDIA Dynamo's frontend as it answers: strict about fields, annotations among events, errors without an envelope.

Written after its own source (`lib/llm/src/http/service`, 1.x) and its metrics catalog; it is not a model.
"""

import msgspec

from tests.wire_upstream import Answer, Request, words

KNOWN = frozenset(
    {
        "model",
        "messages",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "seed",
        "user",
        "nvext",
        "cache_salt",
        "stop_token_ids",
    }
)
METRICS = b"""# HELP dynamo_frontend_inflight_requests Number of inflight requests
# TYPE dynamo_frontend_inflight_requests gauge
dynamo_frontend_inflight_requests{model="m"} 7
# TYPE dynamo_frontend_queued_requests gauge
dynamo_frontend_queued_requests{model="m"} 3
# TYPE dynamo_frontend_requests_total counter
dynamo_frontend_requests_total{endpoint="chat_completions",model="m",request_type="stream",status="success"} 12
"""
MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "created": 1_760_000_000, "owned_by": "nvidia"}]}
USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


def _error(status: int, reason: str, kind: str, message: str) -> Answer:
    body = msgspec.json.encode({"message": message, "type": kind, "code": status})
    return Answer(status=f"{status} {reason}", headers=("content-type: application/json",), body=body)


class Dynamo:
    """`busy`: all workers are, as a load shed tells it; `asked`: bodies of chats."""

    def __init__(self) -> None:
        self.busy = False
        self.asked: list[dict[str, object]] = []

    async def answer(self, asked: Request) -> Answer:
        if asked.path == "/metrics":
            return Answer(headers=("content-type: text/plain",), body=METRICS)
        if asked.path == "/v1/models":
            return Answer(headers=("content-type: application/json",), body=msgspec.json.encode(MODELS))
        self.asked.append(asked.body)
        if self.busy:
            return _error(529, "Overloaded", "Overloaded", "All workers are busy, please retry later")
        if unknown := sorted(set(asked.body) - KNOWN):
            named = ", ".join(f"`{name}`" for name in unknown)
            return _error(400, "Bad Request", "Bad Request", f"Validation: Unsupported parameter(s): {named}")
        spoken = words(asked.body["messages"], 2)
        return self._stream(asked, spoken) if asked.body.get("stream") else self._whole(spoken)

    def _whole(self, spoken: list[str]) -> Answer:
        message = {"role": "assistant", "content": "".join(spoken), "refusal": None, "tool_calls": None}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        nvext = {"nvext": {"worker_id": {"prefill_worker_id": 1, "decode_worker_id": 2}}}
        return Answer(body=msgspec.json.encode({**body, "usage": USAGE, **nvext}))

    def _stream(self, asked: Request, spoken: list[str]) -> Answer:
        def event(delta: dict[str, object], finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
            told = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
            return b"data: %b\n\n" % msgspec.json.encode({**told, "choices": [choice]})

        annotations = asked.body.get("nvext", {}).get("annotations", [])
        noted = [f'event: {name}\n: "0192-aa"\n\n'.encode() for name in annotations]
        usage = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}
        events = [event({"content": word}) for word in spoken]
        events += [
            event({}, "stop"),
            b"data: %b\n\n" % msgspec.json.encode({**usage, "usage": USAGE}),
            b"data: [DONE]\n\n",
        ]
        opening = b"".join(noted) + event({"role": "assistant", "content": ""})
        return Answer(
            headers=("content-type: text/event-stream", "x-dynamo-request-id: 0192-aa"), opening=opening, events=events
        )

    def failure(self) -> Answer:
        return _error(503, "Service Unavailable", "Service Unavailable", "Service is not ready")
