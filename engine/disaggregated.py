"""Prefill in one process, decode in another: long prompts never hold up running answers.

Knows: two clients, in which order a request visits them, what is billed. Does not know: how keys and values travel
(`engine.handover`). Source: DistServe (OSDI 2024), Splitwise (ISCA 2024). It steadies the gap between tokens; it does
not raise throughput.

A request is computed by the first process as a prompt with one token, which is thrown away; its blocks are handed over;
the second process finds them as a prefix hit and answers. Prompts shorter than two blocks go to the second at once; so
does everything while the first is away. A prompt that was in it as it went fails: it may have been why.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Literal

from msgspec.structs import replace

from engine.api import (
    Delta,
    EngineError,
    EngineFailed,
    EngineLost,
    EngineStats,
    EngineUsage,
    Figures,
    GenerateRequest,
    InvalidRequest,
    ModelInfo,
    SamplingParams,
    Spelled,
    Timing,
)
from engine.blocks import BLOCK
from engine.client import EngineClient
from engine.recent import RecentUsage

_log = logging.getLogger(__name__)
_WORTH = 2 * BLOCK
_ONE = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


_KEPT = 4096  # requests that left early, of which the decode process still has to tell what it did


class _Visit:
    """One request on its way. `read`: what the prefill process says it consumed, None when it never went there.

    `over`: why it ends without an answer. `answering`: the decode process has it, and is to say what it consumed there.
    `queued_ms`, `took_ms`: in the prefill process's queue, and until the decode process was asked.
    """

    def __init__(self) -> None:
        self.over: Literal["abort", "deadline"] | None = None
        self.answering = False
        self.read: EngineUsage | None = None
        self.queued_ms = self.took_ms = 0.0

    def timed(self, timing: Timing) -> Timing:
        """What the decode process says of its own part, as the client has waited for it."""
        queue, ttft = timing.queue_ms + self.queued_ms, timing.ttft_ms + self.took_ms
        return replace(timing, queue_ms=queue, ttft_ms=ttft)


class DisaggregatedEngine:
    """`Engine` over two of the same model. It starts and stops both."""

    def __init__(
        self, prefill: EngineClient, decode: EngineClient, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._monotonic = monotonic
        self._prefill = prefill
        self._decode = decode
        self._visits: dict[str, _Visit] = {}
        self._left: OrderedDict[str, _Visit] = OrderedDict()
        self._recent = RecentUsage()
        self._alone = False  # whether the decode process read the last long prompt

    async def start(self) -> None:
        await self._prefill.start()
        await self._decode.start()

    async def stop(self) -> None:
        await self._prefill.stop()
        await self._decode.stop()

    def info(self) -> ModelInfo | None:
        return self._decode.info()

    def stats(self) -> EngineStats:
        """Of the decode process, where requests live longest, and which answers alone while the other is away."""
        prefill, decode = self._prefill.stats(), self._decode.stats()
        return replace(
            decode,
            waiting=decode.waiting + prefill.waiting,
            running=decode.running + prefill.running,
            restarts=decode.restarts + prefill.restarts,
        )

    def figures(self) -> dict[str, Figures]:
        legs = {"prefill": self._prefill.figures(), "decode": self._decode.figures()}
        return {leg: figures for leg, found in legs.items() for figures in found.values()}

    def abort(self, request_id: str) -> None:
        visit = self._visits.get(request_id)
        if visit is not None:
            visit.over = "abort"
            self._prefill.abort(request_id)
            self._decode.abort(request_id)

    def usage_of(self, request_id: str) -> EngineUsage | None:
        known = self._recent.get(request_id)
        if known is not None or request_id in self._visits:
            return known
        visit = self._left.get(request_id)
        if visit is not None and visit.answering:
            written = self._decode.usage_of(request_id)
            return None if written is None else _together(written, visit.read)
        return _prompt_only(self._prefill.usage_of(request_id))

    async def count_tokens(self, request: GenerateRequest) -> int:
        return await self._decode.count_tokens(request)

    async def tokens(self, request: GenerateRequest, *, specials: bool | None = None) -> list[int]:
        return await self._decode.tokens(request, specials=specials)

    async def spelled(self, ids: list[int]) -> Spelled:
        return await self._decode.spelled(ids)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """Closing it frees what both legs hold. Usage counts the prompt once; the thrown-away token is not billed."""
        if request.id in self._visits:
            raise InvalidRequest(f"Request id {request.id!r} is in use.")
        tokens = (await self._decode.prepared(request)).tokens  # what is refused is refused before it costs anything
        visit = self._visits[request.id] = _Visit()
        began = self._monotonic()
        try:
            # A prompt whose tokens are scored is computed whole where it is answered, whatever is cached.
            if len(tokens) > _WORTH and request.sampling.prompt_logprobs is None:
                await self._read_if_there(request, tokens, visit)
            visit.took_ms = (self._monotonic() - began) * 1000
            if visit.over is not None:
                yield self._ended(request.id, visit, visit.over)
                return
            async with aclosing(self._answer(request, visit)) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            self._leave(request.id)

    async def _answer(self, request: GenerateRequest, visit: _Visit) -> AsyncGenerator[Delta, None]:
        """The leg of the answer. What that process refuses before its first delta it never had."""
        began, visit.answering = False, True
        if request.deadline_ms is not None:  # one bound for both queues
            request = replace(request, deadline_ms=max(1.0, request.deadline_ms - visit.queued_ms))
        try:
            async with aclosing(self._decode.generate(request)) as deltas:
                async for delta in deltas:
                    began = True
                    yield self._billed(request.id, delta, visit)
        except EngineError:
            visit.answering = began
            raise

    def _leave(self, request_id: str) -> None:
        self._left[request_id] = self._visits.pop(request_id)
        if len(self._left) > _KEPT:
            self._left.popitem(last=False)

    async def _read_if_there(self, request: GenerateRequest, tokens: list[int], visit: _Visit) -> None:
        """The prompt's leg, or none where it cannot be had: the decode process reads by itself what it does not find.

        Raises what the engine refused, and EngineLost.
        """
        try:
            await self._read(request, tokens, visit)
        except EngineLost:
            raise
        except EngineFailed as error:
            if not self._alone:  # once each time
                _log.warning("prompts are read where they are answered: %s", error)
            self._alone = True
        else:
            self._alone = False

    async def _read(self, request: GenerateRequest, tokens: list[int], visit: _Visit) -> None:
        """The prompt's leg: computed there, handed over. Raises what the engine refused or broke with."""
        finish = None
        plain = GenerateRequest(
            id=request.id,
            token_ids=tokens,
            sampling=_ONE,
            salt=request.salt,
            priority=request.priority,
            deadline_ms=request.deadline_ms,
        )
        async with aclosing(self._prefill.generate(plain)) as deltas:
            async for delta in deltas:
                visit.read, finish = delta.usage or visit.read, delta.finish_reason
                visit.queued_ms = delta.timing.queue_ms if delta.timing else visit.queued_ms
        if finish == "deadline" and visit.over is None:
            visit.over = "deadline"
        if visit.over is not None:
            return
        if finish != "length":  # an abort that nobody asked for: that process is ending
            raise EngineFailed(f"The prefill process ended a prompt with {finish}.")
        held = await self._prefill.export(tokens, request.salt)
        try:
            await self._decode.take(tokens, request.salt, held)
        finally:
            self._prefill.release(held)

    def _billed(self, request_id: str, delta: Delta, visit: _Visit) -> Delta:
        """What was handed over is no reuse: `cached` is what the prefill process found."""
        if delta.usage is None:
            return delta
        usage = _together(delta.usage, visit.read)
        self._recent.put(request_id, usage)
        return replace(delta, usage=usage, timing=None if delta.timing is None else visit.timed(delta.timing))

    def _ended(self, request_id: str, visit: _Visit, reason: Literal["abort", "deadline"]) -> Delta:
        usage = _prompt_only(visit.read) or EngineUsage(prompt=0, completion=0)
        self._recent.put(request_id, usage)
        timing = Timing(queue_ms=visit.queued_ms, ttft_ms=0.0, tpot_ms=0.0)
        return Delta(finish_reason=reason, usage=usage, timing=timing)


def _together(written: EngineUsage, read: EngineUsage | None) -> EngineUsage:
    """What the decode process says, with the prompt as the prefill process counted it where it was there."""
    return written if read is None else replace(written, prompt=read.prompt, cached=read.cached)


def _prompt_only(usage: EngineUsage | None) -> EngineUsage | None:
    """The prefill leg's usage without the token that is thrown away."""
    return None if usage is None else replace(usage, completion=0)
