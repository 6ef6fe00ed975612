"""What gateway workers and the engine process say to each other over a Unix socket.

Knows: message shapes and length-prefixed framing (u32 big endian, msgpack). Does not know: sockets, models, text; only
token ids travel. One `Step` frame carries everything a step produced for one client.
"""

import struct
from collections.abc import Iterator
from typing import Literal

import msgspec
from msgspec import Struct

from engine.api import EngineStats, EngineUsage, Figures, FinishReason, ModelInfo, SamplingParams, Timing

PROTOCOL = 2
MAX_FRAME = 64 * 1024 * 1024

_HEADER = struct.Struct(">I")


class FrameError(Exception):
    """The other side sent what cannot be a frame; the connection is of no more use."""


class Submit(Struct, array_like=True, tag="submit", frozen=True, kw_only=True):
    """Generate from `tokens`. `handle` is chosen by the client and unique on its connection. `eos`: ids that end it.

    `grammar` is llguidance's notation; from `closing` tokens on, it is brought to an end. `prediction`: ids that the
    answer is likely to repeat.
    """

    handle: int
    tokens: list[int]
    sampling: SamplingParams
    seed: int
    eos: list[int]
    salt: str
    priority: int
    deadline_ms: float | None
    grammar: str | None = None
    closing: int | None = None
    prediction: list[int] = []


class Cancel(Struct, array_like=True, tag="cancel", frozen=True, kw_only=True):
    """Stop this handle. The engine answers with a terminal `Output` that carries `reason` and the exact usage."""

    handle: int
    reason: Literal["abort", "stop"]


class Rest(Struct, array_like=True, tag="rest", frozen=True, kw_only=True):
    """Sleep at once if nothing runs (level 1: drop keys and values; 2: the weights too), or wake (0)."""

    level: Literal[0, 1, 2]


class Export(Struct, array_like=True, tag="export", frozen=True, kw_only=True):
    """Hold out the keys and values of this prompt's blocks, as far as they are here, until `Release` or the end."""

    handle: int
    tokens: list[int]
    salt: str


class Import(Struct, array_like=True, tag="import", frozen=True, kw_only=True):
    """Take the blocks that another process holds out at `path` as if they had been computed here."""

    handle: int
    tokens: list[int]
    salt: str
    path: str


class Release(Struct, array_like=True, tag="release", frozen=True, kw_only=True):
    """What was held out under this handle is not needed any more."""

    handle: int


class Choice(Struct, array_like=True, frozen=True):
    """The log probability of a chosen token and the best alternatives as (token id, log probability)."""

    logprob: float
    top: list[tuple[int, float]]


class Output(Struct, array_like=True, kw_only=True):
    """New tokens of one handle. Terminal when `finish` is set; then `usage` and `timing` are too.

    `scores`: log probabilities of prompt tokens, from the second on, as far as this step read it. `why`: what is wrong
    with the form that was asked for, where that ended it.
    """

    handle: int
    tokens: list[int]
    choices: list[Choice] | None = None
    finish: FinishReason | None = None
    usage: EngineUsage | None = None
    timing: Timing | None = None
    scores: list[Choice] | None = None
    why: str = ""


def merge(first: Output, second: Output) -> Output:
    """Both as one, for a reader that is behind. Changes `first`."""
    first.tokens += second.tokens
    if second.choices is not None:
        first.choices = (first.choices or []) + second.choices
    if second.scores is not None:
        first.scores = (first.scores or []) + second.scores
    first.finish, first.usage, first.timing, first.why = second.finish, second.usage, second.timing, second.why
    return first


class Refusal(Struct, array_like=True, kw_only=True):
    """This handle was not admitted; nothing was computed."""

    handle: int
    kind: Literal["overloaded", "invalid"]
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: float = 0.0


class Hello(Struct, array_like=True, tag="hello", kw_only=True):
    """Sent once per connection, when the model is loaded."""

    protocol: int
    info: ModelInfo


class Failed(Struct, array_like=True, tag="failed", kw_only=True):
    """Sent instead of `Hello` by a process that cannot load its model and ends."""

    reason: str


class Step(Struct, array_like=True, tag="step", kw_only=True):
    """What one turn of the loop has for this client; also sent, empty, as a heartbeat."""

    outputs: list[Output]
    refusals: list[Refusal]
    stats: EngineStats


class Counted(Struct, array_like=True, tag="counted", kw_only=True):
    """What the process has counted so far; sent now and then."""

    figures: Figures


class Handed(Struct, array_like=True, tag="handed", kw_only=True):
    """The answer to `Export` and `Import`: so many blocks; `path` of what is held out, empty when it is nothing."""

    handle: int
    blocks: int
    path: str = ""


ToEngine = Submit | Cancel | Rest | Export | Import | Release
ToClient = Hello | Failed | Step | Counted | Handed

_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_to_client: msgspec.msgpack.Decoder[ToClient] = msgspec.msgpack.Decoder(ToClient)


def pack(message: ToEngine | ToClient) -> bytes:
    payload = _encoder.encode(message)
    return _HEADER.pack(len(payload)) + payload


def read_for_engine(payload: bytes) -> ToEngine:
    """Raises FrameError."""
    try:
        return _to_engine.decode(payload)
    except msgspec.MsgspecError as error:
        raise FrameError(str(error)) from error


def read_for_client(payload: bytes) -> ToClient:
    """Raises FrameError."""
    try:
        return _to_client.decode(payload)
    except msgspec.MsgspecError as error:
        raise FrameError(str(error)) from error


class FrameBuffer:
    """Bytes in any pieces go in, whole payloads come out."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Raises FrameError when a frame claims more than `MAX_FRAME` bytes."""
        self._data += data
        at = 0
        try:
            while len(self._data) - at >= _HEADER.size:
                (size,) = _HEADER.unpack_from(self._data, at)
                if size > MAX_FRAME:
                    raise FrameError(f"frame of {size} bytes")
                if len(self._data) - at - _HEADER.size < size:
                    return
                at += _HEADER.size + size
                yield bytes(self._data[at - size : at])
        finally:
            del self._data[:at]
