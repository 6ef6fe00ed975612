"""An upstream's own events as chunks: when the answer has begun, when it is whole, and when it broke.

Knows: the waits, and that what stood before a failure is given out first. Does not know: any language (a translator
does), who the upstream is, what an answer costs.
"""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from gateway.call import Body, Chunk
from gateway.errors import Overloaded, UpstreamFailed, UpstreamRefused, UpstreamTimeout
from gateway.providers import Partial, Sending
from gateway.stream import StreamGarbage
from gateway.transport import BrokenOff, Exchange, TimedOut
from gateway.transport.refusal import in_doubt
from policies.money import Usage


class Declined(StreamGarbage):
    """The upstream said, inside its answer, that it will not do the work. `code`: what is wrong with the request."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code

    def refusal(self, message: str) -> UpstreamFailed | Overloaded:
        """As one that came before any answer. `message`: what it said, without secrets."""
        if not self.code:
            return Overloaded(message, headers=(("retry-after", "1"),))
        told: Body = {"message": message, "type": "invalid_request_error", "param": None, "code": self.code}
        return UpstreamRefused(400, told)


class Framing(Protocol):
    """Bytes to events. Raises StreamGarbage, after the events before the fault have been given out."""

    def feed(self, packet: bytes) -> list[bytes]: ...


class Translator(Protocol):
    """The events of one answer to chunks."""

    @property
    def done(self) -> bool:
        """Whether the upstream said that the answer is whole."""
        ...

    def feed(self, data: bytes) -> list[Chunk]:
        """Raises StreamGarbage for what no answer holds, Declined for a refusal told as an event."""
        ...

    def end(self) -> list[Chunk]:
        """The connection has ended. Raises StreamGarbage when the answer is not whole by then."""
        ...


class Waits(Struct, frozen=True):
    """The first chunk must come by `deadline` (in the clock's seconds), each later one within `idle` seconds."""

    deadline: float
    idle: float
    monotonic: Callable[[], float]

    @classmethod
    def of(cls, sending: Sending, deadline: float, monotonic: Callable[[], float]) -> "Waits":
        return cls(deadline, sending.idle, monotonic)


class EventReader:
    """Until the first chunk failures are UpstreamFailed, UpstreamTimeout or Overloaded, after it they are Partial.

    `clean` takes secrets out of an upstream's words.
    """

    def __init__(
        self,
        name: str,
        exchange: Exchange,
        waits: Waits,
        framing: Framing,
        translator: Translator,
        clean: Callable[[str], str],
    ) -> None:
        self._name = name
        self._exchange = exchange
        self._waits = waits
        self._framing = framing
        self._translator = translator
        self._clean = clean
        self._begun = False
        self._last = 0.0
        self._failure: StreamGarbage | None = None
        self._usage: Usage | None = None

    async def more(self) -> list[Chunk]:
        """The chunks of the next packets, at least one; none when the answer is whole."""
        while not self._translator.done:
            if self._failure is not None:
                raise self._broken(self._failure) from self._failure
            chunks = self._chunks(await self._packet())
            if chunks:
                self._begun = True
                self._last = self._waits.monotonic()
                return chunks
            self._check_clock()
        return []

    async def _packet(self) -> bytes:
        waits = self._waits
        wait = waits.idle if self._begun else max(0.001, waits.deadline - waits.monotonic())
        try:
            return await self._exchange.piece(wait)
        except TimedOut as error:
            raise self._late() from error
        except BrokenOff as error:
            raise self._broken(StreamGarbage(f"broke off its answer: {error}")) from error

    def _chunks(self, packet: bytes) -> list[Chunk]:
        chunks: list[Chunk] = []
        try:
            if not packet:
                chunks += self._translator.end()
            for data in self._framing.feed(packet) if packet else ():
                chunks += self._translator.feed(data)
                if self._translator.done:
                    break
        except StreamGarbage as error:
            self._failure = error
        for chunk in chunks:
            self._usage = chunk.usage or self._usage
        return chunks

    def _check_clock(self) -> None:
        """Pings keep a connection alive, not an answer: the waits are for chunks."""
        waits = self._waits
        limit = self._last + waits.idle if self._begun else waits.deadline
        if waits.monotonic() > limit and not self._translator.done and self._failure is None:
            raise self._late()

    def _late(self) -> Exception:
        if self._begun:
            return Partial(f"{self._name} sent nothing for {self._waits.idle:g} s", self._usage)
        return UpstreamTimeout(f"{self._name} sent nothing in time")

    def _broken(self, failure: StreamGarbage) -> Exception:
        message = f"{self._name} {self._clean(str(failure))}"
        if self._begun:
            return Partial(message, self._usage)
        return failure.refusal(message) if isinstance(failure, Declined) else in_doubt(message)
