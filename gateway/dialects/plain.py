"""OpenAI's chat completions, legacy completions and embeddings: the inner language itself, so nothing is translated.

Knows the check of each operation. Does not know: other dialects.
"""

from collections.abc import Callable
from typing import cast

from gateway import wire
from gateway.call import Body, Operation
from gateway.dialects import Asked
from gateway.errors import GatewayError

_CHECKS: dict[Operation, Callable[[Body], None]] = {
    "chat": wire.check_chat,
    "completion": wire.check_completion,
    "embedding": wire.check_embedding,
}


class Plain:
    """Obeys gateway.dialects.Dialect."""

    repeats = True

    def __init__(self, operation: Operation) -> None:
        self.name: str = operation
        self.operation: Operation = operation
        self._check = _CHECKS[operation]

    def read(self, body: Body) -> Asked:
        self._check(body)
        stream = body.get("stream") is True and self.operation != "embedding"
        return Asked(body=body, stream=stream, include_usage=_wants_usage(body))

    def refusal(self, error: GatewayError, request_id: str) -> tuple[int, bytes]:  # noqa: ARG002 - stands in a header
        return error.http_status, error.body()

    def lines(self, request_id: str) -> str:  # noqa: ARG002 - OpenAI's name for it is on every answer
        return ""


def _wants_usage(body: Body) -> bool:
    options = body.get("stream_options")
    return isinstance(options, dict) and cast("Body", options).get("include_usage") is True
