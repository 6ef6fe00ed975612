"""Several engines with the same model as one: each request goes where it will be answered soonest.

Knows: which replica lately got which prompt, what each has to do, what a replica's failure means for a request that has
not begun. Does not know: processes, tokens beyond counts, how the cost is made up (`policies.routing.affinity`).

Prompts are compared as text before any replica tokenizes them; so the index is an approximation, and a wrong guess
costs a prefill, never an answer.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing

import msgspec

from engine.api import (
    Delta,
    Engine,
    EngineFailed,
    EngineLost,
    EngineStats,
    EngineUsage,
    Figures,
    GenerateRequest,
    ModelInfo,
    Overloaded,
    Spelled,
)
from policies.routing.affinity import (
    CHARS_PER_TOKEN,
    PIECE_TOKENS,
    Load,
    PrefixIndex,
    rank,
    text_keys,
    token_keys,
)

_KEPT = 4096  # requests of which is known who answered
_RATE = 2000.0  # prompt tokens/s of a replica that was not measured yet
_WAKE_MS = 1000.0  # of a sleeper that never woke
_SMOOTH = 0.2
_DOUBLING = 16  # sequences that make a step about twice as long as one does, on processors we measured


class _Speed:
    """How fast a replica reads and writes: learned from whole answers, the same for all, as they run the same model."""

    def __init__(self) -> None:
        self.rate = _RATE
        self.tpot_ms = 0.0

    def learn(self, last: Delta) -> None:
        if last.usage is None or last.timing is None or not last.usage.completion:
            return
        seconds = (last.timing.ttft_ms - last.timing.queue_ms) / 1000
        computed = last.usage.prompt - last.usage.cached
        if seconds > 0 and computed > 0:
            self.rate += _SMOOTH * (computed / seconds - self.rate)
        if last.usage.completion > 1:
            self.tpot_ms += (_SMOOTH if self.tpot_ms else 1.0) * (last.timing.tpot_ms - self.tpot_ms)


class _Replica:
    """One engine and what this pool has on it. `prefilling`: prompt tokens sent and not answered yet."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.prefilling = 0
        self.running = 0
        self.restarts = 0

    def load(self, speed: _Speed) -> Load:
        """Other users of the same process show in its own counts."""
        stats = self.engine.stats()
        return Load(
            prefill_rate=speed.rate,
            queued=self.prefilling,
            running=max(self.running, stats.running + stats.waiting),
            slowdown_ms=speed.tpot_ms / _DOUBLING,
            wake_ms=(stats.wake_ms or _WAKE_MS) if stats.sleeping else 0.0,
        )


