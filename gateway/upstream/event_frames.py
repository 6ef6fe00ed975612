"""AWS's binary event stream (`application/vnd.amazon.eventstream`) from bytes, incrementally, within bounds.

Knows: frames, their two checksums, headers that are texts. Does not know: what events mean. Every event comes out as
one JSON object, `{"event": NAME, "body": PAYLOAD}`, or `{"exception": NAME, "body": PAYLOAD}`.
Source: the Smithy specification, "Amazon Event Stream".
"""

import struct
import zlib

import msgspec

from gateway.stream import MAX_EVENT, StreamGarbage

_PRELUDE = 12  # total length, length of the headers, checksum of both
_LEAST = 16
_TEXT = 7  # the one type of header that events use
# Bytes of a header's value by its type; None: a length of two bytes stands before it.
_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 6: None, 7: None, 8: 8, 9: 16}
_encode = msgspec.json.Encoder().encode


class FrameParser:
    """Feed packets, get the events that are complete. A frame that the end of input cut is never given out."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._failure: StreamGarbage | None = None

    def feed(self, packet: bytes) -> list[bytes]:
        """Raises StreamGarbage for a frame that is broken, after the events before it have been given out."""
        if self._failure is not None:
            raise self._failure
        self._rest += packet
        events: list[bytes] = []
        try:
            while (event := self._next()) is not None:
                events.append(event)
        except StreamGarbage as error:
            self._failure = error
            if not events:
                raise
        return events

    def _next(self) -> bytes | None:
        rest = self._rest
        if len(rest) < _PRELUDE:
            return None
        total, headers, check = struct.unpack_from(">III", rest)
        if zlib.crc32(rest[:8]) != check or not _LEAST + headers <= total <= MAX_EVENT:
            raise StreamGarbage("sent a frame with a broken head")
        if len(rest) < total:
            return None
        frame = bytes(rest[:total])
        del rest[:total]
        if zlib.crc32(frame[:-4]) != struct.unpack_from(">I", frame, total - 4)[0]:
            raise StreamGarbage("sent a frame whose checksum is wrong")
        return _event(_headers(frame[_PRELUDE : _PRELUDE + headers]), frame[_PRELUDE + headers : -4])


def _event(headers: dict[str, str], payload: bytes) -> bytes:
    body = payload.strip() or b"{}"
    kind = headers.get(":message-type", "event")
    if kind == "error":
        name, body = headers.get(":error-code", ""), _encode({"message": headers.get(":error-message", "")})
    else:
        name = headers.get(":exception-type" if kind == "exception" else ":event-type", "")
    told = b"event" if kind == "event" else b"exception"
    return b'{"%b":%b,"body":%b}' % (told, _encode(name), body)


def _headers(raw: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    at = 0
    try:
        while at < len(raw):
            name = raw[at + 1 : at + 1 + raw[at]].decode()
            at += 1 + raw[at]
            kind = raw[at]
            at += 1
            size = _SIZES[kind]
            if size is None:
                size = int.from_bytes(raw[at : at + 2], "big")
                at += 2
            if kind == _TEXT:
                found[name] = raw[at : at + size].decode()
            at += size
    except (IndexError, KeyError, UnicodeDecodeError) as error:
        raise StreamGarbage("sent a frame with broken headers") from error
    return found
