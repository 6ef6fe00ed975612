"""One reader's view of an answer: in the form this client asked for, with notes taken on the way.

An answer made as events serves a client that wants one body, and the reverse. `id`, `created` and `model` are ours,
everything else is handed on as it came. Does not know: HTTP, money beyond a price, why the answer was chosen.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import cast

import msgspec

from gateway.call import Body, Call, Chunk, Outcome
from gateway.errors import GatewayError
from gateway.flights import Flight
from gateway.stream import fold, read_finish, read_usage, unfold
from policies.money import NANO_PER_USD, Usage, cost_nano

_encode = msgspec.json.Encoder().encode
_PREFIX = {"chat": "chatcmpl-", "completion": "cmpl-"}


class Reading:
    """Iterate to read; `aclose` may be called at any time, any number of times, and ends the reading exactly once."""

    def __init__(self, call: Call, flight: Flight, outcome: Outcome, ended: Callable[[], None]) -> None:
        self._call = call
        self._flight = flight
        self._outcome = outcome
        self._ended: Callable[[], None] | None = ended
        self._chunks: AsyncGenerator[Chunk, None] | None = None
        self._identity: Body = {"model": call.model}
        if call.operation != "embedding":
            name = _PREFIX[call.operation] + call.id.replace("-", "")
            self._identity = {"id": name, "created": int(call.at), "model": call.model}

    def __aiter__(self) -> "Reading":
        return self

    async def __anext__(self) -> Body:
        """The next event, or the body, as the client shall see it."""
        if self._chunks is None:
            self._chunks = self._asked()
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            self._outcome.complete = True
            raise
        except GatewayError as error:
            self._outcome.error = error.code or error.type
            raise
        self._outcome.chunks += 1
        return self._ours(chunk)

    async def whole(self) -> bytes:
        """The one body of an answer that is not streamed, as JSON. Raises GatewayError where the answer broke off."""
        if self._flight.streamed:
            body = await anext(self)
            async for _ in self:  # reads on to the end, so that what follows the body is known before it leaves
                raise AssertionError("a whole reply has one body")
            return _encode(body)
        try:
            await self._flight.landed()
        except GatewayError as error:
            self._outcome.error = error.code or error.type
            raise
        self._outcome.chunks = 1
        self._outcome.complete = True
        chunk = self._flight.chunks[0]
        return _encode({**self._identity, **chunk.data, **self._identity})

    async def aclose(self) -> None:
        if self._ended is not None:
            ended, self._ended = self._ended, None
            self._flight.leave()
            self._outcome.client_gone = not self._outcome.complete and self._outcome.error is None
            ended()
            if self._chunks is not None:
                await self._chunks.aclose()

    async def _asked(self) -> AsyncGenerator[Chunk, None]:
        """The answer in the form asked for."""
        async with aclosing(self._flight.read()) as chunks:
            if self._flight.streamed and not self._call.stream:
                data = fold([chunk.data async for chunk in chunks])
                yield Chunk(data, read_usage(data), read_finish(data), final=True)
                return
            async for chunk in chunks:
                if chunk.final and self._call.stream:
                    for data in unfold(chunk.data, self._call.operation, include_usage=self._call.include_usage):
                        yield Chunk(data, read_usage(data), read_finish(data))
                elif self._call.include_usage or chunk.final or not _tells_usage_only(chunk):
                    yield chunk

    def _ours(self, chunk: Chunk) -> Body:
        data: Body = {**self._identity, **chunk.data, **self._identity}
        if chunk.final:
            return data
        if not self._call.include_usage:
            data.pop("usage", None)
        elif chunk.usage is None:
            data["usage"] = None
        else:
            data["usage"] = {**_dict(chunk.data.get("usage")), "cost": self._cost(chunk.usage)}
        return data

    def _cost(self, usage: Usage) -> float:
        """USD of this answer for this reader: only the one who made it come about pays."""
        price = self._flight.landing.price
        if price is None or self._outcome.source != "upstream":
            return 0.0
        return cost_nano(usage, price) / NANO_PER_USD


def _tells_usage_only(chunk: Chunk) -> bool:
    return chunk.usage is not None and not chunk.data.get("choices")


def _dict(value: object) -> Body:
    return cast("Body", value) if isinstance(value, dict) else {}
