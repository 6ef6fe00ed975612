"""The engine itself: requests in, one step at a time, tokens out.

Knows: scheduler, runner, grammars, speculation, the clock it is given. Does not know: sockets, clients, text.

`step()` is the whole story: `launch` expires, plans and starts, `collect` waits, samples and advances. A request may be
cancelled between the two; what its step was writing is given back when that step is done. One request's fault ends that
request; a fault of the model ends the batch it struck; neither ends the engine.
"""

import logging
from collections.abc import Callable, Hashable
from itertools import count

from msgspec import Struct

from engine.admission import Admission
from engine.api import EngineFailed, EngineStats, FinishReason, InvalidRequest, ModelInfo, SamplingParams
from engine.attention import KVCache
from engine.blocks import BLOCK, BlockPool, blocks_for
from engine.frames import Output, Submit
from engine.grammar import Vocabulary
from engine.models.decoder import Decoder
from engine.pacing import Pace
from engine.rows import Asked, Drawn, ask, take
from engine.runner import EagerRunner, Reading, Runner, Step
from engine.scheduler import Limits, Scheduler, Work
from engine.sequence import Sequence
from engine.speculation import Speculation
from engine.validate import check_sampling, check_tokens, check_window

_log = logging.getLogger(__name__)
_SMOOTH = 0.1


class Ended(Struct, frozen=True):
    """What a step produced for `key`."""

    key: Hashable
    output: Output


class Flight(Struct, frozen=True):
    """A step that was started. `asked`: who hears of it, in the order of `steps`. `ended`: what had ended before.

    `decodes` rows and `prompt` tokens are computed in it, parts of tokens included.
    """

    asked: list[Asked]
    steps: list[Step]
    began: float
    ended: list[Ended]
    decodes: int = 0
    prompt: float = 0.0


class _Read(Struct, frozen=True):
    """A block of a prompt that is computed in parts, beside those who decode."""

    asked: Asked
    reading: Reading

    @property
    def sequence(self) -> Sequence:
        return self.asked.work.sequence


