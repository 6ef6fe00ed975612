"""OpenAI's own language over HTTP, for every provider that speaks it.

Knows: the body as the upstream must get it, the one body or the event stream that comes back, errors. Does not know:
addresses, headers and credentials (a provider hands them in), in what a service differs (`gateway.upstream.quirks`),
prices, tenants (only an opaque salt), retries.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Literal, cast

import msgspec

from gateway.allowance import OPENAI, Limit
from gateway.call import PASSED, Body, Chunk, Native, Operation
from gateway.errors import UpstreamFailed
from gateway.estimate import ALWAYS_SEARCHING
from gateway.providers import Sending
from gateway.settings import ProviderSettings
from gateway.stream import EventParser, StreamGarbage, read_finish, read_usage
from gateway.stream_reader import ChunkReader, CountsAlong, StreamRules
from gateway.transport import Exchange
from gateway.transport.credential import Credential
from gateway.transport.refusal import in_band_message, refused, told_headers
from gateway.upstream.base import Answered, Means, Reader, Upstream, UpstreamConfig
from gateway.upstream.batching import Batching
from gateway.upstream.exchanges import Asked
from gateway.upstream.openai_batches import OpenAIBatches, Places
from gateway.upstream.passing import answer_of, content_of
from gateway.upstream.quirks import Quirks
from gateway.upstream.ran_tools import counting
from gateway.upstream.reader import EventReader, Waits
from gateway.upstream.responses_answers import Events, body_of
from gateway.upstream.responses_requests import answers, is_better, native, translated

_JSON = "application/json"
PATHS: dict[Operation, str] = {
    "chat": "chat/completions",
    "completion": "completions",
    "embedding": "embeddings",
    "moderation": "moderations",
    "image": "images/generations",
    "image_edit": "images/edits",
    "image_variation": "images/variations",
    "speech": "audio/speech",
    "transcription": "audio/transcriptions",
    "translation": "audio/translations",
}
_encode = msgspec.json.Encoder().encode
Isolation = Literal["none", "prompt_cache_key", "cache_salt", "user", "prompt_cache_isolation_key"]


class SpokenConfig(UpstreamConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Beyond what every kind may have.

    `isolation`: the body field that carries the tenant's salt, so that tenants never share the upstream's prompt cache.
    `ends_without_done`: this server closes its streams after the finish reason without `[DONE]`.
    `usage_in_streams`: switch off for servers that refuse `stream_options`. `responses`: it has Responses too; those of
    clients reach it as they came. None of them: as the kind has it.
    """

    isolation: Isolation | None = None
    ends_without_done: bool | None = None
    usage_in_streams: bool | None = None
    responses: bool | None = None


class Manner(msgspec.Struct, frozen=True, kw_only=True):
    """How a service speaks where nothing else is configured.

    `limits`: how it tells what is left of its rate limits; `limits_in_errors`: its refusals tell it in their bodies.
    `counts_along`: it tells what it has used in every event when asked to, so that who leaves pays what was written
    (of `each` choice by itself, or of `all`).
    `batches`: it has OpenAI's files and batches, or its own beside such files.
    """

    quirks: Quirks = Quirks()
    batches: type[OpenAIBatches] | None = None
    limits: tuple[Limit, ...] = OPENAI
    limits_in_errors: bool = False
    isolation: Isolation = "none"
    ends_without_done: bool = False
    usage_in_streams: bool = True
    counts_along: CountsAlong = ""
    responses: bool = False


