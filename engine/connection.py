"""One client of the engine process as the process sees it: what it asked, what waits to be written to it.

Knows: a socket that must never block, frames, merging. Does not know: the core, other clients.

A client that reads slowly gets its outputs merged, one per request, so what waits for it cannot grow with time. A
client that does not read and goes on asking is not read from until it does.
"""

import selectors
import socket
from collections.abc import Iterator

from engine.api import EngineStats, Figures
from engine.frames import (
    Counted,
    FrameBuffer,
    Handed,
    Hello,
    Output,
    Refusal,
    Step,
    ToEngine,
    merge,
    pack,
    read_for_engine,
)
from engine.handover import Held

_READ = 256 * 1024
_MOST_WAITING = 4096  # outputs and refusals of a client that does not read, before it is not read from either


class Connection:
    """`handles` are this client's running requests; `counted`: when it was last sent figures (seconds)."""

    def __init__(self, connected: socket.socket, hello: Hello) -> None:
        connected.setblocking(False)
        self.socket = connected
        self.handles: set[int] = set()
        self.counted = 0.0
        self.held: dict[int, Held] = {}  # what it asked to be held out for another process
        self._buffer = FrameBuffer()
        self._unsent = bytearray(pack(hello))
        self._outputs: dict[int, Output] = {}
        self._refusals: list[Refusal] = []

    @property
    def fd(self) -> int:
        return self.socket.fileno()

    @property
    def interest(self) -> int:
        """What to wait for, as `selectors` names it. Never nothing: a client that is gone must be seen."""
        full = self._unsent and len(self._outputs) + len(self._refusals) > _MOST_WAITING
        write = selectors.EVENT_WRITE if self._unsent else 0
        return write if full else write | selectors.EVENT_READ

    @property
    def waiting(self) -> bool:
        """Whether there is anything to tell it."""
        return bool(self._outputs or self._refusals)

    def read(self) -> Iterator[ToEngine]:
        """The messages that have arrived. Raises FrameError for what is none, ConnectionError when it is gone."""
        try:
            data = self.socket.recv(_READ)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError("closed")
        for payload in self._buffer.feed(data):
            yield read_for_engine(payload)

    def add(self, output: Output) -> None:
        """To be sent; `output.handle` says whose it is."""
        before = self._outputs.get(output.handle)
        self._outputs[output.handle] = output if before is None else merge(before, output)
        if output.finish is not None:
            self.handles.discard(output.handle)

    def hand(self, told: Handed) -> None:
        """Answer an export or an import; a client waits for one before it asks the next of a request."""
        self._unsent += pack(told)

    def release(self, handle: int) -> None:
        held = self.held.pop(handle, None)
        if held is not None:
            held.close()

    def close(self) -> None:
        for handle in list(self.held):
            self.release(handle)
        self.socket.close()

    def refuse(self, refusal: Refusal) -> None:
        self._refusals.append(refusal)

    def send(self, stats: EngineStats, now: float, figures: Figures | None = None) -> None:
        """One frame with all that waits; while an earlier one is still being written, nothing: more is merged.

        `figures` go along. Raises OSError when the client is gone.
        """
        self.flush()
        if self._unsent:
            return
        self._unsent += pack(Step(outputs=list(self._outputs.values()), refusals=self._refusals, stats=stats))
        if figures is not None:
            self._unsent += pack(Counted(figures=figures))
            self.counted = now
        self._outputs, self._refusals = {}, []
        self.flush()

    def flush(self) -> None:
        """Write what the socket takes now. Raises OSError when the client is gone."""
        try:
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent)]
        except BlockingIOError:
            pass
