"""`/v1/moderations`, `/v1/images/generations`, `/v1/audio/speech` and `/v1/audio/transcriptions`: charged, passed on.

Knows: the paths, and how a form becomes a request. Does not know: what is checked (`gateway.dialects.passed`).
"""

from typing import Any

from litestar.types import HTTPScope, Receive

from gateway.call import Body, Call
from gateway.connection import Connection
from gateway.dialects.passed import FILES, Passed
from gateway.directives import directives
from gateway.errors import InvalidRequest
from gateway.routes.openai import Edge, Endpoint, Endpoints, Read
from gateway.upload import Form, Reader

_LARGEST_AUDIO = 25 << 20
_REPEATED = "[]"  # ends the name of a field that may come several times


class Transcribing(Endpoint):
    """A form with a recording in it."""

    def __init__(self, edge: Edge) -> None:
        super().__init__(edge, Passed("transcription"))

    async def _read(self, request_id: str, scope: HTTPScope, receive: Receive, connection: Connection) -> Call:  # noqa: ARG002 - the same for all
        received = self._edge.monotonic()
        principal = await self._principal(scope)
        headers: Any = scope["headers"]
        pieces: list[bytes] = []

        async def keep(piece: bytes) -> None:
            pieces.append(piece)

        form = await Reader(headers, keep, limit=_LARGEST_AUDIO).read(receive, self._edge.server.body_timeout)
        given = _given(form, b"".join(pieces))
        read = Read(given, directives(headers), received, form.size + form.extra)
        return await self._made(request_id, principal, scope, read)


def _given(form: Form, data: bytes) -> Body:
    given: Body = {}
    for name, value in form.fields:
        if name == FILES:
            raise InvalidRequest(f"'{FILES}' is not a field of this form.", param=FILES)
        if name.endswith(_REPEATED):
            values: Any = given.setdefault(name, [])
            values.append(value)
        else:
            given[name] = value
    given[FILES] = [] if form.filename is None else [("file", form.filename, form.content_type, data)]
    return given


def endpoints(edge: Edge) -> Endpoints:
    """By path, without `/v1`."""
    return {
        "/moderations": Endpoint(edge, Passed("moderation")),
        "/images/generations": Endpoint(edge, Passed("image")),
        "/audio/speech": Endpoint(edge, Passed("speech")),
        "/audio/transcriptions": Transcribing(edge),
    }
