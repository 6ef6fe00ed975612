"""One recorded exchange through the provider it belongs to, and what came of it.

Knows: which address is whose, a transport that answers with what was recorded. Does not know: files, tables.
"""

import re
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from pydantic import SecretStr

from gateway.call import Body, Chunk, Native
from gateway.errors import GatewayError
from gateway.providers import Partial, Provider, Sending, load
from gateway.settings import ProviderSettings
from gateway.stream import fold
from gateway.tasks import Tasks
from gateway.transport import Exchange
from tests.wire.cassettes import Recorded
from tests.wire.said import Said, arguments_of, broken_off, decode, said

# Whose an address is: the first that is found in it. What ends otherwise is none of a provider's calls.
_OWNERS = (
    ("api.anthropic.com", "anthropic"),
    ("/anthropic/v1/messages", "anthropic"),
    ("generativelanguage.googleapis.com/v1beta/openai", "openai"),
    ("generativelanguage.googleapis.com", "gemini"),
    ("aiplatform.googleapis.com", "gemini"),
    ("bedrock-runtime", "bedrock"),
    ("openai.azure.com", "azure"),
    ("/google-vertex/", "gemini"),
    ("/bedrock/model/", "bedrock"),
    ("api.groq.com", "groq"),
    ("/groq/openai", "groq"),
    ("api.mistral.ai", "mistral"),
    ("api.deepseek.com", "deepseek"),
    ("openrouter.ai", "openrouter"),
    ("api.x.ai", "xai"),
    ("together", "together"),
    ("fireworks", "fireworks"),
    ("ollama.com", "ollama"),
    ("localhost:11434", "ollama"),
    ("", "openai"),
)
_CALL = re.compile(
    r"/chat/completions$|/responses$|/v1/messages$|:generateContent$|:streamGenerateContent$|/converse(-stream)?$"
)
_PIECE = 1_000  # bytes: odd enough to cut events anywhere


class Outcome(Struct, frozen=True):
    """`kind`: whose it is; `form`: whole, streamed or an error. `wrong`: what is refused or lost, none where alike."""

    kind: str
    form: str
    wrong: tuple[str, ...] = ()


class _Replayed:
    """Obeys gateway.transport.Exchange."""

    def __init__(self, recorded: Recorded) -> None:
        self.status = recorded.status
        self.headers: Mapping[str, str] = recorded.headers
        self._left = recorded.raw

    @property
    def ended(self) -> bool:
        return not self._left

    async def piece(self, timeout: float) -> bytes:
        piece, self._left = self._left[:_PIECE], self._left[_PIECE:]
        return piece

    async def whole(self, limit: int, timeout: float) -> bytes:
        raw, self._left = self._left, b""
        return raw

    def close(self) -> None:
        self._left = b""


class _Transport:
    """Obeys gateway.transport.Transport: whatever is asked, this is the answer."""

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded

    def check(self, url: str) -> None:
        """It goes nowhere."""

    async def open(self, *asked: object) -> Exchange:
        return _Replayed(self._recorded)

    async def close(self) -> None:
        """Nothing is open."""


def owner(recorded: Recorded) -> str | None:
    """The kind of provider that makes such calls; None for what is no chat."""
    parts = urlsplit(recorded.url)
    place = f"{parts.netloc}{parts.path}"
    return next(kind for name, kind in _OWNERS if name in place) if _CALL.search(parts.path) else None


async def replayed(kind: str, recorded: Recorded) -> Outcome:
    """What breaks is the outcome. Raises ValueError where the recording itself cannot be read."""
    media = recorded.headers.get("content-type", "")
    stream = "event-stream" in media or "eventstream" in media or recorded.url.endswith("converse-stream")
    good = 200 <= recorded.status < 300
    form = "error" if not good else "streamed" if stream else "whole"
    speaks = "responses" if urlsplit(recorded.url).path.endswith("/responses") else kind
    expected, failed = (
        (said(speaks, recorded.raw, media), broken_off(kind, recorded.raw, media)) if good else (Said(), "")
    )
    tasks = Tasks()
    try:
        chunks = await _chunks(_provider(kind, recorded, tasks), speaks, stream=stream and good)
    except (GatewayError, Partial) as error:
        wrong = _failed(error, failed) if good else _refused(error, recorded)
        return Outcome(kind, form, wrong)
    finally:
        await tasks.finish(1.0)
    if not good:
        return Outcome(kind, form, (f"status {recorded.status} was read as an answer",))
    return Outcome(kind, form, tuple(_lost(expected, chunks)))


