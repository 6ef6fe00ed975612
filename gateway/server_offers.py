"""An offer to go on in another protocol, which is not taken up: the request is read to its end as HTTP/1.

The parser takes such an offer at its word and reads no further. Java's HTTP client offers h2c with every first request,
body and all. So what follows the head is read by a parser of its own, and so are the requests after it.
Does not know which offers are taken up (`gateway.server_socket`), nor what is asked.
"""

from collections.abc import Iterable
from typing import Any, Protocol

import httptools

_LENGTHS = frozenset({b"content-length", b"transfer-encoding"})


class Reader(Protocol):
    """The parser's callbacks."""

    def on_message_begin(self) -> None: ...

    def on_url(self, url: bytes) -> None: ...

    def on_header(self, name: bytes, value: bytes) -> None: ...

    def on_headers_complete(self) -> None: ...

    def on_body(self, body: bytes) -> None: ...

    def on_message_complete(self) -> None: ...


def has_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name in _LENGTHS and value.strip(b"0 \t") for name, value in headers)


def reading_on(reader: Reader, headers: Iterable[tuple[bytes, bytes]]) -> Any:
    """A parser that goes on where another one stopped behind `headers`: at the body, if there is any, else behind it.

    It is told the length by a head of its own, of which nobody hears; the first parser has found nothing wrong in it.
    """
    found = list(headers)
    after = _After(reader)
    parser = httptools.HttpRequestParser(after)
    if has_body(found):
        lengths = b"".join(b"%b: %b\r\n" % (name, value) for name, value in found if name in _LENGTHS)
        parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % lengths)
    after.silent = False
    return parser


class _After:
    """Passes all on that is no longer of our own making."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.silent = True
        self.on_body = reader.on_body
        self.on_message_complete = reader.on_message_complete

    def on_message_begin(self) -> None:
        if not self.silent:
            self._reader.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self.silent:
            self._reader.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.silent:
            self._reader.on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self.silent:
            self._reader.on_headers_complete()
