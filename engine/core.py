"""The engine itself: requests in, one step at a time, tokens out.

Knows: scheduler, model, sampler, the clock it is given. Does not know: sockets, clients, text.

`step()` is the whole story: expire, plan, run, sample, advance. One request's fault ends that request; a fault of the
model ends the batch it struck; neither ends the engine.
"""

import logging
from collections.abc import Callable, Hashable
from itertools import count

from msgspec import Struct

from engine.api import EngineFailed, EngineStats, FinishReason, InvalidRequest, ModelInfo, Overloaded, SamplingParams
from engine.attention import KVCache, pack
from engine.blocks import BLOCK, BlockPool, blocks_for
from engine.frames import Output, Submit
from engine.models.decoder import Decoder
from engine.sampler import Pick, Row, sample
from engine.scheduler import Limits, Scheduler, Work
from engine.sequence import Sequence
from engine.validate import TOO_LONG, check_sampling, check_tokens

_log = logging.getLogger(__name__)
_ASSUMED_RATE = 200.0  # tokens per second, until something was measured
_SMOOTH = 0.1


class Ended(Struct, frozen=True):
    """What a step produced for `key`."""

    key: Hashable
    output: Output


class EngineCore:
    """Single-threaded: call `submit`, `cancel` and `step` from one thread. `queue`: how many requests may wait."""

    def __init__(  # noqa: PLR0913  (each is one decision of whoever launches it)
        self,
        name: str,
        model: Decoder,
        *,
        blocks: int,
        limits: Limits,
        queue: int,
        monotonic: Callable[[], float],
        features: tuple[str, ...] = (),
        kv_dtype: str = "float32",
    ) -> None:
        spec = model.spec
        self._model = model
        self._pool = BlockPool(blocks)
        self._cache = KVCache(spec.layers, blocks, spec.kv_heads, spec.head, kv_dtype)
        self._scheduler = Scheduler(self._pool, limits)
        self._queue = queue
        self._monotonic = monotonic
        self._live: dict[Hashable, Sequence] = {}
        self._arrivals = count()
        self._rate = 0.0
        self._step_s = 0.0
        self.context = min(spec.context, blocks * BLOCK)
        self._name = name
        self._features = ("logprobs", "prefix-cache", "seed", *features)

    def info(self) -> ModelInfo:
        spec = self._model.spec
        return ModelInfo(
            id=self._name,
            architecture=spec.family,
            dtype=self._model.dtype,
            context=self.context,
            kv_capacity_tokens=self._pool.count * BLOCK,
            vocabulary=spec.vocabulary,
            has_chat_template=False,
            features=self._features,
        )

    def warm_up(self) -> None:
        """One short answer before the first client: torch prepares its kernels, and a broken model shows itself.

        Raises EngineFailed when the model computes nonsense.
        """
        tokens = [at % self._model.spec.vocabulary for at in range(min(BLOCK, self.context - 1))]
        sampling = SamplingParams(max_tokens=1, temperature=1.0)
        self.submit(
            "warm-up",
            Submit(handle=0, tokens=tokens, sampling=sampling, seed=0, eos=[], salt="", priority=0, deadline_ms=None),
        )
        finishes = [ended.output.finish for ended in self.step()]
        if finishes != ["length"]:
            raise EngineFailed("The model's first step failed: its weights are broken or do not fit its configuration.")
        self._pool.forget(range(1, self._pool.count + 1))
        self._rate = self._step_s = 0.0

    @property
    def busy(self) -> bool:
        return bool(self._live)

    def submit(self, key: Hashable, request: Submit) -> None:
        """Raises InvalidRequest, Overloaded. Trusts no client: what passes here cannot hurt a batch."""
        vocabulary = self._model.spec.vocabulary
        check_sampling(request.sampling, vocabulary)
        check_tokens(request.tokens, vocabulary)
        if not request.tokens:
            raise InvalidRequest("The prompt has no tokens.", param="prompt")
        if key in self._live:
            raise InvalidRequest("This handle is in use.")
        total = len(request.tokens) + request.sampling.max_tokens
        if total > self.context:
            message = f"Prompt and max_tokens need {total} tokens, the context is {self.context}."
            raise InvalidRequest(message, param="max_tokens", code=TOO_LONG)
        if len(self._scheduler.waiting) >= self._queue:
            waiting = len(self._scheduler.waiting)
            raise Overloaded(f"{waiting} requests are waiting already.", retry_after=self._backlog_seconds())
        self._add(key, request)

    def _add(self, key: Hashable, request: Submit) -> None:
        now = self._monotonic()
        sequence = Sequence(
            key=key,
            tokens=list(request.tokens),
            prompt=len(request.tokens),
            sampling=request.sampling,
            seed=request.seed,
            eos=frozenset(request.eos),
            salt=request.salt,
            priority=request.priority,
            arrival=next(self._arrivals),
            submitted=now,
            deadline=None if request.deadline_ms is None else now + request.deadline_ms / 1000,
        )
        self._live[key] = sequence
        self._scheduler.add(sequence)

    def cancel(self, key: Hashable, reason: FinishReason) -> Output | None:
        """End a request in any state; its terminal output. None when it has ended already."""
        sequence = self._live.get(key)
        return None if sequence is None else self._finish(sequence, reason)

    def step(self) -> list[Ended]:
        """Compute one step. Empty when there was nothing to do."""
        now = self._monotonic()
        ended = [Ended(s.key, self._finish(s, "deadline")) for s in self._scheduler.expired(now)]
        plan = self._scheduler.plan(now)
        if not plan:
            return ended
        try:
            logits = self._model.forward(pack(plan), self._cache)
        except RuntimeError:  # torch's own errors, out of memory included
            _log.exception("a step failed; its %d requests end", len(plan))
            return ended + [Ended(work.sequence.key, self._finish(work.sequence, "error")) for work in plan]
        self._scheduler.settle(plan)
        caught_up = [work.sequence for work in plan if work.sequence.pending == 0]
        rows = [_row(sequence) for sequence in caught_up]
        picks = sample(logits, rows) if rows else []
        then = self._monotonic()
        self._measure(plan, then - now)
        return ended + [Ended(s.key, self._advance(s, pick, then)) for s, pick in zip(caught_up, picks, strict=True)]

    def _advance(self, sequence: Sequence, pick: Pick, now: float) -> Output:
        if pick.token is None:
            _log.error("the model gave logits that are not finite; one request ends")
            self._scheduler.distrust(sequence)
            return self._finish(sequence, "error")
        sequence.tokens.append(pick.token)
        sequence.first = now if sequence.first is None else sequence.first
        sequence.last = now
        finish: FinishReason | None = None
        if pick.token in sequence.eos:
            finish = "stop"
        elif sequence.completion >= sequence.sampling.max_tokens:
            finish = "length"
        output = Output(handle=0, tokens=[]) if finish is None else self._finish(sequence, finish)
        output.tokens = [pick.token]
        output.choices = None if pick.choice is None else [pick.choice]
        return output

    def _finish(self, sequence: Sequence, reason: FinishReason) -> Output:
        del self._live[sequence.key]
        self._scheduler.remove(sequence)
        timing = sequence.timing(self._monotonic())
        return Output(handle=0, tokens=[], finish=reason, usage=sequence.usage(), timing=timing)

    def _measure(self, plan: list[Work], seconds: float) -> None:
        rate = sum(work.tokens for work in plan) / max(seconds, 1e-6)
        self._rate += (rate - self._rate) * (_SMOOTH if self._rate else 1.0)
        self._step_s += (seconds - self._step_s) * (_SMOOTH if self._step_s else 1.0)

    def _backlog_seconds(self) -> float:
        """When a place in the queue is likely: what waits and runs, at the measured speed, spread over the queue."""
        tokens = sum(s.pending + s.sampling.max_tokens - s.completion for s in self._live.values())
        seconds = tokens / (self._rate or _ASSUMED_RATE) / max(len(self._live), 1)
        return min(max(seconds, 1.0), 60.0)

    def stats(self) -> EngineStats:
        pool = self._pool
        return EngineStats(
            ready=True,
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            kv_used=1 - pool.available / pool.count,
            prefix_hit_rate=pool.hit / max(pool.queried, 1),
            tokens_per_s=self._rate if self._live else 0.0,
            step_ms=self._step_s * 1000,
        )

    def check(self) -> None:
        """Assert that every block is accounted for."""
        self._scheduler.check()


def _row(sequence: Sequence) -> Row:
    """What was generated is copied only for those whose penalties look at it."""
    sampling = sequence.sampling
    penalised = sampling.presence_penalty or sampling.frequency_penalty
    generated = sequence.tokens[sequence.prompt :] if penalised else []
    return Row(sampling, sequence.seed, len(sequence.tokens), generated)


def plan_blocks(model: Decoder, limits: Limits, memory: int, kv_dtype: str = "float32") -> int:
    """How many blocks: enough for every running sequence at full length, within `memory` bytes, at least one."""
    spec = model.spec
    block_bytes = BLOCK * KVCache.token_bytes(spec.layers, spec.kv_heads, spec.head, kv_dtype)
    return max(1, min(limits.sequences * blocks_for(spec.context), memory // block_bytes))
