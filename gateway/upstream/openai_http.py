"""OpenAI's own language over HTTP, for every provider that speaks it.

Knows: the body as the upstream must get it, the one body or the event stream that comes back, errors. Does not know:
addresses, headers and credentials (a provider hands them in), prices, tenants (only an opaque salt), retries.
"""

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from typing import Literal, cast

import msgspec
import structlog
from msgspec import Struct

from gateway.call import PASSED, Body, Chunk
from gateway.errors import UpstreamFailed, UpstreamTimeout
from gateway.providers import Billing, Sending
from gateway.settings import ProviderSettings
from gateway.stream import StreamGarbage, parse, read_finish, read_usage
from gateway.stream_reader import ChunkReader, StreamRules
from gateway.tasks import Tasks
from gateway.transport import Exchange, TimedOut, Transport, TransportError
from gateway.transport.credential import Credential
from gateway.transport.refusal import LARGEST_ERROR, in_band_message, in_doubt, refused
from gateway.upstream.exchanges import LARGEST_BODY, LISTING_TIMEOUT, Asked, check_secrecy, drained, opened
from gateway.upstream.passing import answer_of, content_of
from policies.money import Usage

log = structlog.get_logger("nearhit.upstream")

_JSON = "application/json"
_encode = msgspec.json.Encoder().encode


class SpokenConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Beyond the settings every provider has.

    `models`: what to list instead of asking. `headers`: sent with every call.
    `isolation`: the body field that carries the tenant's salt, so that tenants never share the upstream's prompt cache.
    `ends_without_done`: this server closes its streams after the finish reason without `[DONE]`.
    `usage_in_streams`: switch off for servers that refuse `stream_options`. `plain_http`: allow a credential over http.
    """

    models: tuple[str, ...] = ()
    headers: dict[str, str] = {}
    isolation: Literal["none", "prompt_cache_key", "cache_salt", "user"] = "none"
    ends_without_done: bool = False
    usage_in_streams: bool = True
    plain_http: bool = False


class OpenAISpeaker(ABC):
    """One upstream. Everything that does not change between calls is made here, once."""

    def __init__(  # noqa: PLR0913 - one name per part it is made of
        self,
        name: str,
        settings: ProviderSettings,
        config: SpokenConfig,
        credential: Credential,
        base: str,
        *,
        transport: Transport,
        tasks: Tasks,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ValueError when the configuration would give the credential away."""
        self.name = name
        self.billing: Billing = settings.billing
        self._config = config
        self._transport = transport
        self._tasks = tasks
        self._monotonic = monotonic
        self._credential = credential
        check_secrecy(name, base, credential, config.headers, config.plain_http)
        self._rules = StreamRules(name=name, needs_done=not config.ends_without_done, clean=credential.redacted)
        self._headers = {
            **config.headers,
            **credential.headers_for(base),
            "Content-Type": _JSON,
            "User-Agent": "nearhit",
            "Accept-Encoding": "identity",
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @abstractmethod
    def _url(self, sending: Sending) -> str:
        """Where a request goes. Raises GatewayError for a model that cannot have an address."""

    @abstractmethod
    def _models_url(self) -> str: ...

    async def send(self, sending: Sending) -> AsyncGenerator[Chunk, None]:
        deadline = self._monotonic() + sending.timeout
        kind, content = self._content(sending)
        asked = Asked(self._url(sending), {**self._headers, "Content-Type": kind, **sending.headers}, content)
        exchange = await opened(self._transport, self.name, asked, sending.timeout)
        whole = False
        try:
            if not 200 <= exchange.status < 300:
                raise await self._refused(exchange, deadline)
            if not sending.stream:
                yield await self._body(exchange, sending, deadline)
                return
            reader = ChunkReader(self._rules, exchange, sending, deadline=deadline, monotonic=self._monotonic)
            while chunks := await reader.more():
                for chunk in chunks:
                    yield chunk
            whole = True
        finally:
            if whole and not exchange.ended:
                # The end mark of HTTP itself may come after that of the answer; with it the connection can be reused.
                self._tasks.spawn(drained(exchange), "drain")
            else:
                exchange.close()

    async def consumed(self, attempt: str) -> Usage | None:  # noqa: ARG002 - the protocol's signature
        """Nobody tells what a closed call has cost."""
        return None

    async def models(self) -> list[str]:
        """Model names the upstream lists (or those configured). Raises UpstreamFailed."""
        if self._config.models:
            return list(self._config.models)
        try:
            exchange = await self._transport.open("GET", self._models_url(), self._headers, b"", LISTING_TIMEOUT)
            try:
                raw = await exchange.whole(LARGEST_BODY, LISTING_TIMEOUT)
            finally:
                exchange.close()
            rows = parse(raw).get("data") if exchange.status == 200 else None
        except (TransportError, StreamGarbage) as error:
            raise UpstreamFailed(f"{self.name} did not list its models: {error}") from error
        if not isinstance(rows, list):
            raise UpstreamFailed(f"{self.name} did not list its models")
        named = [cast("Body", row).get("id") for row in cast("list[object]", rows) if isinstance(row, dict)]
        return [name for name in named if isinstance(name, str)]

    def ready(self) -> str | None:
        return None

    async def close(self) -> None:  # noqa: B027 - nothing to do is the right thing for all of them
        """The transport is shared and closed by who made it."""

    def _content(self, sending: Sending) -> tuple[str, bytes]:
        """Content type and body."""
        return content_of(sending) if sending.operation in PASSED else (_JSON, _encode(self._prepared(sending)))

    def _prepared(self, sending: Sending) -> Body:
        """The body as it goes out. The dispatcher has made it ready; what money depends on is made sure of here."""
        body = sending.body
        if body.get("model") != sending.model or bool(body.get("stream")) != sending.stream:
            body = {**body, "model": sending.model, "stream": sending.stream}
        if sending.stream and self._config.usage_in_streams:
            options = body.get("stream_options")
            given = cast("Body", options) if isinstance(options, dict) else {}
            if given.get("include_usage") is not True:
                body = {**body, "stream_options": {**given, "include_usage": True}}
        elif "stream_options" in body:
            body = {key: value for key, value in body.items() if key != "stream_options"}
        if self._config.isolation != "none" and sending.tenant:
            body = {**body, self._config.isolation: _opaque(sending.tenant)}
        return body

    async def _body(self, exchange: Exchange, sending: Sending, deadline: float) -> Chunk:
        """The one body of an answer that is not streamed; anything that is none is a failure, whatever its status."""
        try:
            raw = await exchange.whole(LARGEST_BODY, max(0.001, deadline - self._monotonic()))
            if sending.operation in PASSED:
                return answer_of(sending, exchange.headers.get("content-type", ""), raw)
            body = parse(raw)
        except TimedOut as error:
            raise UpstreamTimeout(f"{self.name} sent no whole answer within {sending.timeout:g} s") from error
        except (TransportError, StreamGarbage) as error:
            raise in_doubt(f"{self.name} sent no whole answer: {error}") from error
        rows = body.get("data" if sending.operation == "embedding" else "choices")
        if body.get("error") or not isinstance(rows, list) or not rows:
            raise in_doubt(f"{self.name} failed: {self._credential.redacted(in_band_message(body))}")
        return Chunk(body, read_usage(body), read_finish(body), final=True)

    async def _refused(self, exchange: Exchange, deadline: float) -> UpstreamFailed:
        try:
            raw = await exchange.whole(LARGEST_ERROR, max(0.001, min(LISTING_TIMEOUT, deadline - self._monotonic())))
        except TransportError:
            # The status alone says enough.
            raw = b""
        if exchange.status in (401, 403) and self._credential:
            # The client's key was checked here already: it is ours that is wrong, and only an operator can mend that.
            log.warning("upstream refused our credential", provider=self.name, status=exchange.status)
        secret_free = self._credential.redacted(raw.decode("utf-8", "replace")).encode()
        return refused(self.name, exchange.status, exchange.headers, secret_free)


def _opaque(tenant: str) -> str:
    """Tells tenants apart without naming them to the upstream."""
    return hashlib.blake2b(tenant.encode(), digest_size=16, person=b"nearhit").hexdigest()