class OpenAISpeaker(Upstream):
    """One upstream."""

    def __init__(  # noqa: PLR0913 - one name per part it is made of
        self,
        name: str,
        settings: ProviderSettings,
        config: SpokenConfig,
        credential: Credential,
        base: str,
        means: Means,
        manner: Manner | None = None,
    ) -> None:
        """Raises ValueError when the configuration would give the credential away."""
        given = {field: value for field in _MANNERS if (value := getattr(config, field)) is not None}
        self.manner = msgspec.structs.replace(manner or Manner(), **given)
        self.limits = self.manner.limits
        super().__init__(name, settings, config, credential, base, means)
        quirks = self.manner.quirks
        self.cannot = quirks.cannot if quirks.picky else None
        self._rules = StreamRules(
            name=name,
            needs_done=not self.manner.ends_without_done,
            counts_along=self.manner.counts_along,
            clean=credential.redacted,
            tell=quirks.tell if quirks.tells else None,
        )

    @abstractmethod
    def _url(self, sending: Sending) -> str:
        """Where a request goes. Raises GatewayError for a model that cannot have an address."""

    @property
    def speaks(self) -> str:
        """The dialect of clients that it takes as it came."""
        return "responses" if self.manner.responses else ""

    def _responses_url(self) -> str:
        return f"{self._base}/responses"

    def _named(self, model: str) -> str:
        """A model as it is called there."""
        return model

    def _responds(self, sending: Sending) -> bool:
        """Whether it is asked for a response instead of a chat completion."""
        if not self.manner.responses or sending.operation != "chat" or sending.given is not None:
            return False
        if (given := _native(sending)) is not None:
            return bool(given.apart) or answers(sending.model)  # what chat cannot say is not passed over in silence
        return is_better(sending.body, sending.model)

    def _response(self, sending: Sending) -> Body:
        given = _native(sending)
        self.manner.quirks.check_models(sending.body if given is None else given.body)
        body = translated(sending) if given is None else native(sending, given.body)
        body["model"] = self._named(sending.model)
        if self.manner.isolation in ("prompt_cache_key", "user") and sending.tenant:
            body[self.manner.isolation] = _opaque(sending.tenant)
        return body

    def _asked(self, sending: Sending) -> Asked:
        if self._responds(sending):
            headers = {**self._headers, **sending.headers}
            return Asked(self._responses_url(), headers, _encode(self._response(sending)))
        kind, content = self._content(sending)
        return Asked(self._url(sending), {**self._headers, "Content-Type": kind, **sending.headers}, content)

    def _reader(self, exchange: Exchange, sending: Sending, deadline: float) -> Reader:
        if self._responds(sending):
            waits = Waits.of(sending, deadline, self._monotonic)
            events = Events(sending.model, self._now(), native=_native(sending) is not None)
            return EventReader(self.name, exchange, waits, EventParser(), events, self._credential.redacted)
        rules = self._rules_of(sending)
        return ChunkReader(rules, exchange, sending, deadline=deadline, monotonic=self._monotonic)

    def _rules_of(self, sending: Sending) -> StreamRules:
        if self.manner.quirks.runs_tools:
            return msgspec.structs.replace(self._rules, tell=counting(self._rules.tell))
        if sending.body.get("web_search_options") is None and not ALWAYS_SEARCHING.search(sending.model):
            return self._rules
        return msgspec.structs.replace(self._rules, tell=_searched(self._rules.tell))

    def _listed(self, body: Body) -> list[str]:
        rows = body.get("data")
        if not isinstance(rows, list):
            raise StreamGarbage("sent no list")
        named = [cast("Body", row).get("id") for row in cast("list[object]", rows) if isinstance(row, dict)]
        return [name for name in named if isinstance(name, str)]

    def _content(self, sending: Sending) -> tuple[str, bytes]:
        """Content type and body."""
        if sending.operation not in PASSED:
            return _JSON, _encode(self._prepared(sending))
        self.manner.quirks.check_operation(self.name, sending)
        self.manner.quirks.check_models(sending.body)
        return content_of(sending)

    def _answer(self, raw: bytes, exchange: Exchange, sending: Sending) -> Chunk:
        if sending.operation in PASSED:
            return answer_of(sending, exchange.headers.get("content-type", ""), raw)
        return super()._answer(raw, exchange, sending)

    def _prepared(self, sending: Sending) -> Body:
        """The body as it goes out. The dispatcher has made it ready; what money depends on is made sure of here."""
        body, manner = sending.body, self.manner
        if body.get("model") != sending.model or bool(body.get("stream")) != sending.stream:
            body = {**body, "model": sending.model, "stream": sending.stream}
        if sending.stream and manner.usage_in_streams:
            options = body.get("stream_options")
            given = cast("Body", options) if isinstance(options, dict) else {}
            if manner.counts_along:
                body = {**body, "stream_options": {**given, "continuous_usage_stats": True, "include_usage": True}}
            elif given.get("include_usage") is not True:
                body = {**body, "stream_options": {**given, "include_usage": True}}
        elif "stream_options" in body:
            body = {key: value for key, value in body.items() if key != "stream_options"}
        if manner.isolation != "none" and sending.tenant:
            body = {**body, manner.isolation: _opaque(sending.tenant)}
        return manner.quirks.asked(self.name, sending, body)

    def batching(self) -> Batching | None:
        batches = self.manner.batches
        return None if batches is None else batches(self._line(), self._places(), self._prepared)

    def _places(self) -> Places:
        """Where its batches are."""
        return Places(lambda path: f"{self._base}/{path}", lambda operation: f"/v1/{PATHS[operation]}")

    def _told(self, body: Body, sending: Sending) -> Chunk:
        if self._responds(sending):
            return body_of(body, sending.model, self._now(), native=_native(sending) is not None)
        rows = body.get("data" if sending.operation == "embedding" else "choices")
        if body.get("error") or not isinstance(rows, list) or not rows:
            raise StreamGarbage(f"failed: {in_band_message(body)}")
        if (tell := self._rules_of(sending).tell) is not None:
            tell(body)
        return Chunk(body, read_usage(body), read_finish(body), final=True)

    def _refusal(self, answered: Answered) -> UpstreamFailed:
        return refused(self.name, answered.status, answered.headers, answered.raw)

    def _limit_headers(self, answered: Answered) -> Mapping[str, str]:
        headers = super()._limit_headers(answered)
        return {**headers, **told_headers(answered.raw)} if self.manner.limits_in_errors else headers


def renewed(body: Body, operation: Operation) -> Body:
    """A chat's output limit under its newer name, which OpenAI's models that reason insist on and its others take.

    Under `max_tokens` they refuse it, also where it is the gateway that put it in.
    """
    if operation != "chat" or "max_tokens" not in body:
        return body
    limit = body["max_tokens"]
    kept = {name: value for name, value in body.items() if name != "max_tokens"}
    return kept if limit is None else {**kept, "max_completion_tokens": limit}


def _searched(tell: Callable[[Body], None] | None) -> Callable[[Body], None]:
    """Searching in chat is a fee for each search, of which the answer tells no number: there was one, maybe more."""

    def told(body: Body) -> None:
        if tell is not None:
            tell(body)
        usage = body.get("usage")
        if isinstance(usage, dict) and "server_tool_use" not in usage:
            body["usage"] = {**usage, "server_tool_use": {"web_search_requests": 1}, "unpriced_calls": 1}

    return told


_MANNERS = ("isolation", "ends_without_done", "usage_in_streams", "responses")


def _native(sending: Sending) -> Native | None:
    """The client's own request, where that is one for a response."""
    return sending.native if sending.native is not None and sending.native.dialect == "responses" else None


def _opaque(tenant: str) -> str:
    """Tells tenants apart without naming them to the upstream."""
    return hashlib.blake2b(tenant.encode(), digest_size=16, person=b"nearhit").hexdigest()
