"""Batches at a service: requests that are handed over together and answered within a day, at half the price.

Knows: what a provider that has such a service offers (`Batching`), one call to it over HTTP, answers that come as
lines.
Does not know: any service's own protocol, whose requests these are, money, when anybody looks.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from gateway.call import Body, Operation
from gateway.errors import GatewayError, UpstreamFailed, UpstreamTimeout
from gateway.providers import Provider, Sending
from gateway.stream import StreamGarbage, parse
from gateway.transport import ConnectFailed, Exchange, TimedOut, Transport, TransportError
from gateway.transport.refusal import LARGEST_ERROR, in_doubt

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

    Where a service takes less at once than others it says so: `most_rows`, `most_bytes` of requests.
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


class Line(Struct, frozen=True, kw_only=True):
    """A way to the service. `refusal`: of a status and a body; `clean`: takes the credential out of a text."""

    name: str
    transport: Transport
    headers: Mapping[str, str]
    refusal: Callable[[int, Mapping[str, str], bytes], GatewayError]
    clean: Callable[[str], str]

    async def ask(
        self, method: str, url: str, content: bytes = b"", kind: str = "application/json", *, limit: int = _LARGEST_TOLD
    ) -> Body:
        """What it says, in at most `limit` bytes. Raises GatewayError."""
        exchange = await self._opened(method, url, content, kind)
        try:
            return parse(await exchange.whole(limit, _PATIENCE))
        except (TransportError, StreamGarbage) as error:
            raise in_doubt(f"{self.name} said nothing of its batch: {self.clean(str(error))}") from error
        finally:
            exchange.close()

    async def lines(self, url: str) -> AsyncGenerator[Body, None]:
        """One object per line. Raises GatewayError."""
        exchange = await self._opened("GET", url, b"", "application/json")
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

    async def _opened(self, method: str, url: str, content: bytes, kind: str) -> Exchange:
        try:
            exchange = await self.transport.open(
                method, url, {**self.headers, "Content-Type": kind}, content, _PATIENCE
            )
        except TimedOut as error:
            raise UpstreamTimeout(f"{self.name} said nothing of its batch within {_PATIENCE:g} s") from error
        except ConnectFailed as error:
            raise UpstreamFailed(f"{self.name} cannot be reached: {error}") from error
        except TransportError as error:
            raise in_doubt(f"{self.name} broke off before it answered: {error}") from error
        if 200 <= exchange.status < 300:
            return exchange
        try:
            raw = await exchange.whole(LARGEST_ERROR, _PATIENCE)
        except TransportError:
            raw = b""  # the status alone says enough
        finally:
            exchange.close()
        raise self.refusal(exchange.status, exchange.headers, self.clean(raw.decode("utf-8", "replace")).encode())