class EngineCore:
    """Single-threaded: call every method from one thread. `queue`: how many requests may wait.

    Without `runner` steps run eagerly on the processor; without `grammar` constraints are refused, without
    `speculation` nothing is guessed.
    """

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
        runner: Runner | None = None,
        grammar: Vocabulary | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        self.decoder = model
        self.pool = BlockPool(blocks)
        self._runner: Runner = runner or EagerRunner(model, blocks)
        self._scheduler = Scheduler(self.pool, limits)
        self._pace = Pace()
        self._admission = Admission(queue, limits.queue_seconds, self._pace)
        self._grammar = grammar
        self._speculation = speculation
        self._monotonic = monotonic
        self._live: dict[Hashable, Sequence] = {}
        self._read: _Read | None = None
        self._flying: set[int] = set()  # arrivals of those in the step that is under way
        self._arrivals = count()
        self._rate = 0.0
        self._step_s = 0.0
        self.context = min(model.spec.context, blocks * BLOCK)
        self._name = name
        known = ("logprobs", "prefix-cache", "seed", *(("grammar",) if grammar else ()))
        self._features = (*known, *(("speculation",) if speculation else ()), *features)

    @property
    def cache(self) -> KVCache:
        """Keys and values of all layers, as the runner keeps them."""
        return self._runner.cache

    def info(self) -> ModelInfo:
        spec = self.decoder.spec
        return ModelInfo(
            id=self._name,
            architecture=spec.family,
            dtype=self.decoder.dtype,
            context=self.context,
            kv_capacity_tokens=self.pool.count * BLOCK,
            vocabulary=spec.vocabulary,
            has_chat_template=False,
            features=self._features,
        )

    def warm_up(self) -> None:
        """One short answer before the first client: torch prepares its kernels, and a broken model shows itself.

        Raises EngineFailed when the model computes nonsense.
        """
        tokens = [at % self.decoder.spec.vocabulary for at in range(min(BLOCK, self.context - 1))]
        sampling = SamplingParams(max_tokens=1, temperature=1.0)
        self.submit(
            "warm-up",
            Submit(handle=0, tokens=tokens, sampling=sampling, seed=0, eos=[], salt="", priority=0, deadline_ms=None),
        )
        finishes = [ended.output.finish for ended in self.step()]
        if finishes != ["length"]:
            raise EngineFailed("The model's first step failed: its weights are broken or do not fit its configuration.")
        self.pool.forget(range(1, self.pool.count + 1))
        self._rate = self._step_s = 0.0
        self._pace.forget()

    @property
    def busy(self) -> bool:
        return bool(self._live)

    def submit(self, key: Hashable, request: Submit) -> None:
        """Raises InvalidRequest, Overloaded. Trusts no client: what passes here cannot hurt a batch."""
        vocabulary = self.decoder.spec.vocabulary
        check_sampling(request.sampling, vocabulary)
        check_tokens(request.tokens, vocabulary)
        if not request.tokens:
            raise InvalidRequest("The prompt has no tokens.", param="prompt")
        if key in self._live:
            raise InvalidRequest("This handle is in use.")
        check_window(len(request.tokens), request.sampling, self.context)
        self._admission.check(request.salt, self._scheduler.waiting, self._scheduler.running)
        sequence = self._sequence(key, request)
        if request.grammar is not None:
            if self._grammar is None:
                raise InvalidRequest("This model cannot be held to a form.", param="response_format")
            sequence.matcher = self._grammar.matcher(request.grammar)
        self._live[key] = sequence
        self._scheduler.add(sequence)

    def _sequence(self, key: Hashable, request: Submit) -> Sequence:
        now, vocabulary = self._monotonic(), self.decoder.spec.vocabulary
        return Sequence(
            key=key,
            tokens=list(request.tokens),
            prompt=len(request.tokens),
            sampling=request.sampling,
            seed=request.seed,
            eos=frozenset(token for token in request.eos if 0 <= token < vocabulary)
            | frozenset(request.sampling.stop_token_ids),
            salt=request.salt,
            priority=request.priority,
            arrival=next(self._arrivals),
            submitted=now,
            deadline=None if request.deadline_ms is None else now + request.deadline_ms / 1000,
            closing=request.closing,
            # Some tokenizers know tokens that the model has no column for (Gemma 3 1B).
            prediction=[token for token in request.prediction if 0 <= token < vocabulary],
        )

    def cancel(self, key: Hashable, reason: FinishReason) -> Output | None:
        """End a request in any state; its terminal output. None when it has ended already."""
        sequence = self._live.get(key)
        return None if sequence is None else self._finish(sequence, reason)

    def step(self) -> list[Ended]:
        """Compute one step. Empty when there was nothing to do."""
        return self.collect(self.launch())

    def launch(self) -> Flight:
        """Plan a step and start it. `collect` must follow before the next."""
        now = self._monotonic()
        ended = [Ended(s.key, self._finish(s, "deadline")) for s in self._scheduler.expired(now)]
        if self._speculation is not None:
            self._speculation.prepare(self._scheduler.running)
        limits = self._scheduler.limits
        chunk, alone = self._pace.chunk(limits.chunk), self._pace.alone(limits.step_tokens)
        plan = self._scheduler.plan(now, chunk, alone)
        self._divide(plan)
        asked, read = [ask(work) for work in plan], self._read
        touched = [*asked, *([] if read is None else [read.asked])]
        self._flying = {one.work.sequence.arrival for one in touched}
        decodes = sum(work.sequence.pending == 1 for work in plan)
        prompt = float(sum(work.tokens for work in plan if work.sequence.pending > 1))
        steps: list[Step] = []
        try:
            if asked:
                rows = [row for one in asked for row in (*one.scores, *one.draws)]
                steps.append(self._runner.launch(plan, rows))
            if read is not None:
                parts = max(1, int(self._pace.part() * self._runner.parts)) if decodes else self._runner.parts
                prompt += read.asked.work.tokens * parts / self._runner.parts
                if (step := read.reading.go_on(parts)) is not None:
                    steps.append(step)
                    asked.append(read.asked)
                    self._let_go()
        except (RuntimeError, MemoryError):  # torch's own errors, and where masks found no memory
            return Flight([], [], now, ended + self._crashed(touched))
        return Flight(asked, steps, now, ended, decodes, prompt)

    def _divide(self, plan: list[Work]) -> None:
        """Where a block of a prompt is too much for a step that decodes, compute the one that asks for most in parts.

        That is the one furthest into its prompt. It is taken out of `plan`.
        """
        if self._read is not None and not self._read.sequence.reading:  # it lost its blocks
            self._read = None
        decodes = any(work.sequence.pending == 1 for work in plan)
        prompts = [work for work in plan if work.sequence.pending > 1]
        if self._read is not None or not decodes or not prompts or self._runner.parts == 1 or self._pace.part() == 1:
            return
        work = max(prompts, key=lambda one: one.begin)
        plan.remove(work)
        asked = ask(work)
        self._read = _Read(asked, self._runner.read([work], [*asked.scores, *asked.draws]))
        work.sequence.reading = True

    def _let_go(self) -> None:
        if self._read is not None:
            self._read.sequence.reading = False
            self._read = None

    def collect(self, flight: Flight) -> list[Ended]:
        """What a started step came to. Nobody hears of a request that was cancelled meanwhile."""
        if self._read is not None and self._read.sequence.over:
            self._scheduler.remove(self._read.sequence)
        try:
            picks = iter([pick for step in flight.steps for pick in step.finish()])
        except (RuntimeError, MemoryError):
            return flight.ended + self._crashed(flight.asked)
        then = self._monotonic()
        if flight.decodes or flight.prompt:
            self._measure(flight, then - flight.began)
        self._flying = set()
        ended = list(flight.ended)
        for one in flight.asked:
            mine = [next(picks) for _ in range(len(one.scores) + len(one.draws))]
            sequence = one.work.sequence
            if sequence.over:
                self._scheduler.remove(sequence)
            elif (output := self._advance(one, take(one, mine), then)) is not None:
                ended.append(Ended(sequence.key, output))
        return ended

    def _crashed(self, asked: list[Asked]) -> list[Ended]:
        _log.exception("a step failed; its %d requests end", len(asked))
        self._flying = set()
        self._let_go()
        sequences = [one.work.sequence for one in asked]
        for sequence in sequences:
            if sequence.over:
                self._scheduler.remove(sequence)
        return [Ended(one.key, self._finish(one, "error")) for one in sequences if not one.over]

    def _advance(self, asked: Asked, drawn: Drawn, now: float) -> Output | None:
        """Book what came of a sequence's rows. None when there is nothing to tell yet."""
        work, sequence = asked.work, asked.work.sequence
        if drawn.broken is not None:
            _log.warning("a grammar cannot go on, its request ends: %.200s", drawn.broken)
        self._scheduler.settle(work, len(drawn.tokens))
        sequence.scored += len(drawn.scores)
        if work.drafts and self._speculation is not None:
            self._speculation.note(sequence, len(work.drafts), max(len(drawn.tokens) - 1, 0))
        if drawn.failed:
            _log.error("the model gave logits that are not finite; one request ends")
            self._scheduler.distrust(sequence)
        if drawn.tokens:
            sequence.first = now if sequence.first is None else sequence.first
            sequence.last = now
        elif drawn.finish is None and not drawn.scores:
            return None
        output = Output(handle=0, tokens=[]) if drawn.finish is None else self._finish(sequence, drawn.finish)
        output.tokens = drawn.tokens
        output.choices = drawn.choices or None
        output.scores = drawn.scores or None
        output.why = drawn.broken or ""
        return output

    def _finish(self, sequence: Sequence, reason: FinishReason) -> Output:
        del self._live[sequence.key]
        sequence.over = True
        if self._speculation is not None:
            self._speculation.forget(sequence)
        if sequence.arrival not in self._flying:  # else `collect` does, when nothing is written to its blocks any more
            self._scheduler.remove(sequence)
        timing = sequence.timing(self._monotonic())
        return Output(handle=0, tokens=[], finish=reason, usage=sequence.usage(), timing=timing)

    def _measure(self, flight: Flight, seconds: float) -> None:
        self._pace.observe(flight.decodes, flight.prompt, seconds)
        rate = (flight.decodes + flight.prompt) / max(seconds, 1e-6)
        self._rate += (rate - self._rate) * (_SMOOTH if self._rate else 1.0)
        self._step_s += (seconds - self._step_s) * (_SMOOTH if self._step_s else 1.0)

    def stats(self) -> EngineStats:
        pool = self.pool
        return EngineStats(
            ready=True,
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            kv_used=1 - pool.available / pool.count,
            prefix_hit_rate=pool.hit / max(pool.queried, 1),
            tokens_per_s=self._rate if self._live else 0.0,
            step_ms=self._step_s * 1000,
            preemptions=self._scheduler.preemptions,
            drafted_tokens=self._speculation.drafted if self._speculation else 0,
            accepted_tokens=self._speculation.accepted if self._speculation else 0,
        )

    def check(self) -> None:
        """Assert that every block is accounted for."""
        self._scheduler.check()


def plan_blocks(model: Decoder, limits: Limits, memory: int, kv_dtype: str = "float32") -> int:
    """How many blocks: enough for every running sequence at full length, within `memory` bytes, at least one."""
    spec = model.spec
    block_bytes = BLOCK * KVCache.token_bytes(spec.layers, spec.kv_heads, spec.head, kv_dtype)
    return max(1, min(limits.sequences * blocks_for(spec.context), memory // block_bytes))
