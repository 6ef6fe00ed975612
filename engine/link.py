"""One connection to the engine process: frames in and out, and who waits for what.

Knows: frames, handles, asyncio transports. Does not know: text, tokenizers, reconnecting.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Literal, cast

from engine.api import (
    EngineError,
    EngineFailed,
    EngineLost,
    EngineStats,
    EngineUsage,
    Figures,
    InvalidRequest,
    ModelInfo,
    Overloaded,
    Timing,
)
from engine.frames import (
    PROTOCOL,
    Cancel,
    Counted,
    Export,
    Failed,
    FrameBuffer,
    FrameError,
    Handed,
    Hello,
    Import,
    Output,
    Refusal,
    Release,
    Rest,
    Step,
    Submit,
    ToEngine,
    merge,
    pack,
)
from engine.frames import read_for_client as read


class Collector:
    """What has arrived for one request and was not looked at yet, merged. One reader."""

    def __init__(self, handle: int, ended: Callable[[EngineUsage], None]) -> None:
        self.handle = handle
        self.over = False  # nothing more will arrive
        self.submitted = False
        self.cancelled = False  # before it was submitted
        self._ended = ended
        self._waiting: Output | None = None
        self._error: EngineError | None = None
        self._wake = asyncio.Event()

    def put(self, output: Output) -> None:
        """Add to what waits; at the end, tell the usage also when nobody reads any more."""
        if output.finish is not None:
            self.over = True
            if output.usage is not None:
                self._ended(output.usage)
        self._waiting = output if self._waiting is None else merge(self._waiting, output)
        self._wake.set()

    def fail(self, error: EngineError) -> None:
        self.over, self._error = True, error
        self._wake.set()

    async def take(self) -> Output:
        """Everything since the last look; waits if that is nothing. Raises what the engine refused or broke with."""
        await self._wake.wait()
        self._wake.clear()
        output, self._waiting = self._waiting, None
        if output is None:
            assert self._error is not None
            raise self._error
        if self._error is not None:
            self._wake.set()
        return output


class Link(asyncio.Protocol):
    """`info` is None until the engine said hello; `heard`: monotonic time of its last frame.

    `handles` yields numbers that no connection before this one has used: who comes late names nothing of this one.
    """

    def __init__(self, monotonic: Callable[[], float], handles: Iterator[int]) -> None:
        self.info: ModelInfo | None = None
        self.stats = EngineStats(ready=False)
        self.figures: Figures | None = None
        self.failed = ""  # why the process cannot serve
        self.heard = monotonic()
        self._monotonic = monotonic
        self._buffer = FrameBuffer()
        self._transport: asyncio.WriteTransport | None = None
        self._collectors: dict[int, Collector] = {}
        self._handed: dict[int, asyncio.Future[Handed]] = {}
        self._handles = handles
        self._changed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's are not instances of asyncio's class

    def data_received(self, data: bytes) -> None:
        self.heard = self._monotonic()
        try:
            for payload in self._buffer.feed(data):
                message = read(payload)
                if isinstance(message, Hello):
                    self._hello(message)
                elif isinstance(message, Failed):
                    self.failed = message.reason
                    self.close(message.reason)
                elif isinstance(message, Counted):
                    self.figures = message.figures
                elif isinstance(message, Handed):
                    if (waiting := self._handed.pop(message.handle, None)) is not None and not waiting.done():
                        waiting.set_result(message)
                else:
                    self._step(message)
        except FrameError as error:
            self.close(f"the engine process sent what is no frame: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.close("the engine process went away" if exc is None else f"the engine process went away ({exc})")

    async def changed(self) -> None:
        """Wait until the engine said hello or the connection ended."""
        await self._changed.wait()
        self._changed.clear()

    @property
    def closed(self) -> bool:
        """Whether the connection has ended. It is only made once."""
        return self._transport is None

    def submit(self, collector: Collector, request: Submit) -> None:
        """Ask the engine, unless the request was cancelled while its prompt was still being prepared."""
        if collector.cancelled:
            usage, timing = EngineUsage(prompt=0, completion=0), Timing(queue_ms=0.0, ttft_ms=0.0, tpot_ms=0.0)
            collector.put(Output(handle=0, tokens=[], finish="abort", usage=usage, timing=timing))
            self._collectors.pop(collector.handle, None)
            return
        collector.submitted = True
        self._send(request)

    def cancel(self, collector: Collector, reason: Literal["abort", "stop"]) -> None:
        """The engine will answer with a terminal output."""
        if collector.submitted:
            self._send(Cancel(handle=collector.handle, reason=reason))
        else:
            collector.cancelled = True

    @property
    def busy(self) -> bool:
        """Whether the engine owes somebody an answer, or blocks that are to be handed over."""
        return bool(self._handed) or any(collector.submitted for collector in self._collectors.values())

    def rest(self, level: Literal[0, 1, 2]) -> None:
        """Ask the process to sleep (1, 2) or to wake (0)."""
        self._send(Rest(level=level))

    async def export(self, tokens: list[int], salt: str) -> Handed:
        """Have the blocks of this prompt held out; `release` what comes back. Raises EngineFailed."""
        return await self._ask(Export(handle=next(self._handles), tokens=tokens, salt=salt))

    async def take(self, tokens: list[int], salt: str, path: str) -> Handed:
        """Have the process take the blocks at `path`. Raises EngineFailed."""
        return await self._ask(Import(handle=next(self._handles), tokens=tokens, salt=salt, path=path))

    def release(self, handle: int) -> None:
        self._send(Release(handle=handle))

    async def _ask(self, message: Export | Import) -> Handed:
        if self._transport is None:
            raise EngineFailed("The engine process went away.")
        waiting = self._handed[message.handle] = asyncio.get_running_loop().create_future()
        self._send(message)
        try:
            return await waiting
        except asyncio.CancelledError:  # what it would have held out has no reader
            self.release(message.handle)
            raise
        finally:
            self._handed.pop(message.handle, None)

    def _send(self, message: ToEngine) -> None:
        if self._transport is not None:
            self._transport.write(pack(message))

    def open(self, ended: Callable[[EngineUsage], None]) -> Collector:
        """A collector with a new handle. `ended` gets the exact usage, whoever still listens then."""
        collector = Collector(next(self._handles), ended)
        self._collectors[collector.handle] = collector
        if self._transport is None:
            collector.fail(EngineFailed("The engine process went away."))
        return collector

    def leave(self, collector: Collector) -> None:
        """Nobody reads this any more. If it still runs, stop it; it is kept until the engine told its usage."""
        if collector.submitted and not collector.over:
            self.cancel(collector, "abort")
        else:
            self._collectors.pop(collector.handle, None)

    def close(self, why: str) -> None:
        """Fail everything in flight. Safe to call twice."""
        if self._transport is not None:
            self._transport.close()
        self._transport = None
        collectors, self._collectors = self._collectors, {}
        for collector in collectors.values():
            lost = EngineLost if collector.submitted else EngineFailed
            collector.fail(lost(f"Request lost: {why}."))
        for waiting in self._handed.values():
            if not waiting.done():
                waiting.set_exception(EngineFailed(f"Request lost: {why}."))
        self._changed.set()

    def _hello(self, message: Hello) -> None:
        if message.protocol != PROTOCOL:
            self.close(f"the engine process speaks protocol {message.protocol}, not {PROTOCOL}")
            return
        self.info = message.info
        self._changed.set()

    def _step(self, message: Step) -> None:
        self.stats = message.stats
        for output in message.outputs:
            collector = self._collectors.get(output.handle)
            if collector is not None:
                collector.put(output)
                if collector.over:
                    del self._collectors[output.handle]
        for refusal in message.refusals:
            collector = self._collectors.pop(refusal.handle, None)
            if collector is not None:
                collector.fail(_error(refusal))


def _error(refusal: Refusal) -> EngineError:
    if refusal.kind == "overloaded":
        return Overloaded(refusal.message, retry_after=refusal.retry_after)
    return InvalidRequest(refusal.message, param=refusal.param, code=refusal.code)
