"""A form with files in it, off the wire and straight on to where they go, a piece at a time.

Knows: multipart/form-data (RFC 7578), how much a form may hold and how slowly it may come. Does not know: what the
fields mean, where pieces are kept.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, cast

from multipart import (
    MultipartError,
    MultipartSegment,
    ParserLimitReached,
    PushMultipartParser,
    parse_options_header,  # pyright: ignore[reportUnknownVariableType] - the library leaves it untyped
)

from gateway.body import SLOWEST_BYTES_PER_SECOND, Headers, Receive
from gateway.errors import InvalidRequest, RequestTimeout, TooLarge, UnsupportedMedia
from gateway.pieces import PIECE

_FRAME = 64 << 10  # bytes of a form beside its file
_LONGEST_FIELD = 32 << 10  # what is to become of a picture may be told at length
_MOST_FIELDS = 64
_ONE_FILE = {"file": 1}
Keep = Callable[[bytes], Awaitable[None]]


class Part(NamedTuple):
    """A file of a form. `field`: under which name it came."""

    field: str
    filename: str
    content_type: str


class Form:
    """What was read. `size`: bytes of its files, `extra`: of the other fields."""

    def __init__(self) -> None:
        self.fields: list[tuple[str, str]] = []
        self.files: list[Part] = []
        self.size = 0
        self.extra = 0

    def field(self, name: str) -> str | None:
        return next((value for told, value in self.fields if told == name), None)


class Reader:
    """Reads one form. `keep` is handed the last of `form.files` in pieces.

    `limit`: of all its files; `setting`: that says so, if any does; `wanted`: how many may come under each name.
    """

    def __init__(
        self, headers: Headers, keep: Keep, *, limit: int, setting: str = "", wanted: Mapping[str, int] = _ONE_FILE
    ) -> None:
        """Raises UnsupportedMedia, TooLarge."""
        told = dict(headers)
        kind, options = _options(told.get(b"content-type", b"").decode("latin-1"))
        if kind != "multipart/form-data" or not options.get("boundary"):
            raise UnsupportedMedia("Send the file as multipart/form-data.")
        if (length := told.get(b"content-length", b"")).isdigit() and int(length[:20]) > limit + _FRAME:
            raise _too_large(limit, setting)
        self._parser = PushMultipartParser(options["boundary"], max_segment_size=limit, max_segment_count=_MOST_FIELDS)
        self._keep = keep
        self._limit = limit
        self._setting = setting
        self._wanted = wanted
        self.form = Form()
        self._segment: MultipartSegment | None = None
        self._held = bytearray()

    async def read(self, receive: Receive, timeout: float) -> Form:
        """Raises InvalidRequest, TooLarge, RequestTimeout; what was kept by then is the caller's to throw away."""
        loop = asyncio.get_running_loop()
        began, size = loop.time(), 0
        try:
            async with asyncio.timeout(timeout) as bound:
                while True:
                    message: Any = await receive()
                    if message["type"] != "http.request":
                        raise InvalidRequest("The connection was closed before the form was complete.")
                    chunk = message.get("body", b"")
                    size += len(chunk)
                    if size > self._limit + _FRAME:
                        raise _too_large(self._limit, self._setting)
                    await self._feed(chunk)
                    if not message.get("more_body", False):
                        break
                    bound.reschedule(began + timeout + size / SLOWEST_BYTES_PER_SECOND)
        except TimeoutError:
            raise RequestTimeout(f"The form did not arrive within {timeout:g} s.") from None
        try:
            self._parser.close()
        except MultipartError:
            raise InvalidRequest("The form ends too early.", code="invalid_form") from None
        return self.form

    async def _feed(self, chunk: bytes) -> None:
        try:
            for event in self._parser.parse(chunk) if chunk else ():
                await self._take(event)
        except ParserLimitReached as error:
            told = str(error)
            if "Content-Length" in told or "segment size" in told:
                raise _too_large(self._limit, self._setting) from None
            raise TooLarge(f"The form has more than {_MOST_FIELDS} parts, or one with too long a head.") from None
        except (MultipartError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"The form cannot be read: {str(error)[:200]}.", code="invalid_form") from None

    async def _take(self, event: object) -> None:
        """A field begins, goes on, or ends."""
        if isinstance(event, MultipartSegment):
            self._segment = event
            self._held.clear()
            if event.name in self._wanted:
                self._begin(event)
            return
        segment = self._segment
        assert segment is not None
        is_file = segment.name in self._wanted
        if isinstance(event, bytes | bytearray):
            self._held += event
            if not is_file and len(self._held) > _LONGEST_FIELD:
                raise InvalidRequest(f"'{str(segment.name)[:64]}' is too long.", param=str(segment.name)[:64])
            while is_file and len(self._held) >= PIECE:
                await self._pass(PIECE)
        elif is_file:
            if self._held:
                await self._pass(len(self._held))
        else:
            self.form.fields.append((str(segment.name)[:64], bytes(self._held).decode("utf-8")))
            self.form.extra += len(self._held)

    def _begin(self, segment: MultipartSegment) -> None:
        name = str(segment.name)
        if sum(part.field == name for part in self.form.files) >= self._wanted[name]:
            raise InvalidRequest(f"The form holds more than {_counted(self._wanted[name])}.", param=name)
        self.form.files.append(Part(name, segment.filename or "", segment.content_type or ""))

    async def _pass(self, length: int) -> None:
        piece = bytes(self._held[:length])
        del self._held[:length]
        self.form.size += len(piece)
        await self._keep(piece)


def _options(header: str) -> tuple[str, dict[str, str]]:
    return cast("tuple[str, dict[str, str]]", parse_options_header(header))


def _counted(most: int) -> str:
    return "one file" if most == 1 else f"{most} files"


def _too_large(limit: int, setting: str) -> TooLarge:
    if not setting:
        return TooLarge(f"The files of this form are larger than the {limit:,} bytes that may come here.")
    return TooLarge(f"The file is larger than the {limit:,} bytes this server accepts ({setting}).")
