"""Anthropic's Message Batches: all requests in one body, all answers in one stream of lines.

Knows: its batches, their states, what an answer that failed is as an error alone. Does not know: how requests and
answers are translated (`gateway.upstream.anthropic_*`), money.
Source: docs.claude.com/en/api/creating-message-batches.
"""

from collections.abc import AsyncGenerator, Callable, Sequence

import msgspec

from gateway.call import Body, Operation
from gateway.errors import UpstreamFailed
from gateway.providers import Sending
from gateway.upstream.batching import Line, Returned, Row
from gateway.upstream.fields import mapping, words

_STATUS = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "overloaded_error": 529,
}
_encode = msgspec.json.Encoder().encode


class AnthropicBatches:
    """Obeys gateway.upstream.batching.Batching. `base`: the address of its batches; `body`: a request in its words."""

    chats_alone = True

    def __init__(self, line: Line, base: str, body: Callable[[Sending], Body]) -> None:
        self._line = line
        self._base = base
        self._body = body

    async def hand_in(self, name: str, operation: Operation, rows: Sequence[Row]) -> str:  # noqa: ARG002 - chat is all it has, and it takes no name
        requests: list[Body] = []
        for row in rows:
            params = {key: value for key, value in self._body(row.sending).items() if key != "stream"}
            requests.append({"custom_id": row.name, "params": params})
        made = await self._line.ask("POST", self._base, _encode({"requests": requests}))
        if found := words(made.get("id")):
            return found
        raise UpstreamFailed(f"{self._line.name} did not say which batch it has made.")

    async def find(self, name: str, since: float) -> str | None:  # noqa: ARG002 - it finds none, however new
        raise LookupError(f"{self._line.name} keeps no names of batches, so {name} cannot be looked for")

    async def look(self, batch: str) -> str | None:
        told = await self._line.ask("GET", f"{self._base}/{batch}")
        return "" if told.get("processing_status") == "ended" else None

    async def collect(self, batch: str) -> AsyncGenerator[Returned, None]:
        # Its own `results_url` may lead elsewhere, where the key must not go.
        async for row in self._line.lines(f"{self._base}/{batch}/results"):
            yield _returned(words(row.get("custom_id")), mapping(row.get("result")))

    async def call_off(self, batch: str) -> None:
        await self._line.ask("POST", f"{self._base}/{batch}/cancel")

    async def forget(self, batch: str) -> None:
        await self._line.ask("DELETE", f"{self._base}/{batch}")


def _returned(name: str, result: Body) -> Returned:
    kind = words(result.get("type"))
    if kind == "succeeded":
        return Returned(name, 200, _encode(result.get("message")))
    if kind == "errored":
        # An error as it stands in an answer, so that it is told like one.
        told = mapping(result.get("error"))
        inner = mapping(told.get("error")) or told
        return Returned(name, _STATUS.get(words(inner.get("type")), 500), _encode({"type": "error", "error": inner}))
    return Returned(
        name, code=f"batch_{kind or 'lost'}", message=f"The service ended this request as {kind or 'lost'}."
    )
