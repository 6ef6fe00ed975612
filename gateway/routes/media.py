"""`/v1/moderations`, `/v1/images/` and `/v1/audio/`: charged, passed on.

Knows: the paths, which of them take a form, and how a form becomes a request. Does not know: what is checked
(`gateway.dialects.passed`).
"""

from collections.abc import Mapping
from typing import Any

from litestar.types import HTTPScope, Receive
from msgspec import Struct

from gateway.call import Body, Call, Passed
from gateway.connection import Connection
from gateway.dialects import passed
from gateway.dialects.passed import FILES
from gateway.directives import directives
from gateway.errors import InvalidRequest
from gateway.routes.openai import Edge, Endpoint, Endpoints, Read
from gateway.upload import Form, Reader

_REPEATED = "[]"  # ends the name of a field that may come several times


class Sent(Struct, frozen=True):
    """The files of a form: how many under which name, and how many bytes in all."""

    wanted: Mapping[str, int]
    limit: int


_SOUND = Sent({"file": 1}, 25 << 20)
_PICTURES = Sent({"image": 1, "image[]": 16, "mask": 1, "markup": 1}, 64 << 20)
_PICTURE = Sent({"image": 1}, 25 << 20)


class Uploading(Endpoint):
    """A form with files in it."""

    def __init__(self, edge: Edge, operation: Passed, sent: Sent) -> None:
        super().__init__(edge, passed.Passed(operation))
        self._sent = sent

    async def _read(self, request_id: str, scope: HTTPScope, receive: Receive, connection: Connection) -> Call:  # noqa: ARG002 - the same for all
        received = self._edge.monotonic()
        principal = await self._principal(scope)
        headers: Any = scope["headers"]
        files: list[list[bytes]] = []

        async def keep(piece: bytes) -> None:
            while len(files) < len(reader.form.files):
                files.append([])
            files[-1].append(piece)

        reader = Reader(headers, keep, limit=self._sent.limit, wanted=self._sent.wanted)
        form = await reader.read(receive, self._edge.server.body_timeout)
        given = _given(form, [b"".join(pieces) for pieces in files])
        read = Read(given, directives(headers), received, form.size + form.extra)
        return await self._made(request_id, principal, scope, read)


def _given(form: Form, contents: list[bytes]) -> Body:
    given: Body = {}
    for name, value in form.fields:
        if name == FILES:
            raise InvalidRequest(f"'{FILES}' is not a field of this form.", param=FILES)
        if name.endswith(_REPEATED):
            values: Any = given.setdefault(name, [])
            values.append(value)
        else:
            given[name] = value
    empty = [b""] * (len(form.files) - len(contents))  # nothing came of the last of them
    given[FILES] = [(*part, content) for part, content in zip(form.files, [*contents, *empty], strict=True)]
    return given


def endpoints(edge: Edge) -> Endpoints:
    """By path, without `/v1`."""
    return {
        "/moderations": Endpoint(edge, passed.Passed("moderation")),
        "/images/generations": Endpoint(edge, passed.Passed("image")),
        "/images/edits": Uploading(edge, "image_edit", _PICTURES),
        "/images/variations": Uploading(edge, "image_variation", _PICTURE),
        "/audio/speech": Endpoint(edge, passed.Passed("speech")),
        "/audio/transcriptions": Uploading(edge, "transcription", _SOUND),
        "/audio/translations": Uploading(edge, "translation", _SOUND),
    }
