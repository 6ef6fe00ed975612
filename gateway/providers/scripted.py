"""A deterministic upstream inside this process: for the demo, for tests and for measuring everything around it.

Knows: the scripted answers, delays, failures and cuts it was told to have. It is not a model and says so in its name.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator

import msgspec
from msgspec import Struct

from gateway.call import Body, Chunk
from gateway.errors import InvalidRequest, UpstreamFailed, UpstreamRefused, UpstreamTimeout
from gateway.providers import Billing, Partial, Sending
from gateway.scripted_answers import Request, Script, misfortune, script, texts, vector, vector_base64
from gateway.scripted_answers import count as count_tokens
from gateway.settings import ProviderSettings
from gateway.tasks import Tasks
from gateway.transport import Transport
from gateway.transport.refusal import in_doubt
from gateway.upstream.passing import cannot, refuse_passed
from policies.money import Usage

_REMEMBERED = 10_000


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`ttft_ms` before the first token, `tpot_ms` before each further one; `tokens` fixes every answer's length.

    `fail_rate` and `cut_rate` are shares of calls in [0, 1], chosen by a hash of `seed` and the call's number.
    """

    ttft_ms: float = 0.0
    tpot_ms: float = 0.0
    fail_rate: float = 0.0
    cut_rate: float = 0.0
    seed: int = 0
    tokens: int | None = None
    models: tuple[str, ...] = ("scripted",)


