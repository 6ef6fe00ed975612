"""Entries as bytes: a version, a checksum, msgpack, and over that, where there is a key, AES-256-GCM.

Version 1 is plain: version byte, CRC-32, msgpack. Version 2 is sealed: version byte, eight bytes that name the key, a
nonce of twelve, then the ciphertext of a whole version 1 record with its tag of sixteen (NIST SP 800-38D); the version,
the key's name and the entry's digest are authenticated with it, so no record can stand in another's place.
Damage, a key that is not at hand, and with keys any plain record, become a miss, never an answer.
The vector is left out: stores keep it where whole partitions are read, apart from answers. Does not know stores.
"""

import hashlib
import os
import zlib
from base64 import b64decode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from cache.types import Entry

PLAIN, SEALED = b"\x01", b"\x02"
_HEAD = 5
_NAME, _NONCE = 8, 12
_SEALED_HEAD = len(SEALED) + _NAME + _NONCE
_KEY = 32
_LARGEST_FILE = 64 << 10
_encode = msgspec.msgpack.Encoder()
_decode = msgspec.msgpack.Decoder(Entry)

Trouble = Literal["damaged", "version", "key", "forged", "plain"]


class Codec:
    """`keys`: of 32 bytes each; the first one seals, all of them open. Without any, records are plain.

    `unreadable` is told why each record that could not be read was not: `damaged` (its checksum), `version` (unknown),
    `key` (sealed with one that is not here), `forged` (changed, or another entry's), `plain` (where keys are in use).
    `is_answer`: whether bytes are an answer that can be served, so that one of another version is none.
    Raises ValueError for a key of another length.
    """

    def __init__(
        self,
        keys: Sequence[bytes] = (),
        unreadable: Callable[[Trouble], None] | None = None,
        is_answer: Callable[[bytes], bool] | None = None,
    ) -> None:
        self._unreadable = unreadable or _nobody
        self._is_answer = is_answer
        self._boxes = {}
        if not keys:
            return
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        for key in keys:
            if len(key) != _KEY:
                raise ValueError(f"a key of {len(key)} bytes; {_KEY} are needed")
            self._boxes[_name_of(key)] = AESGCM(key)
        self._name = _name_of(keys[0])

    @property
    def is_sealed(self) -> bool:
        return bool(self._boxes)

    def encode(self, entry: Entry) -> bytes:
        """`entry` without its vector."""
        body = _encode.encode(msgspec.structs.replace(entry, vector=b"") if entry.vector else entry)
        plain = PLAIN + zlib.crc32(body).to_bytes(4, "big") + body
        if not self._boxes:
            return plain
        head, nonce = SEALED + self._name, os.urandom(_NONCE)
        return head + nonce + self._boxes[self._name].encrypt(nonce, plain, head + entry.exact)

    def decode(self, raw: bytes, exact: bytes) -> Entry | None:
        """The entry kept under `exact`; None when the bytes are damaged, of another version or key, or another's."""
        found = self._open(raw, exact)
        if isinstance(found, Entry):
            if self._is_answer is None or self._is_answer(found.answer):
                return found
            found = "version"
        self._unreadable(found)
        return None

    def _open(self, raw: bytes, exact: bytes) -> Entry | Trouble:
        version = raw[:1]
        if version == SEALED:
            plain = self._unseal(raw, exact)
            return _read(plain, exact) if isinstance(plain, bytes) else plain
        if version != PLAIN:
            return "version"
        return "plain" if self._boxes else _read(raw, exact)

    def _unseal(self, raw: bytes, exact: bytes) -> bytes | Trouble:
        from cryptography.exceptions import InvalidTag

        head, nonce = raw[: 1 + _NAME], raw[1 + _NAME : _SEALED_HEAD]
        box = self._boxes.get(head[1:])
        if box is None:
            return "key"
        try:
            return box.decrypt(nonce, raw[_SEALED_HEAD:], head + exact)
        except (InvalidTag, ValueError):
            return "forged"


def read_keys(path: Path) -> list[bytes]:
    """The keys in a file: one per line as 64 hexadecimal digits or in base64, the newest first; `#` begins a comment.

    Raises ValueError naming the line, never what stands in it, and OSError.
    """
    if path.stat().st_size > _LARGEST_FILE:
        raise ValueError(f"{path} is too large to be a file of keys")
    keys: list[bytes] = []
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
        if written := line.partition("#")[0].strip():
            keys.append(_key(written, f"{path}, line {number}"))
    if not keys:
        raise ValueError(f"{path} holds no key; `openssl rand -hex 32` makes one")
    return keys


def _key(written: str, where: str) -> bytes:
    try:
        key = bytes.fromhex(written) if len(written) == 2 * _KEY else b64decode(written, validate=True)
    except ValueError:
        key = b""
    if len(key) != _KEY:
        raise ValueError(f"{where}: expected {_KEY} bytes as hexadecimal or base64; `openssl rand -hex 32` makes them")
    return key


def _name_of(key: bytes) -> bytes:
    """Tells keys apart and says nothing of them."""
    return hashlib.blake2b(key, digest_size=_NAME, person=b"nearhit cache").digest()


def _read(plain: bytes, exact: bytes) -> Entry | Trouble:
    body = plain[_HEAD:]
    if plain[:1] != PLAIN or zlib.crc32(body).to_bytes(4, "big") != plain[1:_HEAD]:
        return "damaged"
    try:
        entry = _decode.decode(body)
    except msgspec.DecodeError:
        return "version"
    return entry if entry.exact == exact else "damaged"


def _nobody(_: Trouble) -> None:
    """Nobody wants to know."""
