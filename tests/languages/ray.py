"""Ray Serve in front of vLLM as it answers: models and their adapters by id, what has no room as plain text.

Written after Ray's documentation of Serve LLM, of multiplexing and of back pressure; it is not a model.
"""

import msgspec

from tests.wire_upstream import Answer, Request, words

IDS = ("qwen", "qwen:lawyer")
DROPPED = b"Request dropped due to backpressure (num_queued_requests=2, max_queued_requests=2)."
USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


class Ray:
    """`full`: the queue of the application is; `multiplexed`: it chooses its model by the header alone."""

    def __init__(self, *, multiplexed: bool = False) -> None:
        self.multiplexed = multiplexed
        self.full = False

    async def answer(self, asked: Request) -> Answer:
        if asked.path == "/v1/models":
            rows = [{"id": one, "object": "model", "owned_by": "organization-owner", "metadata": {}} for one in IDS]
            return Answer(body=msgspec.json.encode({"object": "list", "data": rows}))
        if self.full:
            return Answer(status="503 Service Unavailable", headers=("content-type: text/plain",), body=DROPPED)
        chosen = asked.headers.get("serve_multiplexed_model_id") if self.multiplexed else asked.body["model"]
        if chosen not in IDS:
            message = f'Could not find model with ids ["{chosen}"].'
            error = {"message": message, "type": "NotFoundError", "code": 404, "param": None}
            return Answer(status="404 Not Found", body=msgspec.json.encode({"error": error}))
        message = {"role": "assistant", "content": "".join(words(asked.body["messages"], 2)), "tool_calls": []}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "stop_reason": None}
        told = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": chosen, "choices": [choice]}
        return Answer(body=msgspec.json.encode({**told, "usage": USAGE}))

    def failure(self) -> Answer:
        return Answer(status="500 Internal Server Error", body=b"Internal Server Error")