def _provider(kind: str, recorded: Recorded, tasks: Tasks) -> Provider:
    extra: dict[str, Any] = {"region": "eu-central-1"} if kind == "bedrock" else {}
    if urlsplit(recorded.url).path.endswith("/responses"):
        extra = {"api_version": "v1"} if kind == "azure" else {"responses": True}
    settings = ProviderSettings(kind=kind, base_url="http://127.0.0.1/v1", api_key=SecretStr("none"), **extra)
    return load(kind).build("up", settings, transport=_Transport(recorded), tasks=tasks)


async def _chunks(provider: Provider, speaks: str, *, stream: bool) -> list[Chunk]:
    body: Body = {"messages": [{"role": "user", "content": "?"}], "model": "m", "stream": stream}
    what = Sending(id="a", operation="chat", model="m", body=body, stream=stream, tenant="t", timeout=10.0, idle=10.0)
    if speaks == "responses":
        native = Native(dialect=speaks, body={"model": "m", "input": "?"}, headers={}, apart={})
        what = msgspec.structs.replace(what, native=native)
    async with aclosing(provider.send(what)) as chunks:
        return [chunk async for chunk in chunks]


def _failed(error: Exception, told: str) -> tuple[str, ...]:
    """An answer may fail only where the recording says that it did, and in its words."""
    return () if told and told[:100] in str(error) else (f"not read: {str(error)[:120]}",)


def _refused(error: Exception, recorded: Recorded) -> tuple[str, ...]:
    """A refusal must keep its status and its words."""
    status = error.http_status if isinstance(error, GatewayError) else 0
    wrong: list[str] = []
    if recorded.status < 500 and status != recorded.status:
        wrong.append(f"status {recorded.status} became {status}")
    words = _words(recorded.raw)
    if words and recorded.status < 500 and words[:100] not in str(error):
        wrong.append(f"its words are lost: {words[:100]}")
    return tuple(wrong)


def _words(raw: bytes) -> str:
    """The message of a recorded error, wherever its make puts it."""
    try:
        body: Any = decode(raw)
    except msgspec.DecodeError:
        return ""
    found = body[0] if isinstance(body, list) and body else body
    for name in ("error", "message", "Message", "detail"):
        if isinstance(found, dict) and found.get(name):
            told = found[name]
            inner = told.get("message") if isinstance(told, dict) else told
            return inner if isinstance(inner, str) else ""
    return ""


def _lost(expected: Said, chunks: list[Chunk]) -> list[str]:
    body: Any = chunks[0].data if chunks[0].final else fold(chunk.data for chunk in chunks)
    usage = next((chunk.usage for chunk in reversed(chunks) if chunk.usage is not None), None)
    choice: Any = (body.get("choices") or [{}])[0]
    message = choice.get("message") or {}
    calls = [(call["function"]["name"], _given(call["function"].get("arguments"))) for call in _calls(message)]
    found = Said(
        text=message.get("content") or "",
        thought=message.get("reasoning_content") or "",
        calls=calls,
        prompt=usage.prompt if usage else 0,
        completion=usage.completion if usage else 0,
        cached=usage.cached if usage else 0,
        ended=bool(choice.get("finish_reason")),
    )
    lost = [
        f"{name}: {_short(getattr(expected, name))} became {_short(getattr(found, name))}"
        for name in Said.__struct_fields__
        if getattr(expected, name) != getattr(found, name)
    ]
    bare = [call for call in _calls(message) if call.get("type") != "function" or not call.get("id")]
    return [*lost, *(f"a call that clients cannot read: {_short(call)}" for call in bare)]


def _given(arguments: object) -> Any:
    """None for what is no text, as OpenAI's clients want one."""
    return arguments_of(arguments) if isinstance(arguments, str) else None


def _calls(message: Any) -> list[Any]:
    return [call for call in message.get("tool_calls") or [] if call.get("function")]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]}…{text[-15:]}"
