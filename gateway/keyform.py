"""What a key looks like: `sk-nh-<8 id>-<43 secret><6 check>`, how one is made, checked and turned into what is stored.

The id is public and names the row; the secret carries 256 random bits; the check is a CRC-32 in base 62, so that a
mistyped key is refused without a look at the database and secret scanners find leaked ones. Only an HMAC-SHA256 under a
sub-key of the pepper is stored (method: keyed hash of a high-entropy secret, no slow hash needed).
Does not know: who holds a key, databases, roles.
"""

import hashlib
import hmac
import re
import zlib
from collections.abc import Callable
from typing import NamedTuple

PREFIX = "sk-nh-"
_FORM = re.compile(rb"sk-nh-([a-z0-9]{8})-([A-Za-z0-9_-]{43})([0-9A-Za-z]{6})")
_ID_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_SECRET_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"  # noqa: S105 - an alphabet
_CHECK_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_LABEL = b"nearhit api key v1"
_MARK = b"nearhit session secret v1"


class Minted(NamedTuple):
    """A new key: the public id and the whole text, which exists only here until it is shown."""

    id: str
    key: str


def check(text: bytes) -> bytes:
    """Six letters of CRC-32 over the rest of the key."""
    value = zlib.crc32(text)
    letters: list[str] = []
    for _ in range(6):
        value, rest = divmod(value, 62)
        letters.append(_CHECK_LETTERS[rest])
    return "".join(reversed(letters)).encode()


def mint(random: Callable[[int], bytes], *, name: str | None = None) -> Minted:
    """A new key from `random(n) -> n bytes`; `name` keeps a known id. Ids are nearly, secrets exactly uniform."""
    key_id = name or "".join(_ID_LETTERS[byte % 36] for byte in random(8))
    bits = int.from_bytes(random(33), "big")
    secret = "".join(_SECRET_LETTERS[bits >> (6 * place) & 63] for place in range(43))
    body = f"{PREFIX}{key_id}-{secret}"
    return Minted(key_id, body + check(body.encode()).decode())


def key_id(token: bytes) -> str | None:
    """The public id of a well-formed key, None for anything else. Never raises, never looks anything up."""
    found = _FORM.fullmatch(token)
    if found is None or not hmac.compare_digest(check(token[:-6]), found[3]):
        return None
    return found[1].decode()


def stored_form(pepper: bytes, token: bytes) -> bytes:
    """32 bytes to keep instead of the key. The label binds this use of the pepper to keys alone."""
    subkey = hmac.digest(pepper, _LABEL, hashlib.sha256)
    return hmac.digest(subkey, token, hashlib.sha256)


def mark(pepper: bytes, kept: bytes) -> str:
    """What a session remembers of the key it was opened with: says which one it was, and is not what is kept of it."""
    return hmac.digest(pepper, _MARK + kept, hashlib.sha256).hex()
