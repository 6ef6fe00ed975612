"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's paths. What is said there is `gateway.dialects`'s."""

from typing import Any

import msgspec
from litestar import get
from litestar.enums import MediaType
from litestar.types import HTTPScope, Send

from gateway.call import Call, Native, Principal
from gateway.connection import Connection
from gateway.dialects import Dialect
from gateway.dialects.messages import Messages
from gateway.dialects.messages_native import apart
from gateway.headers import JSON, always, pairs
from gateway.prompt_tokens import Counter
from gateway.routes.openai import Edge, Endpoint, Endpoints, Read, send_whole

_encode = msgspec.json.Encoder().encode
_OURS = (b"anthropic-beta", b"anthropic-version")


class Natively(Endpoint):
    """Anthropic's Messages: an upstream that speaks them too is sent the request as it came."""

    async def _made(self, request_id: str, principal: Principal, scope: HTTPScope, read: Read) -> Call:
        call = await super()._made(request_id, principal, scope, read)
        given: Any = scope["headers"]
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in given if name in _OURS}
        native = Native(dialect=self._dialect.name, body=read.body, headers=headers, apart=apart(read.body))
        return msgspec.structs.replace(call, native=native)


class Counting(Endpoint):
    """Counts what a request would send. `shape`: what the answer says besides the count."""

    def __init__(self, edge: Edge, dialect: Dialect, counter: Counter, shape: dict[str, object]) -> None:
        super().__init__(edge, dialect)
        self._counter = counter
        self._shape = shape

    async def _fulfil(self, call: Call, send: Send, connection: Connection) -> None:  # noqa: ARG002 - it takes no time
        counted = await self._counter.count(call)
        how = "exact" if counted.exact else "estimate"
        payload = _encode({**self._shape, "input_tokens": counted.tokens, "nearhit": {"count": how}})
        lines = f"x-nearhit-token-count: {how}\r\n{self._dialect.lines(call.id)}"
        await send_whole(send, payload, [*always(call.id), *pairs(lines), JSON])


@get(["/", "/api/hello"], media_type=MediaType.JSON, sync_to_thread=False)
def greet() -> dict[str, str]:
    """Anthropic's clients look whether anybody is there before they ask: Claude Code at the second since 2.1.330."""
    return {"object": "nearhit", "base_url": "/v1", "docs": "/docs", "dashboard": "/ui"}


class CountingNatively(Counting, Natively):
    """An upstream that speaks Messages counts the request as it came."""


def route_handlers() -> list[Any]:
    return [greet]


def endpoints(edge: Edge, counter: Counter) -> Endpoints:
    """By path, without `/v1`."""
    return {
        "/messages": Natively(edge, Messages()),
        "/messages/count_tokens": CountingNatively(edge, Messages(counting=True), counter, {}),
    }