class ScriptedProvider:
    """`calls` and `closed_early` count for whoever watches; `billed` is what the last attempts consumed."""

    cannot = staticmethod(cannot)

    def __init__(self, name: str, config: Config, billing: Billing) -> None:
        self.name = name
        self.billing: Billing = billing
        self.calls = 0
        self.closed_early = 0
        self.billed: OrderedDict[str, Usage] = OrderedDict()
        self._config = config

    async def send(self, sending: Sending) -> AsyncGenerator[Chunk, None]:
        self.calls += 1
        refuse_passed(self.name, sending)
        try:
            request = msgspec.convert({**sending.body, "model": sending.model}, Request)
        except msgspec.ValidationError as error:
            raise InvalidRequest(str(error)) from error
        fate, when = misfortune(self._config.seed, self.calls, self._config.fail_rate, self._config.cut_rate)
        await self._wait_first(sending)
        if fate == "error":
            raise UpstreamFailed("the scripted upstream failed, as it was told to")
        if fate == "limit":
            detail: Body = {"message": "scripted rate limit", "type": "requests", "code": "rate_limit_exceeded"}
            raise UpstreamRefused(429, detail, retry_after=1.0)
        if sending.operation == "embedding":
            yield self._embed(sending, request)
            return
        told = script(request, sending.operation, self._config.tokens)
        if sending.stream:
            stream = self._stream(sending, told, cut_at=when if fate == "cut" else None)
        else:
            stream = self._whole(sending, told, cut=fate == "cut")
        async for chunk in stream:
            yield chunk

    async def consumed(self, attempt: str) -> Usage | None:  # noqa: ARG002 - the protocol's signature
        """Nobody tells what a closed call has cost."""
        return None

    async def models(self) -> list[str]:
        return list(self._config.models)

    def ready(self) -> str | None:
        return None

    async def close(self) -> None:
        """Nothing is held open."""

    def _bill(self, attempt: str, usage: Usage) -> None:
        self.billed[attempt] = usage
        if len(self.billed) > _REMEMBERED:
            self.billed.popitem(last=False)

    async def _wait_first(self, sending: Sending) -> None:
        delay = self._config.ttft_ms / 1000
        if delay > sending.timeout:
            await asyncio.sleep(sending.timeout)
            raise UpstreamTimeout(f"{self.name} sent nothing within {sending.timeout:g} s")
        if delay:
            await asyncio.sleep(delay)

    async def _wait_next(self, sending: Sending) -> None:
        delay = self._config.tpot_ms / 1000
        if delay > sending.idle:
            await asyncio.sleep(sending.idle)
            raise Partial(f"{self.name} sent nothing for {sending.idle:g} s")
        if delay:
            await asyncio.sleep(delay)

    async def _whole(self, sending: Sending, told: Script, *, cut: bool) -> AsyncGenerator[Chunk, None]:
        usage = told.usage()
        if self._config.tpot_ms:
            await asyncio.sleep(max(len(answer.tokens) for answer in told.answers) * self._config.tpot_ms / 1000)
        self._bill(sending.id, usage)
        if cut:
            raise in_doubt("the scripted upstream closed the connection before its answer was whole")
        choices: list[Body] = []
        for index, (tokens, finish) in enumerate(told.answers):
            text = "".join(tokens)
            said: Body = (
                {"message": {"role": "assistant", "content": text, "refusal": None}}
                if sending.operation == "chat"
                else {"text": text}
            )
            choices.append({"index": index, **said, "logprobs": None, "finish_reason": finish})
        data = {**_head(sending, whole=True), "choices": choices, "usage": _usage_body(usage)}
        yield Chunk(data, usage, told.answers[-1].finish, final=True)

    async def _stream(self, sending: Sending, told: Script, cut_at: float | None) -> AsyncGenerator[Chunk, None]:
        """Choices advance together, a token each per step, as a batching server's would."""
        head, chat = _head(sending, whole=False), sending.operation == "chat"
        steps = max(len(answer.tokens) for answer in told.answers)
        last = steps if cut_at is None else int(cut_at * steps)
        sent = 0
        try:
            if chat:
                opening: Body = {"role": "assistant", "content": "", "refusal": None}
                for index in range(len(told.answers)):
                    yield Chunk({**head, "choices": [_delta(index, opening)]})
            for step in range(last):
                if step:
                    await self._wait_next(sending)
                for index, (tokens, _) in enumerate(told.answers):
                    if step < len(tokens):
                        sent += 1
                        part = _delta(index, {"content": tokens[step]}) if chat else _piece(index, tokens[step])
                        yield Chunk({**head, "choices": [part]})
            if cut_at is not None:
                raise Partial("the scripted upstream cut its answer, as it was told to")
            for index, (_, finish) in enumerate(told.answers):
                part = _delta(index, {}, finish) if chat else _piece(index, "", finish)
                yield Chunk({**head, "choices": [part]}, None, finish)
            usage = told.usage()
            yield Chunk({**head, "choices": [], "usage": _usage_body(usage)}, usage)
        except GeneratorExit:
            self.closed_early += 1
            raise
        finally:
            whole = told.usage()
            stopped = Usage(prompt=whole.prompt, completion=sent)
            self._bill(sending.id, whole if self.billing == "bills-anyway" else stopped)

    def _embed(self, sending: Sending, request: Request) -> Chunk:
        inputs = texts(request.input)
        make = vector_base64 if request.encoding_format == "base64" else vector
        rows: list[Body] = [
            {"object": "embedding", "index": index, "embedding": make(text, request.dimensions)}
            for index, text in enumerate(inputs)
        ]
        usage = Usage(prompt=sum(count_tokens(text) for text in inputs))
        self._bill(sending.id, usage)
        told: Body = {"prompt_tokens": usage.prompt, "total_tokens": usage.prompt}
        data: Body = {"object": "list", "data": rows, "model": sending.model, "usage": told}
        return Chunk(data, usage, None, final=True)


def _head(sending: Sending, *, whole: bool) -> Body:
    if sending.operation == "chat":
        return {
            "id": f"chatcmpl-{sending.id}",
            "object": "chat.completion" if whole else "chat.completion.chunk",
            "created": 0,
            "model": sending.model,
        }
    return {"id": f"cmpl-{sending.id}", "object": "text_completion", "created": 0, "model": sending.model}


def _delta(index: int, delta: Body, finish: str | None = None) -> Body:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}


def _piece(index: int, text: str, finish: str | None = None) -> Body:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}


def _usage_body(usage: Usage) -> Body:
    return {"prompt_tokens": usage.prompt, "completion_tokens": usage.completion, "total_tokens": usage.total}


def build(name: str, settings: ProviderSettings, *, transport: Transport, tasks: Tasks) -> ScriptedProvider:  # noqa: ARG001 - every kind is built alike
    """Raises ValueError for a setting this kind does not have."""
    try:
        config = msgspec.convert(settings.model_extra or {}, Config, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"providers.{name}: {error}") from error
    return ScriptedProvider(name, config, settings.billing)
