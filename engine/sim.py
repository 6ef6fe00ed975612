"""A simulated engine for load tests and demos: no model, no torch, honest timing, and a text that says so.

Knows: the engine contract, configured delays. Does not know: sockets, tokenizers, models. A "token" here is up to four
characters. Every choice is certain, so every log probability is 0.
"""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable
from itertools import islice

from engine.api import (
    Delta,
    EngineError,
    EngineStats,
    EngineUsage,
    Figures,
    FinishReason,
    GenerateRequest,
    InvalidRequest,
    ModelInfo,
    Spelled,
    Timing,
    TokenLogprob,
)
from engine.recent import RecentUsage
from engine.stops import StopMatcher
from engine.validate import check_prompt, check_sampling, check_tokens, fit

_PIECE = re.compile(r"\s*\S{1,4}|\s+")
_VOCABULARY = 65_536
DEFAULT_CONTEXT = 8192


class SimEngine:
    """Answers every request with the same kind of text after `ttft_ms`, then a token each `tpot_ms`.

    `text` replaces the answer. `fail` is raised by every request after `fail_after` tokens (0: before the first delta).
    """

    def __init__(  # noqa: PLR0913  (each is one knob of the simulation)
        self,
        *,
        ttft_ms: float = 0,
        tpot_ms: float = 0,
        text: str | None = None,
        fail: EngineError | None = None,
        fail_after: int = 0,
        context: int = DEFAULT_CONTEXT,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ttft, self._tpot = ttft_ms / 1000, tpot_ms / 1000
        self._text, self._fail, self._fail_after = text, fail, fail_after
        self._context = context
        self._monotonic = monotonic
        self._aborted: dict[str, bool] = {}  # one entry per running request
        self._recent = RecentUsage()
        self._started = False

    async def start(self) -> None:
        self._started = True

    async def stop(self) -> None:
        self._started = False
        for request_id in self._aborted:
            self._aborted[request_id] = True

    def info(self) -> ModelInfo | None:
        if not self._started:
            return None
        return ModelInfo(
            id="sim",
            architecture="sim",
            dtype="none",
            context=self._context,
            kv_capacity_tokens=self._context,
            vocabulary=_VOCABULARY,
            has_chat_template=True,
            features=("logprobs",),
            note="simulated: no model runs, the text is made up in advance",
        )

    def stats(self) -> EngineStats:
        return EngineStats(ready=self._started, running=len(self._aborted))

    def figures(self) -> dict[str, Figures]:
        return {}

    def abort(self, request_id: str) -> None:
        if request_id in self._aborted:
            self._aborted[request_id] = True

    def usage_of(self, request_id: str) -> EngineUsage | None:
        return self._recent.get(request_id)

    async def count_tokens(self, request: GenerateRequest) -> int:
        check_prompt(request)
        return _prompt_tokens(request)

    async def tokens(self, request: GenerateRequest, *, specials: bool | None = None) -> list[int]:  # noqa: ARG002 - there are none
        raise InvalidRequest("No model runs here, so a text has no tokens with ids.", param="model")

    async def spelled(self, ids: list[int]) -> Spelled:  # noqa: ARG002 - the same
        raise InvalidRequest("No model runs here, so there are no ids of tokens.", param="model")

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        check_prompt(request)
        check_sampling(request.sampling, _VOCABULARY)
        check_tokens(request.token_ids or [], _VOCABULARY)
        prompt = _prompt_tokens(request)
        _refuse_forms(request)
        sampling = fit(request, prompt, self._context)
        if self._fail is not None and self._fail_after == 0:
            raise self._fail
        pieces = _PIECE.findall(self._text if self._text is not None else _simulated_answer(request))
        self._aborted[request.id] = False
        stops = StopMatcher(sampling.stop)
        started = self._monotonic()
        first, done, finish = started, 0, None
        try:
            await asyncio.sleep(self._ttft)
            first = self._monotonic()
            if request.echo or sampling.prompt_logprobs is not None:
                yield _prompt_again(request, sampling.prompt_logprobs)
            for piece in islice(pieces, sampling.max_tokens):
                if done:
                    await asyncio.sleep(self._tpot)
                if self._aborted[request.id]:
                    finish = "abort"
                    break
                done += 1
                text = stops.push(piece)
                scored = _certain(piece, sampling.logprobs)
                yield Delta(text=text, token_ids=[done], prompt_tokens=prompt, logprobs=scored)
                if stops.found:
                    finish = "stop"
                    break
                if self._fail is not None and done >= self._fail_after:
                    raise self._fail
        finally:
            self._aborted.pop(request.id, None)
            usage = EngineUsage(prompt=prompt, completion=done)
            self._recent.put(request.id, usage)
        finish = finish or _finish(len(pieces), sampling.max_tokens)
        timing, matched = self._timing(started, first, done), stops.matched or None
        yield Delta(text=stops.flush(), finish_reason=finish, stopped_by=matched, usage=usage, timing=timing)

    def _timing(self, started: float, first: float, done: int) -> Timing:
        tpot = (self._monotonic() - first) * 1000 / max(done - 1, 1)
        return Timing(queue_ms=0.0, ttft_ms=(first - started) * 1000, tpot_ms=tpot)


def _refuse_forms(request: GenerateRequest) -> None:
    """A made-up text has no form and calls nothing; it may still be offered tools. Raises InvalidRequest."""
    if request.constraint is not None:
        raise InvalidRequest("A simulated model cannot be held to a form.", param="response_format")
    if request.tools is not None and request.tools.choice == "required":
        raise InvalidRequest("A simulated model calls no tools.", param="tool_choice")


def _prompt_again(request: GenerateRequest, wanted: int | None) -> Delta:
    pieces = _PIECE.findall(request.text) if request.text is not None else [str(one) for one in request.token_ids or []]
    certain = [one for piece in pieces for one in _certain(piece, wanted) or []]
    first = [TokenLogprob(token=pieces[0], logprob=None, top=[])]
    scores = None if wanted is None else first + certain[1:]
    return Delta(text="".join(pieces) if request.echo else "", prompt_logprobs=scores)


def _finish(available: int, max_tokens: int) -> FinishReason:
    return "stop" if available < max_tokens else "length"


def _certain(piece: str, wanted: int | None) -> list[TokenLogprob] | None:
    if wanted is None:
        return None
    return [TokenLogprob(token=piece, logprob=0.0, top=[(piece, 0.0)] if wanted else [])]


def _content(message: dict[str, object]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else str(content or "")


def _prompt_tokens(request: GenerateRequest) -> int:
    if request.token_ids is not None:
        return len(request.token_ids)
    if request.text is not None:
        return len(_PIECE.findall(request.text))
    return sum(3 + len(_PIECE.findall(_content(message))) for message in request.messages or [])


def _simulated_answer(request: GenerateRequest) -> str:
    asked = request.text or (_content(request.messages[-1]) if request.messages else "")
    return f"This is a simulated answer: no model ran. The question had {len(asked)} characters and began: {asked[:80]}"
