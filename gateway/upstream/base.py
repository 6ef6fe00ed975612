"""A provider over HTTP, whatever it speaks: the part all of them share.

Knows: the order of a call (ask, open, read, let go), one credential bound to one host, how models are listed. Does not
know: any language: a subclass says how a request goes out, how an answer is read and what a refusal means.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Protocol

import structlog
from msgspec import Struct

from gateway.allowance import Account, Heard, Limit, until_renewed
from gateway.call import Body, Chunk, Given
from gateway.errors import GatewayError, InvalidRequest, UpstreamFailed, UpstreamRefused, UpstreamTimeout
from gateway.providers import Billing, Sending
from gateway.settings import ProviderSettings
from gateway.stream import StreamGarbage, parse
from gateway.tasks import Tasks
from gateway.transport import Exchange, TimedOut, Transport, TransportError
from gateway.transport.credential import Credential
from gateway.transport.refusal import LARGEST_ERROR, in_doubt
from gateway.upstream.batching import Batching, Line
from gateway.upstream.exchanges import LARGEST_BODY, LISTING_TIMEOUT, Asked, check_secrecy, drained, opened
from gateway.upstream.once import Once
from gateway.upstream.passing import refuse_passed
from gateway.upstream.reader import Declined
from policies.money import Usage

log = structlog.get_logger("nearhit.upstream")
_LIKE_OURS = (402, 429)  # of prices and budgets we tell with these ourselves


class UpstreamConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every kind may have. `models`: what to list instead of asking. `headers`: sent with every call.

    `plain_http`: allow a credential over http.
    """

    models: tuple[str, ...] = ()
    headers: dict[str, str] = {}
    plain_http: bool = False


class Means(Struct, frozen=True, kw_only=True):
    """What a provider works with."""

    transport: Transport
    tasks: Tasks
    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time


class Answered(Struct, frozen=True):
    """A refusal as it came, secrets taken out."""

    status: int
    headers: Mapping[str, str]
    raw: bytes


class Reader(Protocol):
    """A stream as chunks: UpstreamFailed and its like before the first one, Partial after it."""

    async def more(self) -> list[Chunk]:
        """At least one; none when the answer is whole."""
        ...


