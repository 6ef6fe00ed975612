"""OpenAI's Responses: the dialect's two directions put together. Knows nothing but where they stand."""

from collections.abc import Sequence

from gateway.call import Body, Operation
from gateway.dialects import Asked
from gateway.dialects.responses_answer import ResponsesVoice, refusal
from gateway.dialects.responses_request import translate
from gateway.errors import GatewayError


class Responses:
    """Obeys gateway.dialects.Dialect."""

    name = "responses"
    operation: Operation = "chat"
    repeats = False

    def read(self, body: Body, earlier: Sequence[Body] | None = None) -> Asked:
        """`earlier`: the items of the responses that this one continues; None where no state is kept."""
        inner = translate(body, earlier)
        return Asked(
            body=inner.body,
            stream=inner.body.get("stream") is True,
            include_usage=True,
            voice=ResponsesVoice(inner),
            ignored=inner.ignored,
        )

    def refusal(self, error: GatewayError, request_id: str) -> tuple[int, bytes]:  # noqa: ARG002 - stands in a header
        return refusal(error)

    def lines(self, request_id: str) -> str:  # noqa: ARG002 - OpenAI's name for it is on every answer
        return ""
