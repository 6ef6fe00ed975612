"""One request and its answer on the wire, and how a refusal of the protocol itself is told.

Knows uvicorn's request cycle and writes answers in its place: checked once per name instead of once per header, never
in chunks to HTTP/1.0, never without an `x-request-id`. Does not know connections: `gateway.server_protocol` does.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import httptools
from uvicorn.protocols.http.httptools_impl import HEADER_RE, STATUS_LINE, RequestResponseCycle

from gateway.errors import GatewayError, Internal, InvalidRequest, Stopping
from gateway.ids import uuid7

log = logging.getLogger("nearhit.http")

_NOTHING, _LENGTH, _ENCODING, _CONNECTION, _REQUEST_ID = range(5)
_MEANING = {
    b"content-length": _LENGTH,
    b"transfer-encoding": _ENCODING,
    b"connection": _CONNECTION,
    b"x-request-id": _REQUEST_ID,
}
_MOST_NAMES = 1_024
_names: dict[bytes, tuple[bytes, int]] = {}  # as the application writes it -> as it is sent, what it means here
_standing: tuple[list[tuple[bytes, bytes]], bytes] = ([], b"")
_FORBIDDEN = bytes(code for code in range(32) if code != 9) + b"\x7f"  # in a value: they would end the header
_NO_BODY = frozenset((204, 304))


class HeadersTooLarge(InvalidRequest):
    """Too many or too long: the client's or a proxy's mistake."""

    status = 431
    code = "headers_too_large"


class UriTooLong(InvalidRequest):
    """A query string that should have been a body."""

    status = 414
    code = "uri_too_long"


class TurnedAway(NamedTuple):
    """What stands in place of a request that no application saw: it has been answered."""

    message_event: asyncio.Event
    response_complete: bool = True
    response_started: bool = True
    keep_alive: bool = True


class Cycle(RequestResponseCycle):
    """`chunked_encoding` None, after the head: the body ends with the connection (HTTP/1.0).

    The head leaves together with the first piece of the body, an empty one included: one system call less.
    """

    _head = b""
    _act: Callable[[], None] | None = None

    async def run_asgi(self, app: Any) -> None:
        """Also where the server cancels what outlasts its drain: that is told, and is nobody's bug."""
        self._app = app
        await super().run_asgi(self._until_stopped)

    async def _until_stopped(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not self.response_started:
                await self._refuse(Stopping())
            elif not self.response_complete:
                self.transport.close()
                self.disconnected = True  # there is no more to be said of it

    def taken(self) -> bytes | None:
        """The whole request body if it has arrived, without a turn through ASGI's messages (`gateway.connection`)."""
        if self.more_body or self.disconnected or self.waiting_for_100_continue:
            return None
        body, self.body = self.body, b""
        self.flow.resume_reading()
        return bytes(body)

    def answered(self, lines: str, payload: bytes) -> bool:
        """Write a whole answer with status 200 in one piece; False, and nothing written, where that is not so simple.

        `lines` name the request and hold nothing that would break out of its line: see `gateway.headers`.
        """
        if self.response_started or self.flow.write_paused or not self.keep_alive or self.scope["method"] != "POST":
            return False
        if self.disconnected:
            return True
        told, standing = lines.encode(), lines_of(self.default_headers)
        self.response_started = True
        self.transport.write(
            b"%b%b%bcontent-length: %d\r\n\r\n%b" % (STATUS_LINE[200], standing, told, len(payload), payload)
        )
        self._complete()
        return True

    def pushed(self, piece: bytes) -> bool:
        """Write a piece of a body that has begun; False when the client is slow. One that has gone gets nothing."""
        if not self.disconnected:
            if self.chunked_encoding and not self._head:
                self.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            else:
                self._continue({"body": piece, "type": "http.response.body", "more_body": True})
        return not self.flow.write_paused

    def when_gone(self, act: Callable[[], None] | None) -> None:
        """Call `act` once if the client goes before its answer is complete, soon if it has gone already."""
        self._act = act
        if self.disconnected and act is not None:
            asyncio.get_running_loop().call_soon(self.lost)

    def lost(self) -> None:
        """The client has gone before its answer was complete."""
        self.disconnected = True
        self.message_event.set()
        act, self._act = self._act, None
        if act is not None:
            act()

    async def send(self, message: Any) -> None:
        """ASGI's send. Raises RuntimeError on messages out of order, and for headers that are none."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if self.response_complete:
            raise RuntimeError(f"'{message['type']}' after the answer was complete")
        if not self.response_started:
            self._start(message)
        else:
            self._continue(message)

    async def send_500_response(self) -> None:
        await self._refuse(Internal("The server failed to answer this request."))

    async def _refuse(self, error: GatewayError) -> None:
        payload, headers = told(error)
        await self.send({"type": "http.response.start", "status": error.http_status, "headers": headers})
        await self.send({"type": "http.response.body", "body": payload, "more_body": False})

    def _start(self, message: Any) -> None:
        if message["type"] != "http.response.start":
            raise RuntimeError(f"'{message['type']}' before 'http.response.start'")
        status: int = message["status"]
        self.chunked_encoding, self.expected_content_length = None, 0  # a head that failed may have left its own
        lines = [STATUS_LINE[status]]
        for name, value in self.default_headers:
            lines += (name, b": ", value, b"\r\n")
        named, closing = self._write_headers(lines, message.get("headers", ()))
        if not named:
            lines += (b"x-request-id: ", uuid7().encode("ascii"), b"\r\n")
        if self.waiting_for_100_continue:
            # Whether the body still comes is the client's choice: nothing after it could be told apart.
            self.keep_alive = False
        if self.chunked_encoding is None and self.scope["method"] != "HEAD" and status not in _NO_BODY:
            if self.scope["http_version"] == "1.0":
                self.keep_alive = False
            else:
                self.chunked_encoding = True
                lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive and not closing:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        self.response_started = True
        self.waiting_for_100_continue = False
        self._head = b"".join(lines)

    def _write_headers(self, lines: list[bytes], headers: Any) -> tuple[bool, bool]:
        """Append them; answer whether they name the request and whether they close the connection."""
        named = closing = False
        values: list[bytes] = []
        for given, value in headers:
            name, meaning = _names.get(given) or _learn(given)
            values.append(value)
            if meaning:
                if meaning == _LENGTH:
                    if self.chunked_encoding is None:
                        self.expected_content_length = int(value)
                        self.chunked_encoding = False
                elif meaning == _REQUEST_ID:
                    named = True
                elif meaning == _ENCODING:
                    self.chunked_encoding = True
                    self.expected_content_length = 0
                elif b"close" in value.lower():
                    self.keep_alive = False
                    closing = True
            lines += (name, b": ", value, b"\r\n")
        joined = b"".join(values)
        if len(joined.translate(None, _FORBIDDEN)) != len(joined):
            raise RuntimeError("a header's value holds control characters")
        return named, closing

    def _continue(self, message: Any) -> None:
        if message["type"] != "http.response.body":
            raise RuntimeError(f"'{message['type']}' where 'http.response.body' was due")
        body: bytes = message.get("body", b"")
        more = message.get("more_body", False)
        if self.scope["method"] == "HEAD":
            self.expected_content_length = 0
            body = b""
        elif self.chunked_encoding:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body = chunk if more else chunk + b"0\r\n\r\n"
        else:
            if self.chunked_encoding is False:
                self.expected_content_length -= len(body)
                if self.expected_content_length < 0:
                    raise RuntimeError("the body is longer than its content-length")
        head, self._head = self._head, b""
        if head or body:
            self.transport.write(head + body)
        if not more:
            self._complete()

    def _complete(self) -> None:
        if self.expected_content_length > 0:
            raise RuntimeError("the body is shorter than its content-length")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            if self.more_body and self.transport.can_write_eof():
                # Closed while more of its body comes in, the connection would be reset and take the answer back.
                self.transport.write_eof()
            else:
                self.transport.close()
        self.on_response()


def lines_of(standing: list[tuple[bytes, bytes]]) -> bytes:
    """The server's own headers as lines; uvicorn makes the list anew once a second, for the date."""
    global _standing  # noqa: PLW0603 - the last one
    if _standing[0] is not standing:
        _standing = standing, b"".join([b"%b: %b\r\n" % pair for pair in standing])
    return _standing[1]


def _learn(given: bytes) -> tuple[bytes, int]:
    """Check a header's name and remember it: an application uses a few dozen."""
    if not given or HEADER_RE.search(given):
        raise RuntimeError(f"not a header name: {given[:40]!r}")
    name = given.lower()
    found = name, _MEANING.get(name, _NOTHING)
    if len(_names) < _MOST_NAMES:
        _names[given] = found
    return found


def told(error: GatewayError) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Body and headers of a refusal, in OpenAI's error shape and with an id of its own."""
    payload = error.body()
    extra = [(name.encode("ascii"), value.encode("latin-1")) for name, value in error.headers]
    return payload, [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(payload)),
        (b"x-request-id", uuid7().encode("ascii")),
        *extra,
    ]


def fault_of(error: httptools.HttpParserError) -> GatewayError:
    """Of what went wrong in a callback only an unreadable URI is the client's fault."""
    cause = error.__context__
    ours = isinstance(error, httptools.HttpParserCallbackError) and not isinstance(
        cause, httptools.HttpParserInvalidURLError | UnicodeDecodeError
    )
    if ours:
        log.error("the protocol failed", exc_info=cause)
        return Internal("The server failed to read this request.")
    return InvalidRequest(f"Malformed HTTP request: {error}.", code="malformed_request")