class Upstream(ABC):
    """Obeys gateway.providers.Provider. Everything that does not change between calls is made here, once.

    `limits`: how it tells what is left of its rate limits.
    """

    limits: tuple[Limit, ...] = ()

    def __init__(
        self,
        name: str,
        settings: ProviderSettings,
        config: UpstreamConfig,
        credential: Credential,
        base: str,
        means: Means,
    ) -> None:
        """Raises ValueError when the configuration would give the credential away."""
        self.name = name
        self.billing: Billing = settings.billing
        self._models = config.models
        self._credential = credential
        self._base = base
        self._transport = means.transport
        self._tasks = means.tasks
        self._monotonic = means.monotonic
        self._now = means.now
        self._heard = Heard(self.limits)
        check_secrecy(name, base, credential, config.headers, config.plain_http)
        means.transport.check(base)
        self._headers = {
            **config.headers,
            **credential.headers_for(base),
            "Content-Type": "application/json",
            "User-Agent": "nearhit",
            "Accept-Encoding": "identity",
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @abstractmethod
    def _asked(self, sending: Sending) -> Asked:
        """The request in this language. Raises GatewayError for what it cannot say."""

    @abstractmethod
    def _reader(self, exchange: Exchange, sending: Sending, deadline: float) -> Reader: ...

    @abstractmethod
    def _told(self, body: Body, sending: Sending) -> Chunk:
        """The one body of an answer that is not streamed. Raises StreamGarbage (Declined) for what is no answer."""

    @abstractmethod
    def _refusal(self, answered: Answered) -> GatewayError: ...

    def _models_url(self) -> str | None:
        """Where models are listed; None where only configured ones can be told."""
        return None

    def _listed(self, body: Body) -> list[str]:  # noqa: ARG002 - for those that list
        """The names in what `_models_url` answers. Raises StreamGarbage for what is no list."""
        return []

    def send(self, sending: Sending) -> AsyncGenerator[Chunk, None]:
        if sending.stream and sending.given is None:
            return self._events(sending)
        return Once(lambda: self._whole(sending))

    async def _whole(self, sending: Sending) -> Chunk:
        if sending.given is not None:
            return self._reread(sending.given, sending)
        exchange, deadline = await self._begun(sending)
        try:
            return await self._body(exchange, sending, deadline)
        finally:
            exchange.close()

    async def _events(self, sending: Sending) -> AsyncGenerator[Chunk, None]:
        exchange, deadline = await self._begun(sending)
        whole = False
        try:
            reader = self._reader(exchange, sending, deadline)
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

    async def _begun(self, sending: Sending) -> tuple[Exchange, float]:
        """An exchange whose answer has begun, and by when it has to be there. Raises for a refusal."""
        asked = self._asked(sending)
        if sending.traceparent is not None:
            asked = Asked(asked.url, {**asked.headers, "traceparent": sending.traceparent}, asked.content)
        begun = self._monotonic()
        deadline = begun + sending.timeout
        exchange = await opened(self._transport, self.name, asked, sending.timeout)
        if exchange.status < 400 and self._heard.is_due(begun):
            self._heard.note(exchange.headers, begun, self._now())
        if not 200 <= exchange.status < 300:
            try:
                raise await self._refused(exchange, deadline)
            finally:
                exchange.close()
        return exchange, deadline

    def _reread(self, given: Given, sending: Sending) -> Chunk:
        """An answer of a batch at the service, as it would have been read had it been asked for alone."""
        if not 200 <= given.status < 300:
            raise self._refusal(Answered(given.status, {}, given.raw))
        try:
            return self._told(parse(given.raw), sending)
        except StreamGarbage as error:
            raise in_doubt(f"{self.name} sent no whole answer: {self._credential.redacted(str(error))}") from error

    async def consumed(self, attempt: str) -> Usage | None:  # noqa: ARG002 - the protocol's signature
        """Nobody tells what a closed call has cost."""
        return None

    async def _said(self, asked: Asked, timeout: float) -> Body:
        """What it answers to a question beside those that `send` asks. Raises GatewayError."""
        return (await self._heard_of(asked, timeout))[0]

    async def _heard_of(self, asked: Asked, timeout: float) -> tuple[Body, Mapping[str, str]]:
        """The same with the headers."""
        exchange = await opened(self._transport, self.name, asked, timeout)
        try:
            if exchange.status != 200:
                raise await self._refused(exchange, self._monotonic() + timeout)
            return parse(await exchange.whole(LARGEST_BODY, timeout)), exchange.headers
        except (TransportError, StreamGarbage) as error:
            raise in_doubt(f"{self.name} did not answer: {error}") from error
        finally:
            exchange.close()

    async def models(self) -> list[str]:
        """Model names that are configured, or else those the upstream lists. Raises GatewayError."""
        return list(self._models) or await self.listing() or []

    async def listing(self) -> list[str] | None:
        """What it lists where it is asked, with its key; None where nobody lists them. Raises GatewayError."""
        url, until = self._models_url(), self._monotonic() + LISTING_TIMEOUT
        if url is None:
            return None
        try:
            exchange = await self._transport.open("GET", url, self._headers, b"", LISTING_TIMEOUT)
            try:
                if exchange.status != 200:
                    raise await self._refused(exchange, until)
                return self._listed(parse(await exchange.whole(LARGEST_BODY, LISTING_TIMEOUT)))
            finally:
                exchange.close()
        except (TransportError, StreamGarbage) as error:
            raise UpstreamFailed(f"{self.name} did not list its models: {error}") from error

    def ready(self) -> str | None:
        return None

    def accounts(self) -> list[Account]:
        """What it last said is left (`gateway.allowance.Accounted`)."""
        return [self._heard.account(self._monotonic())]

    @property
    def spent_until(self) -> float:
        """Until when (monotonic seconds) it most likely refuses, by what it last said."""
        return self._heard.spent_until

    async def close(self) -> None:  # noqa: B027 - nothing to do is the right thing for all of them
        """The transport is shared and closed by who made it."""

    def batching(self) -> Batching | None:
        """Its own service for batches, where it has one that is spoken here (`gateway.upstream.batching.Batches`)."""
        return None

    def _line(self) -> Line:
        """The way to that service."""
        return Line(
            name=self.name,
            transport=self._transport,
            headers=self._headers,
            refusal=lambda status, headers, raw: self._refusal(Answered(status, headers, raw)),
            clean=self._credential.redacted,
        )

    def _only_chat(self, sending: Sending) -> None:
        """Raises InvalidRequest for an operation this language does not have."""
        refuse_passed(self.name, sending)
        if sending.operation != "chat":
            what = "embeddings" if sending.operation == "embedding" else "legacy completions"
            raise InvalidRequest(
                f"{self.name} makes no {what}; its models answer /v1/chat/completions.",
                param="model",
                code="unsupported_operation",
            )

    async def _body(self, exchange: Exchange, sending: Sending, deadline: float) -> Chunk:
        """The one body of an answer that is not streamed; anything that is none is a failure, whatever its status."""
        try:
            raw = await exchange.whole(LARGEST_BODY, max(0.001, deadline - self._monotonic()))
            return self._answer(raw, exchange, sending)
        except TimedOut as error:
            raise UpstreamTimeout(f"{self.name} sent no whole answer within {sending.timeout:g} s") from error
        except Declined as error:
            message = f"{self.name} {self._credential.redacted(str(error))}"
            raise (error.refusal(message) if error.code else UpstreamFailed(message)) from error
        except (TransportError, StreamGarbage) as error:
            raise in_doubt(f"{self.name} sent no whole answer: {self._credential.redacted(str(error))}") from error

    def _answer(self, raw: bytes, exchange: Exchange, sending: Sending) -> Chunk:  # noqa: ARG002 - for those that answer in others
        """A whole answer as it came, JSON in nearly every case. Raises StreamGarbage."""
        return self._told(parse(raw), sending)

    async def _refused(self, exchange: Exchange, deadline: float) -> GatewayError:
        try:
            raw = await exchange.whole(LARGEST_ERROR, max(0.001, min(LISTING_TIMEOUT, deadline - self._monotonic())))
        except TransportError:
            # The status alone says enough.
            raw = b""
        if exchange.status in (401, 403) and self._credential:
            # The client's key was checked here already: it is ours that is wrong, and only an operator can mend that.
            log.warning("upstream refused our credential", provider=self.name, status=exchange.status)
        secret_free = self._credential.redacted(raw.decode("utf-8", "replace")).encode()
        answered = Answered(exchange.status, exchange.headers, secret_free)
        return self._patient(self._refusal(answered), answered)

    def _patient(self, error: GatewayError, answered: Answered) -> GatewayError:
        """What is short there, money or room, is told as that service's, not as a budget or limit of ours.

        A 429 that does not say how long to wait says it by the limits that are used up.
        """
        left = self._heard.note(self._limit_headers(answered), self._monotonic(), self._now())
        if not isinstance(error, UpstreamRefused) or error.http_status not in _LIKE_OURS:
            return error
        wait = error.retry_after
        if wait is None and error.http_status == 429:
            wait = until_renewed(left)
        if not error.message.startswith(self.name):  # a quota of ours is told with the same code and type
            error.upstream_error["message"] = f"{self.name}: {error.message}"
        return UpstreamRefused(error.http_status, error.upstream_error, retry_after=wait)

    def _limit_headers(self, answered: Answered) -> Mapping[str, str]:
        """Where a refusal tells of limits."""
        return answered.headers
