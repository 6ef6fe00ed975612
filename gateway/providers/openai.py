"""OpenAI and every server that speaks its language, over HTTP.

Knows: OpenAI's paths, its stream and its errors, and one credential bound to one host. Does not know: prices, tenants
(only an opaque salt), retries, other providers.
"""

import hashlib
import time
from collections.abc import AsyncGenerator, Callable
from typing import Literal, cast

import msgspec
import structlog
from msgspec import Struct

from gateway.call import Body, Chunk, Operation
from gateway.errors import UpstreamFailed, UpstreamTimeout
from gateway.providers import Billing, Sending
from gateway.settings import ProviderSettings
from gateway.stream import StreamGarbage, parse, read_finish, read_usage
from gateway.stream_reader import ChunkReader, StreamRules
from gateway.tasks import Tasks
from gateway.transport import ConnectFailed, Exchange, TimedOut, Transport, TransportError
from gateway.transport.credential import Credential, is_loopback, origin
from gateway.transport.refusal import LARGEST_ERROR, in_band_message, in_doubt, refused
from policies.money import Usage

log = structlog.get_logger("nearhit.upstream")

_PATHS: dict[Operation, str] = {"chat": "chat/completions", "completion": "completions", "embedding": "embeddings"}
_DEFAULT_BASE = "https://api.openai.com/v1"
_LARGEST_BODY = 64 << 20
_MODELS_TIMEOUT = 5.0
_DRAIN_TIMEOUT = 1.0
_LARGEST_DRAIN = 64 << 10
_OURS = frozenset({"authorization", "content-length", "content-type", "host", "transfer-encoding", "x-request-id"})
_encode = msgspec.json.Encoder().encode


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Beyond the settings every provider has.

    `models`: what to list instead of asking. `headers`: sent with every call. `organization`, `project`: OpenAI's own.
    `isolation`: the body field that carries the tenant's salt, so that tenants never share the upstream's prompt cache.
    `ends_without_done`: this server closes its streams after the finish reason without `[DONE]`.
    `usage_in_streams`: switch off for servers that refuse `stream_options`. `plain_http`: allow a credential over http.
    """

    models: tuple[str, ...] = ()
    headers: dict[str, str] = {}
    organization: str | None = None
    project: str | None = None
    isolation: Literal["none", "prompt_cache_key", "cache_salt", "user"] = "none"
    ends_without_done: bool = False
    usage_in_streams: bool = True
    plain_http: bool = False


class OpenAIProvider:
    """One upstream. Everything that does not change between calls is made here, once."""

    def __init__(
        self,
        name: str,
        settings: ProviderSettings,
        *,
        transport: Transport,
        tasks: Tasks,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ValueError when the configuration cannot work or would give the credential away."""
        self.name = name
        self.billing: Billing = settings.billing
        self._config = _config(name, settings)
        self._transport = transport
        self._tasks = tasks
        self._monotonic = monotonic
        base = (settings.base_url or _DEFAULT_BASE).rstrip("/")
        self._credential = Credential(settings.api_key, base)
        _check(name, base, settings, self._credential, self._config)
        needs_done = not self._config.ends_without_done
        self._rules = StreamRules(name=name, needs_done=needs_done, clean=self._credential.redacted)
        self._urls = {operation: f"{base}/{path}" for operation, path in _PATHS.items()}
        self._models_url = f"{base}/models"
        self._headers = {
            **self._config.headers,
            **self._credential.headers_for(base),
            "Content-Type": "application/json",
            "User-Agent": "nearhit",
            "Accept-Encoding": "identity",
        }
        if self._config.organization:
            self._headers["OpenAI-Organization"] = self._config.organization
        if self._config.project:
            self._headers["OpenAI-Project"] = self._config.project

    def __repr__(self) -> str:
        return f"OpenAIProvider({self.name!r})"

    async def send(self, sending: Sending) -> AsyncGenerator[Chunk, None]:
        deadline = self._monotonic() + sending.timeout
        exchange = await self._open(sending)
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
                self._tasks.spawn(_drain(exchange), "drain")
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
            exchange = await self._transport.open("GET", self._models_url, self._headers, b"", _MODELS_TIMEOUT)
            try:
                raw = await exchange.whole(_LARGEST_BODY, _MODELS_TIMEOUT)
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

    async def close(self) -> None:
        """The transport is shared and closed by who made it."""

    async def _open(self, sending: Sending) -> Exchange:
        content = _encode(self._prepared(sending))
        headers = {**self._headers, "x-request-id": sending.id}
        url = self._urls[sending.operation]
        try:
            return await self._transport.open("POST", url, headers, content, sending.timeout)
        except TimedOut as error:
            raise UpstreamTimeout(f"{self.name} sent nothing within {sending.timeout:g} s") from error
        except ConnectFailed as error:
            raise UpstreamFailed(f"{self.name} cannot be reached: {error}") from error
        except TransportError as error:
            raise in_doubt(f"{self.name} broke off before it answered: {error}") from error

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
            raw = await exchange.whole(_LARGEST_BODY, max(0.001, deadline - self._monotonic()))
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
            raw = await exchange.whole(LARGEST_ERROR, max(0.001, min(_MODELS_TIMEOUT, deadline - self._monotonic())))
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


async def _drain(exchange: Exchange) -> None:
    try:
        await exchange.whole(_LARGEST_DRAIN, _DRAIN_TIMEOUT)
    except TransportError:
        # The connection is lost for reuse, the answer is not.
        return
    finally:
        exchange.close()


def _config(name: str, settings: ProviderSettings) -> Config:
    try:
        return msgspec.convert(settings.model_extra or {}, Config, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"providers.{name}: {error}") from error


def _check(name: str, base: str, settings: ProviderSettings, credential: Credential, config: Config) -> None:
    scheme, host, _ = origin(base)
    if settings.base_url is None and not credential:
        raise ValueError(f"providers.{name}: api_key is missing (write `api_key: none` for a server that wants none)")
    if scheme == "http" and credential and not is_loopback(host) and not config.plain_http:
        raise ValueError(
            f"providers.{name}: the api_key would cross the network unencrypted (set plain_http: true to allow)"
        )
    if taken := sorted(header for header in config.headers if header.lower() in _OURS):
        raise ValueError(f"providers.{name}: these headers are set by the gateway: {', '.join(taken)}")


def build(name: str, settings: ProviderSettings, *, transport: Transport, tasks: Tasks) -> OpenAIProvider:
    """Raises ValueError for settings that cannot work."""
    return OpenAIProvider(name, settings, transport=transport, tasks=tasks)
