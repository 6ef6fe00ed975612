"""One reader's view of an answer: in the form this client asked for, with notes taken on the way.

An answer made as events serves a client that wants one body, and the reverse. `id`, `created` and `model` are ours,
everything else is handed on as it came, in the words of the call's voice where it has one. Does not know: HTTP, money
beyond a price, why the answer was chosen, dialects.
"""

import asyncio
from collections.abc import Callable
from typing import Literal, cast

import msgspec

from gateway.call import Body, Call, Chunk, Outcome, Spoken
from gateway.dialects import Native
from gateway.errors import GatewayError
from gateway.flights import Flight
from gateway.stream import encode_event, fold, read_usage, unfold
from policies.money import NANO_PER_USD, Usage, cost_nano

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, object]).decode
_PREFIX = {"chat": "chatcmpl-", "completion": "cmpl-"}


class Reading:
    """Read by `whole` or by `events`, as the client asked; `close`, once or more often, ends it exactly once."""

    def __init__(self, call: Call, flight: Flight, outcome: Outcome, ended: Callable[[], None]) -> None:
        self._call = call
        self._flight = flight
        self._outcome = outcome
        self._ended: Callable[[], None] | None = ended
        self._position = 0
        self._along = (
            call.include_usage and _dict(call.body.get("stream_options")).get("continuous_usage_stats") is True
        )
        self._identity: Body = {"model": call.model}
        if (prefix := _PREFIX.get(call.operation)) is not None:
            self._identity = {"id": prefix + call.id.replace("-", ""), "created": int(call.at), "model": call.model}

    def position(self) -> int:
        """How many chunks this reader has taken."""
        return self._position

    async def whole(self) -> bytes:
        """The one body, as JSON, once the answer is whole. Raises GatewayError where it broke off."""
        self._outcome.chunks = 1
        if self._flight.kept is not None:
            self._outcome.complete = True
            if self._call.voice is not None:
                return self._call.voice.whole({**self._identity, **_decode(self._flight.kept)})
            return self._named(self._flight.kept)
        chunks = self._flight.chunks
        if self._flight.done and self._flight.error is None:  # as an answer in one piece is once it has begun
            self._position, self._outcome.complete = len(chunks), True
        while not self._outcome.complete:
            await self._arrived()
        if self._flight.spelled is not None and self._call.voice is None and self._call.operation in _PREFIX:
            return self._named(self._flight.spelled)
        body = fold([chunk.data for chunk in chunks]) if self._flight.streamed else chunks[0].data
        told: Body = {**self._identity, **body, **self._identity, **self._why_short(body)}
        return _encode(told) if self._call.voice is None else self._call.voice.whole(told)

    def _named(self, kept: bytes) -> bytes:
        """What is kept, as JSON, names neither its call nor its model."""
        return b"%b,%b" % (_encode(self._identity)[:-1], kept[1:])

    async def events(self) -> bytes:
        """The events that have come since the last time, as they go to the client; empty at the end.

        Raises GatewayError where the answer broke off.
        """
        if self._flight.kept is not None:
            return self._replay(self._flight.kept)
        while chunks := await self._arrived():
            if told := b"".join([self._told(chunk) for chunk in chunks]):
                return told
        return b""

    async def follow(self, write: Callable[[bytes], bool]) -> None:
        """Hand further events to `write` the moment they come, without a turn of the loop for each.

        Returns where `events` has to go on: at the end, when `write` answers False (the client is slow), and when
        something else than that stands in the way.
        """
        flight = self._flight
        if flight.done or flight.kept is not None or self._position < len(flight.chunks):
            return
        back = asyncio.get_running_loop().create_future()

        def take(chunk: Chunk) -> bool:
            try:
                told = self._told(chunk)
            except Exception:  # noqa: BLE001 - it belongs to this reader, who meets it again, not to the pump
                return stop()
            self._position += 1
            return not told or write(told) or stop()

        def stop() -> Literal[False]:
            if not back.done():
                back.set_result(None)
            return False

        flight.follow(take, self._position)
        flight.at_end(stop)
        try:
            await back
        finally:
            flight.unfollow(take)

    def _replay(self, kept: bytes) -> bytes:
        """All events of a kept answer, once."""
        if self._outcome.complete:
            return b""
        self._outcome.complete = True
        return self._unfolded(_decode(kept))

    def broke(self, error: GatewayError) -> None:
        """It ends here, and not because its reader has gone."""
        self._outcome.error = error.code or error.type

    def close(self) -> None:
        if self._ended is not None:
            ended, self._ended = self._ended, None
            self._flight.leave()
            self._outcome.client_gone = not self._outcome.complete and self._outcome.error is None
            ended()

    async def _arrived(self) -> list[Chunk]:
        """The next chunks, none at the end; notes how it ended."""
        try:
            chunks = await self._flight.after(self._position)
        except GatewayError as error:
            self._outcome.error = error.code or error.type
            raise
        self._position += len(chunks)
        if not chunks:
            self._outcome.complete = True
        return chunks

    def _told(self, chunk: Chunk) -> bytes:
        if chunk.final:
            return self._unfolded(chunk.data)
        if chunk.usage is not None and not self._call.include_usage and not chunk.data.get("choices"):
            return b""  # tells usage only, which was not asked for
        if chunk.native is not None:
            return self._natively(chunk, chunk.native)
        return self._event(chunk)

    def _natively(self, chunk: Chunk, spoken: Spoken) -> bytes:
        """A client of the same dialect gets the upstream's own events; to others some of them say nothing."""
        voice = self._call.voice
        if voice is None or getattr(voice, "speaks", "") != spoken.dialect:
            return self._event(chunk) if chunk.data.get("choices") or chunk.usage is not None else b""
        self._outcome.chunks += 1
        return cast("Native", voice).natively(spoken.events, {**self._identity, **chunk.data, **self._identity})

    def _unfolded(self, whole: Body) -> bytes:
        if self._call.voice is not None:
            self._call.voice.expect(whole.get("usage"))
        bodies = unfold(whole, self._call.operation, include_usage=self._call.include_usage)
        return b"".join([self._event(Chunk(body, read_usage(body))) for body in bodies])

    def _event(self, chunk: Chunk) -> bytes:
        data: Body = {**self._identity, **chunk.data, **self._identity}
        if not self._call.include_usage:
            data.pop("usage", None)
        elif chunk.usage is None:
            data["usage"] = _counted(chunk.so_far) if self._along and chunk.so_far is not None else None
        else:
            data["usage"] = {**_dict(chunk.data.get("usage")), "cost": self._cost(chunk.usage)}
        if self._flight.landing.short:
            data |= self._why_short(chunk.data)
        voice = self._call.voice
        if voice is not None and not self._outcome.chunks and chunk.so_far is not None:
            voice.expect({"prompt_tokens": chunk.so_far.prompt})
        self._outcome.chunks += 1
        return encode_event(data) if voice is None else voice.events(data)

    def _why_short(self, data: Body) -> Body:
        """Beside the finish reason `length`: that it was a budget which allowed no longer answer."""
        landing = self._flight.landing
        if not landing.short or not any(
            _dict(choice).get("finish_reason") == "length" for choice in cast("list[object]", data.get("choices") or ())
        ):
            return {}
        return {"nearhit": {"limited_by": "budget", "budget": landing.short, "max_tokens": landing.capped}}

    def _cost(self, usage: Usage) -> float:
        """USD of this request for this reader: only the one who made the answer come about pays.

        With what other attempts at it have cost so far, as the ledger has it.
        """
        landing = self._flight.landing
        if landing.price is None or self._outcome.source != "upstream":
            return 0.0
        others = sum([step.cost_nano for step in landing.steps if step is not landing.answered])
        return (cost_nano(usage, landing.price) + others) / NANO_PER_USD


def _counted(usage: Usage) -> Body:
    """What an event in the middle tells with vLLM's `continuous_usage_stats`."""
    return {"prompt_tokens": usage.prompt, "completion_tokens": usage.completion, "total_tokens": usage.total}


def _dict(value: object) -> Body:
    return cast("Body", value) if isinstance(value, dict) else {}
