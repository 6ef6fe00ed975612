"""Frames between gateway workers and the encoder process: u32 big-endian length, then msgpack, over a Unix socket."""

import asyncio

import msgspec
from msgspec import Struct

# 2,048 texts of 8,000 characters, the largest embedding request, fit with room to spare.
MAX_FRAME = 64 << 20


class Hello(Struct, kw_only=True):
    """The encoder's first frame, sent once it is loaded. `name` identifies model, weights and precision.

    `reader`: digest of what reads two texts together; empty: it cannot.
    """

    name: str
    dimension: int
    window: int
    reader: str = ""


class Ask(Struct, kw_only=True):
    """`vectors=False` only counts tokens. `pairs`: texts to be read together; then there are no `texts`."""

    id: int
    texts: list[str] = []
    vectors: bool = True
    pairs: list[tuple[str, str]] = []


class Answer(Struct, kw_only=True):
    """`vectors`: `(len(tokens), dimension)` float32 little endian, normalised. `tokens`: before the text is cut.

    `readings`: log odds, one for each pair. `seconds`: of computing, this ask's share of the passes it was part of.
    """

    id: int
    tokens: list[int] = []
    vectors: bytes = b""
    readings: list[float] = []
    seconds: float = 0.0
    error: str | None = None


encode = msgspec.msgpack.Encoder().encode
decode_hello = msgspec.msgpack.Decoder(Hello).decode
decode_ask = msgspec.msgpack.Decoder(Ask).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode


def frame(message: Struct) -> bytes:
    body = encode(message)
    return len(body).to_bytes(4, "big") + body


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """One message. Raises asyncio.IncompleteReadError at the end, ValueError for one that is too long."""
    length = int.from_bytes(await reader.readexactly(4), "big")
    if length > MAX_FRAME:
        raise ValueError(f"a frame of {length} bytes")
    return await reader.readexactly(length)
