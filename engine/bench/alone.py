"""How fast a model runs here: `python -m engine bench MODEL`, or `run(MODEL)`.

Knows: one core in this process, real steps, the wall clock. Does not know: sockets, text, other engines.

What is measured: prefill tokens/s on one long prompt; decode tokens/s alone and with `concurrency` sequences at once;
TTFT from submit to first token and TPOT per further token, when `concurrency` requests come together. Prompts are
random and different, so the prefix cache helps nobody. Medians over `repeats`; a first round warms up, uncounted.
"""

import os
import random
import statistics
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from engine.api import SamplingParams, Timing
from engine.core import EngineCore
from engine.frames import Submit
from engine.launch import launch
from engine.options import Options


class _Round(Struct):
    """`timings` per request; `seconds` from the first submit to the last token."""

    seconds: float
    tokens: int
    timings: list[Timing]


def run(  # noqa: PLR0913  (each is one dimension of the workload)
    model: str,
    options: Options | None = None,
    *,
    prompt_tokens: int = 256,
    output_tokens: int = 64,
    concurrency: int = 8,
    repeats: int = 3,
    monotonic: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Rates in tokens/s, times in milliseconds, with what they were measured on. Raises EngineError."""
    began = monotonic()
    options = options or Options()
    options = replace(options, sequences=max(options.sequences, concurrency))
    core = launch(model, options, monotonic=monotonic)
    ready = monotonic() - began
    prompt = max(1, min(prompt_tokens, core.context - output_tokens - 1))
    bench = _Bench(core, monotonic)
    bench.round(concurrency, prompt, output_tokens)
    prefill = [bench.round(1, prompt, 1) for _ in range(repeats)]
    alone = [bench.round(1, min(16, prompt), output_tokens) for _ in range(repeats)]
    together = [bench.round(concurrency, prompt, output_tokens) for _ in range(repeats)]
    timings = [timing for one in together for timing in one.timings]
    tpot = statistics.median(timing.tpot_ms for timing in timings)
    info = core.info()
    return {
        "model": model,
        "architecture": info.architecture,
        "dtype": info.dtype,
        "threads": options.threads or "auto",
        "prompt_tokens": prompt,
        "output_tokens": output_tokens,
        "concurrency": concurrency,
        "repeats": repeats,
        "load_average": round(os.getloadavg()[0], 2),
        "ready_s": round(ready, 3),
        "prefill_tokens_per_s": round(statistics.median(prompt / one.seconds for one in prefill), 1),
        "decode_tokens_per_s_alone": round(_per_second(statistics.median(one.timings[0].tpot_ms for one in alone)), 1),
        "decode_tokens_per_s": round(concurrency * _per_second(tpot), 1),
        "total_tokens_per_s": round(statistics.median(one.tokens / one.seconds for one in together), 1),
        "ttft_alone_ms": round(statistics.median(one.timings[0].ttft_ms for one in prefill), 2),
        "ttft_p50_ms": round(statistics.median(timing.ttft_ms for timing in timings), 2),
        "ttft_max_ms": round(max(timing.ttft_ms for timing in timings), 2),
        "tpot_alone_ms": round(statistics.median(one.timings[0].tpot_ms for one in alone), 3),
        "tpot_p50_ms": round(tpot, 3),
    }


def _per_second(tpot_ms: float) -> float:
    """0 where there was no second token, and so no time between two."""
    return 1000 / tpot_ms if tpot_ms else 0.0


class _Bench:
    def __init__(self, core: EngineCore, monotonic: Callable[[], float]) -> None:
        self._core = core
        self._monotonic = monotonic
        self._keys = count()
        self._random = random.Random(0)  # noqa: S311  (a workload, not a secret)

    def round(self, requests: int, prompt: int, output: int) -> _Round:
        """Submit all at once, step until all have ended."""
        vocabulary = self._core.info().vocabulary
        began = self._monotonic()
        for _ in range(requests):
            tokens = [self._random.randrange(vocabulary) for _ in range(prompt)]
            self._core.submit(next(self._keys), _greedy(tokens, output))
        timings: list[Timing] = []
        while self._core.busy:
            timings += [one.output.timing for one in self._core.step() if one.output.timing is not None]
        return _Round(self._monotonic() - began, requests * (prompt + output), timings)


def _greedy(tokens: list[int], output: int) -> Submit:
    sampling = SamplingParams(max_tokens=output, temperature=0.0)
    return Submit(
        handle=0, tokens=tokens, sampling=sampling, seed=0, eos=[], salt="bench", priority=0, deadline_ms=None
    )
