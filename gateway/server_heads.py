"""Heads that come again: on a kept connection most requests begin word for word as the last did, but for the length.

A client's library sends a dozen headers or more, the same ones with each request. To read them takes a callback each;
to compare them is one step. Only a head that the parser has read on this connection is known, byte by byte, and only
where nothing in it leaves open where it ends and how long the body is; every other head is the parser's.
Knows: when two heads are the same. Does not know: what headers mean, when a connection may take the next request.
"""

from typing import Any, NamedTuple

Headers = list[tuple[bytes, bytes]]

_LARGEST = 4_096  # bytes that a connection remembers: of a head, not of headers in the thousands
_LONGEST = 12  # digits of a length, and what ends them
_LENGTH = b"content-length"
# Of the names that change what comes after a head, all but the one that is compared.
_OTHERS = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"trailer"))


class Known(NamedTuple):
    """What was read of a head. `before`, `after`: its bytes around the digits of its length, which is `headers[at]`."""

    before: bytes
    after: bytes
    at: int
    headers: Headers
    scope: dict[str, Any]

    def behind(self, data: bytes) -> tuple[int, int] | None:
        """Where the body begins and how long it is; None where `data` does not begin with this head, all of it."""
        before, after = self.before, self.after
        if not data.startswith(before):
            return None
        start = len(before)
        end = data.find(b"\r", start, start + _LONGEST)
        digits = data[start:end] if end > 0 else b""
        if not digits.isdigit() or (digits[0] == 0x30 and len(digits) > 1) or not data.startswith(after, end):
            return None
        return end + len(after), int(digits)

    def told(self, length: int) -> Headers:
        """The headers, with a length of their own: a list that whoever is asked may keep."""
        headers = self.headers.copy()
        headers[self.at] = (_LENGTH, b"%d" % length)
        return headers


def known_of(data: bytes, headers: Headers, scope: dict[str, Any]) -> Known | None:
    """The head that `data` begins with, of which the parser made `headers` and `scope`; None if it must be read again.

    It must have exactly the lines that the parser made headers of, each ended by CRLF: then its first empty line is
    where the parser, too, saw it end.
    """
    end = data.find(b"\r\n\r\n", 0, _LARGEST)
    lines = data[:end].split(b"\r\n") if end > 0 else []
    names = [name for name, _ in headers]
    if len(lines) != len(names) + 1 or data.count(b"\n", 0, end) != len(names):
        return None
    if names.count(_LENGTH) != 1 or not _OTHERS.isdisjoint(names):
        return None
    at = names.index(_LENGTH)
    name, _, value = lines[at + 1].partition(b":")
    digits = value.strip(b" \t")
    if name.lower() != _LENGTH or digits != headers[at][1] or b"\r" in data[:end].replace(b"\r\n", b""):
        return None
    start = sum(len(line) + 2 for line in lines[: at + 1]) + len(name) + 1 + value.index(digits)
    return Known(data[:start], data[start + len(digits) : end + 4], at, headers.copy(), scope)
