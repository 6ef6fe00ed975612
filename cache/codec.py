"""Entries as bytes: a version, a checksum, msgpack. Damage becomes a miss, never an answer.

The vector is left out: stores keep it where whole partitions are read, apart from answers.
"""

import zlib

import msgspec

from cache.types import Entry

_VERSION = b"\x01"
_HEAD = 5
_encode = msgspec.msgpack.Encoder()
_decode = msgspec.msgpack.Decoder(Entry)


def encode(entry: Entry) -> bytes:
    """`entry` without its vector."""
    body = _encode.encode(msgspec.structs.replace(entry, vector=b""))
    return _VERSION + zlib.crc32(body).to_bytes(4, "big") + body


def decode(raw: bytes, exact: bytes) -> Entry | None:
    """The entry kept under `exact`; None when the bytes are damaged, of another version, or another entry's."""
    body = raw[_HEAD:]
    if raw[:1] != _VERSION or zlib.crc32(body).to_bytes(4, "big") != raw[1:_HEAD]:
        return None
    try:
        entry = _decode.decode(body)
    except msgspec.DecodeError:
        return None
    return entry if entry.exact == exact else None