class EnginePool:
    """`Engine` over others. It starts and stops them. Replicas keep their place in `engines` as their number."""

    def __init__(
        self,
        engines: Sequence[Engine],
        *,
        index: PrefixIndex | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._replicas = [_Replica(engine) for engine in engines]
        self._speed = _Speed()
        self._index = index or PrefixIndex()
        self._monotonic = monotonic
        self._answering: OrderedDict[str, Engine] = OrderedDict()
        self._turn = asyncio.Lock()  # of those that were lost with a process

    async def start(self) -> None:
        for replica in self._replicas:
            await replica.engine.start()

    async def stop(self) -> None:
        for replica in self._replicas:
            await replica.engine.stop()

    def info(self) -> ModelInfo | None:
        """Of any replica that is ready: all have the same model."""
        return next((info for replica in self._replicas if (info := replica.engine.info()) is not None), None)

    def stats(self) -> EngineStats:
        """Sums; what cannot be summed is the mean of those that are ready. Ready when any is."""
        every = [replica.engine.stats() for replica in self._replicas]
        ready = [stats for stats in every if stats.ready]
        if not ready:
            restarts, failed = sum(stats.restarts for stats in every), all(stats.failed for stats in every)
            return msgspec.structs.replace(every[0], restarts=restarts, failed=failed)

        def mean(values: list[float]) -> float:
            return sum(values) / len(values)

        return EngineStats(
            ready=True,
            running=sum(stats.running for stats in ready),
            waiting=sum(stats.waiting for stats in ready),
            batch=sum(stats.batch for stats in ready),
            kv_used=mean([stats.kv_used for stats in ready]),
            prefix_hit_rate=mean([stats.prefix_hit_rate for stats in ready]),
            tokens_per_s=sum(stats.tokens_per_s for stats in ready),
            step_ms=mean([stats.step_ms for stats in ready]),
            step_p50_ms=mean([stats.step_p50_ms for stats in ready]),
            heartbeat_age_s=max(stats.heartbeat_age_s for stats in ready),
            preemptions=sum(stats.preemptions for stats in ready),
            drafted_tokens=sum(stats.drafted_tokens for stats in ready),
            accepted_tokens=sum(stats.accepted_tokens for stats in ready),
            restarts=sum(stats.restarts for stats in every),
            sleeping=min(stats.sleeping for stats in ready),
            wake_ms=max(stats.wake_ms for stats in ready),
        )

    def figures(self) -> dict[str, Figures]:
        found: dict[str, Figures] = {}
        for number, replica in enumerate(self._replicas):
            found |= dict.fromkeys([str(number)], *replica.engine.figures().values())
        return found

    def abort(self, request_id: str) -> None:
        engine = self._answering.get(request_id)
        if engine is not None:
            engine.abort(request_id)

    def usage_of(self, request_id: str) -> EngineUsage | None:
        engine = self._answering.get(request_id)
        return None if engine is None else engine.usage_of(request_id)

    async def count_tokens(self, request: GenerateRequest) -> int:
        return await self._any().count_tokens(request)

    async def tokens(self, request: GenerateRequest, *, specials: bool | None = None) -> list[int]:
        return await self._any().tokens(request, specials=specials)

    async def spelled(self, ids: list[int]) -> Spelled:
        return await self._any().spelled(ids)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """A replica that is full or gone before its first delta passes the request on to the next best.

        What was lost with a process may have ended it: it is passed on once, and one at a time; not at all where it is
        suspected already.
        """
        refused: EngineFailed | Overloaded | None = None
        lost: EngineLost | None = None
        keys, tokens = _prompt(request)
        async with AsyncExitStack() as turn:
            for number in self._order(request, keys, tokens):
                began = False
                try:
                    async with aclosing(self._ask(number, request, keys, tokens)) as deltas:
                        async for delta in deltas:
                            began = True
                            await turn.aclose()
                            yield delta
                except EngineLost as error:
                    if lost is not None and not began:
                        raise EngineLost(str(error), twice=True) from error
                    if began or request.suspected:
                        raise
                    lost = error
                    await turn.enter_async_context(self._turn)
                except (EngineFailed, Overloaded) as error:
                    if began:
                        raise
                    refused = _kinder(refused, error)
                else:
                    return
        raise lost or refused or EngineFailed("No replica of this engine is ready.")

    def _any(self) -> Engine:
        return next((one.engine for one in self._replicas if one.engine.info() is not None), self._replicas[0].engine)

    def _order(self, request: GenerateRequest, keys: list[bytes], tokens: int) -> list[int]:
        """Ready replicas, cheapest first."""
        loads: dict[int, Load] = {}
        for number, replica in enumerate(self._replicas):
            stats = replica.engine.stats()
            if stats.sleeping or stats.restarts != replica.restarts:  # its cache is empty
                self._index.forget(number)
                replica.restarts = stats.restarts
            if stats.ready:
                loads[number] = replica.load(self._speed)
        pieces = self._index.matched(keys, self._monotonic())
        matched = {number: count * PIECE_TOKENS for number, count in pieces.items()}
        return [one.replica for one in rank(tokens, matched, request.sampling.max_tokens, loads)]

    async def _ask(
        self, number: int, request: GenerateRequest, keys: list[bytes], tokens: int
    ) -> AsyncGenerator[Delta, None]:
        replica = self._replicas[number]
        self._index.note(keys, number, self._monotonic())
        self._answering[request.id] = replica.engine
        if len(self._answering) > _KEPT:
            self._answering.popitem(last=False)
        reading = tokens
        replica.prefilling += reading
        replica.running += 1
        try:
            async with aclosing(replica.engine.generate(request)) as deltas:
                async for delta in deltas:
                    replica.prefilling -= reading
                    reading = 0
                    if delta.finish_reason is not None:
                        self._speed.learn(delta)
                    yield delta
        finally:
            replica.prefilling -= reading
            replica.running -= 1


def _kinder(one: EngineFailed | Overloaded | None, two: EngineFailed | Overloaded) -> EngineFailed | Overloaded:
    """What to tell when all refuse: being full passes, so that is said before a failure; the shortest wait."""
    if isinstance(one, Overloaded) and isinstance(two, Overloaded):
        return min(one, two, key=lambda error: error.retry_after)
    return one if isinstance(one, Overloaded) else two


def _prompt(request: GenerateRequest) -> tuple[list[bytes], int]:
    """Keys of the prompt's beginnings and about how many tokens it has."""
    if request.token_ids is not None:
        return token_keys(request.token_ids, request.salt), len(request.token_ids)
    text = request.text
    if text is None:
        text = "\n".join(f"{message.get('role')}: {message.get('content')}" for message in request.messages or [])
    return text_keys(text, request.salt), max(1, int(len(text) / CHARS_PER_TOKEN))
