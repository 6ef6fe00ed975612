"""Batches at a service: requests that are handed over together and answered within a day, at half the price.

Knows: what a provider that has such a service offers (`Batching`), one call to it over HTTP, answers that come as
lines.
Does not know: any service's own protocol, whose requests these are, money, when anybody looks.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Protocol, cast, runtime_checkable

import msgspec
from msgspec import Struct

from gateway.call import Body, Operation
from gateway.errors import GatewayError, InvalidRequest, UpstreamFailed, UpstreamTimeout
from gateway.providers import Provider, Sending
from gateway.stream import StreamGarbage, parse
from gateway.transport import ConnectFailed, Exchange, TimedOut, Transport, TransportError
from gateway.transport.credential import origin
from gateway.transport.refusal import LARGEST_ERROR, in_doubt
from gateway.upstream.fields import mapping, objects, whole_number, words

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_ANONYMOUS = {"User-Agent": "nearhit", "Accept-Encoding": "identity"}
# Google's codes of errors (google.rpc.Code), which others use too, as statuses; all others are faults of the service.
RPC_STATUS = {3: 400, 4: 504, 5: 404, 7: 403, 8: 429, 9: 400, 11: 400, 12: 501, 14: 503, 16: 401}
_PATIENCE = 120.0  # seconds for a call, and for each piece of a long answer
_LARGEST_TOLD = 4 << 20  # of what is told of a batch
LARGEST_ANSWER = 64 << 20  # bytes of one line


class Row(Struct, frozen=True):
    """One request. `name`: what its answer is found by, letters and digits."""

    name: str
    sending: Sending


class Returned(Struct, frozen=True):
    """What became of a row: the answer (or refusal) that it would have had alone, or why it was never run."""

    name: str
    status: int = 0
    raw: bytes = b""
    code: str = ""
    message: str = ""


class Batching(Protocol):
    """All of it raises GatewayError; UpstreamFailed that is `doubtful` where it may have been done all the same.

    Where a service takes less at once than others it says so: `most_rows`, `most_bytes` of requests. What it does not
    take is run request by request: fewer than `least_rows`, and anything but chats where it has `chats_alone`.
    """

    async def hand_in(self, name: str, operation: Operation, rows: Sequence[Row]) -> str:
        """The service's own id for a new batch. `name`: ours, by which `find` knows it."""
        ...

    async def find(self, name: str, since: float) -> str | None:
        """The batch that was handed in under `name`, if it was, and not before `since` (Unix seconds). Raises
        LookupError where the service cannot tell.
        """
        ...

    async def look(self, batch: str) -> str | None:
        """None while it runs; then why it ended, where that is not that every row was run, in words or empty."""
        ...

    def collect(self, batch: str) -> AsyncGenerator[Returned, None]:
        """Of one that is over, in any order. A row that does not come back was not run."""
        ...

    async def call_off(self, batch: str) -> None:
        """It ends soon; what was run by then comes back."""
        ...

    async def forget(self, batch: str) -> None:
        """Of one that is over what was asked and answered is deleted; that of another process, too."""
        ...


@runtime_checkable
class Batches(Protocol):
    """A provider that may have such a service."""

    def batching(self) -> Batching | None: ...


def batching_of(provider: Provider | None) -> Batching | None:
    return provider.batching() if isinstance(provider, Batches) else None


def only_chats(name: str, operation: Operation) -> None:
    """Raises InvalidRequest for anything else."""
    if operation != "chat":
        message = f"{name} has batches of chats only: set `batch: off` there for everything else."
        raise InvalidRequest(message, param="endpoint", code="unsupported_operation")


def status_of(response: Body) -> int | None:
    """The HTTP status of a row, also as digits in a text; 200 where only the body is told, None where neither is."""
    told = response.get("status_code")
    status = int(told) if isinstance(told, str) and len(told) == 3 and told.isdecimal() else whole_number(told)
    if status is not None and 100 <= status < 600:
        return status
    return 200 if isinstance(response.get("body"), dict) else None


def told_row(row: Body) -> Returned:
    """A line of those who left OpenAI's envelope out: the answer itself under `response`, or an `error` alone."""
    name, response = words(row.get("custom_id")), mapping(row.get("response"))
    error = mapping(row.get("error")) or {"message": words(row.get("error"))}
    if status := status_of(response):
        return Returned(name, status, _encode(response.get("body")))
    if response:
        return Returned(name, 200, _encode(response))
    code = error.get("code")
    status = code if isinstance(code, int) and 400 <= code < 600 else 0
    kind = f"{words(code)} {words(error.get('type'))}"
    return Returned(name, status or (400 if "invalid" in kind.lower() else 500), _encode({"error": error}))


