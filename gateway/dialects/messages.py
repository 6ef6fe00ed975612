"""Anthropic's Messages: the dialect's two directions put together. Knows nothing but where they stand."""

from gateway.call import Body, Operation
from gateway.dialects import Asked
from gateway.dialects.messages_answer import MessagesVoice, refusal
from gateway.dialects.messages_request import translate
from gateway.dialects.named import as_asked
from gateway.errors import GatewayError


class Messages:
    """Obeys gateway.dialects.Dialect. `counting`: the tokens of a request are counted, it is not answered."""

    name = "messages"
    operation: Operation = "chat"
    repeats = False

    def __init__(self, *, counting: bool = False) -> None:
        self._counting = counting

    def read(self, body: Body) -> Asked:
        inner = as_asked(lambda: translate(body, counting=self._counting))
        return Asked(
            body=inner.body,
            stream=inner.body.get("stream") is True,
            include_usage=True,
            voice=MessagesVoice(inner.names, thinks=inner.thinks, stops=inner.stops),
            ignored=inner.ignored,
            need=inner.need,
        )

    def refusal(self, error: GatewayError, request_id: str) -> tuple[int, bytes]:
        return refusal(error, request_id)

    def lines(self, request_id: str) -> str:
        return f"request-id: {request_id}\r\n"
