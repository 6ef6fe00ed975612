"""One request and its answer on the wire, and how a refusal of the protocol itself is told.

Knows uvicorn's request cycle. Does not know connections: `gateway.server_protocol` does.
"""

from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.errors import GatewayError, Internal, InvalidRequest
from gateway.ids import uuid7


class HeadersTooLarge(InvalidRequest):
    """Too many or too long: the client's or a proxy's mistake."""

    status = 431
    code = "headers_too_large"


class UriTooLong(InvalidRequest):
    """A query string that should have been a body."""

    status = 414
    code = "uri_too_long"


class Cycle(RequestResponseCycle):
    """One request and its answer."""

    async def send_500_response(self) -> None:
        payload, headers = told(Internal("The server failed to answer this request."))
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send({"type": "http.response.body", "body": payload, "more_body": False})


class CarefulCycle(Cycle):
    """The two rare cases: a client of HTTP/1.0, and one that waits for `100 Continue`."""

    _ends_with_the_connection = False

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start" and not self.response_started:
            if self.waiting_for_100_continue:
                # Whether its body still comes is the client's choice: nothing after it could be told apart.
                self.keep_alive = False
            if self.scope["http_version"] == "1.0" and not any(
                name.lower() == b"content-length" for name, _ in message.get("headers", ())
            ):
                self._ends_with_the_connection = True
                self.chunked_encoding = False
        elif self._ends_with_the_connection:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


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