class Line(Struct, frozen=True, kw_only=True):
    """A way to the service. `refusal`: of a status and a body; `clean`: takes the credential out of a text.

    `sign`: the headers that one request needs besides, of its method, address and content.
    """

    name: str
    transport: Transport
    headers: Mapping[str, str]
    refusal: Callable[[int, Mapping[str, str], bytes], GatewayError]
    clean: Callable[[str], str]
    sign: Callable[[str, str, bytes], Mapping[str, str]] | None = None

    async def ask(
        self, method: str, url: str, content: bytes = b"", kind: str = "application/json", *, limit: int = _LARGEST_TOLD
    ) -> Body:
        """What it says, in at most `limit` bytes. Raises GatewayError."""
        try:
            return parse(await self._whole(method, url, content, kind, limit))
        except StreamGarbage as error:
            raise self._unheard(error) from error

    async def listed(self, url: str) -> list[Body]:
        """A list, by itself or as `data`. Raises GatewayError, also for what is none: taken for an empty list it would
        say that a batch was never handed in, and it would be handed in and billed twice.
        """
        raw = await self._whole("GET", url, b"", "application/json", LARGEST_ANSWER)
        try:
            told: object = _decode(raw)
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._unheard(error) from error
        found = mapping(told).get("data", told)
        if not isinstance(found, list):
            raise in_doubt(f"{self.name} told no list of its batches.")
        return objects(cast("object", found))

    async def tell(self, method: str, url: str, content: bytes = b"", kind: str = "application/json") -> None:
        """What is answered with nothing that matters. Raises GatewayError."""
        await self._whole(method, url, content, kind, _LARGEST_TOLD)

    async def _whole(self, method: str, url: str, content: bytes, kind: str, limit: int) -> bytes:
        exchange = await self._opened(method, url, content, kind)
        try:
            return await exchange.whole(limit, _PATIENCE)
        except TransportError as error:
            raise self._unheard(error) from error
        finally:
            exchange.close()

    def _unheard(self, error: Exception) -> UpstreamFailed:
        return in_doubt(f"{self.name} said nothing of its batch: {self.clean(str(error))}")

    async def lines(self, url: str, told_by: str = "") -> AsyncGenerator[Body, None]:
        """One object per line. Raises GatewayError.

        `told_by`: the address that named this one, which may be anybody's: no credential goes there.
        """
        exchange = await self._found(url, told_by)
        held = bytearray()
        try:
            while piece := await exchange.piece(_PATIENCE):
                held += piece
                while (end := held.find(b"\n")) >= 0:
                    line, held = bytes(held[:end]).strip(), held[end + 1 :]
                    if line:
                        yield parse(line)
                if len(held) > LARGEST_ANSWER:
                    raise UpstreamFailed(f"{self.name} sent a line of more than {LARGEST_ANSWER:,} bytes.")
            if bytes(held).strip():
                yield parse(bytes(held))
        except (TransportError, StreamGarbage) as error:
            raise UpstreamFailed(f"{self.name} sent no whole batch: {self.clean(str(error))}") from error
        finally:
            exchange.close()

    async def _found(self, url: str, told_by: str) -> Exchange:
        """A file, also where the service keeps it elsewhere and says where."""
        if told_by:
            return await self._opened("GET", self._elsewhere(url, told_by), b"", "", anonymous=True)
        exchange = await self._opened("GET", url, b"", "application/json", redirects=True)
        if exchange.status not in _REDIRECTS:
            return exchange
        to = exchange.headers.get("location", "")
        exchange.close()
        return await self._opened("GET", self._elsewhere(to, url), b"", "", anonymous=True)

    def _elsewhere(self, url: str, told_by: str) -> str:
        """Raises UpstreamFailed for an address where what it holds could be read on the way, or that is none."""
        try:
            if url.startswith("https://") or origin(url) == origin(told_by):
                return url
        except ValueError:
            pass
        raise UpstreamFailed(f"{self.name} keeps a batch's file where it cannot be fetched from.")

    async def _opened(
        self, method: str, url: str, content: bytes, kind: str, *, redirects: bool = False, anonymous: bool = False
    ) -> Exchange:
        headers = _ANONYMOUS if anonymous else {**self.headers, "Content-Type": kind}
        if self.sign is not None and not anonymous:
            headers = {**headers, **self.sign(method, url, content)}
        try:
            exchange = await self.transport.open(method, url, headers, content, _PATIENCE)
        except TimedOut as error:
            raise UpstreamTimeout(f"{self.name} said nothing of its batch within {_PATIENCE:g} s") from error
        except ConnectFailed as error:
            raise UpstreamFailed(f"{self.name} cannot be reached: {error}") from error
        except TransportError as error:
            raise in_doubt(f"{self.name} broke off before it answered: {error}") from error
        if 200 <= exchange.status < 300 or (redirects and exchange.status in _REDIRECTS):
            return exchange
        try:
            raw = await exchange.whole(LARGEST_ERROR, _PATIENCE)
        except TransportError:
            raw = b""  # the status alone says enough
        finally:
            exchange.close()
        raise self.refusal(exchange.status, exchange.headers, self.clean(raw.decode("utf-8", "replace")).encode())
