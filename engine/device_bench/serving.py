"""How the engine serves: requests that come when they please, shared prefixes, long prompts among decoders.

Knows: arrivals, latencies, the core stepped in this process (a socket and its frames add about 0.1 ms a step). Does not
know: text, clients.
"""

import random
import statistics
import time
from collections.abc import Hashable

from msgspec import Struct, field

from engine.api import SamplingParams
from engine.core import EngineCore
from engine.device_bench.models import Scale, make_core, make_decoder
from engine.device_bench.right import submit
from engine.device_bench.roof import Ceilings, batch_seconds, measured, prefill_seconds
from engine.device_bench.rows import Rows
from engine.device_bench.speed import drain, warm

TTFT_S, TPOT_S = 0.5, 0.03  # a request counts towards goodput when it keeps both


class Request(Struct):
    """`due`: seconds after the start. `times`: when each of its tokens came."""

    tokens: list[int]
    out: int
    due: float
    times: list[float] = field(default_factory=list[float])

    @property
    def ttft(self) -> float:
        return self.times[0] - self.due

    @property
    def tpot(self) -> float:
        return (self.times[-1] - self.times[0]) / max(len(self.times) - 1, 1)


def serve(core: EngineCore, requests: list[Request]) -> float:
    """Submit each when it is due, step until all have ended; seconds it took."""
    waiting = sorted(enumerate(requests), key=lambda pair: pair[1].due)
    by_key: dict[Hashable, Request] = {}
    began = time.perf_counter()
    while waiting or core.busy:
        now = time.perf_counter() - began
        while waiting and waiting[0][1].due <= now:
            at, request = waiting.pop(0)
            by_key[at] = request
            sampling = SamplingParams(max_tokens=request.out, temperature=0.7)
            core.submit(at, submit(request.tokens, sampling, seed=at))
        if not core.busy:
            time.sleep(max(0.0, waiting[0][1].due - now))
            continue
        for ended in core.step():
            by_key[ended.key].times += [time.perf_counter() - began] * len(ended.output.tokens)
    return time.perf_counter() - began


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def latencies(requests: list[Request], seconds: float) -> dict[str, float]:
    """TTFT and TPOT in milliseconds, and requests per second that kept both limits."""
    ttft, tpot = [one.ttft for one in requests], [one.tpot for one in requests]
    kept = sum(one.ttft <= TTFT_S and one.tpot <= TPOT_S for one in requests)
    return {
        "ttft_p50_ms": percentile(ttft, 0.5) * 1e3, "ttft_p99_ms": percentile(ttft, 0.99) * 1e3,
        "tpot_p50_ms": percentile(tpot, 0.5) * 1e3, "tpot_p99_ms": percentile(tpot, 0.99) * 1e3,
        "goodput_per_s": kept / seconds, "kept": kept / len(requests),
        "tokens_per_s": sum(len(one.times) for one in requests) / seconds,
    }  # fmt: skip


def _ids(source: random.Random, core: EngineCore, count: int) -> list[int]:
    return [source.randrange(core.info().vocabulary) for _ in range(count)]


def poisson(scale: Scale, rows: Rows, model: str, rates: tuple[float, ...], seconds: float) -> None:
    """512 tokens in, 128 out, at three rates; then one shared prefix of 2,048 with 128 of each request's own."""
    ceilings = measured(scale.device)
    core = make_core(scale, make_decoder(scale, model))
    warm(core, scale)
    prompt, out = scale.count(512, 20), scale.count(128, 4)
    for rate in rates:
        source = random.Random(int(rate * 10))  # noqa: S311  (a workload)
        requests = _arrivals(source, core, rate, seconds, (prompt, out), [])
        took = serve(core, requests)
        figures = latencies(requests, took) | _fraction(core, ceilings, requests, took)
        rows.add(f"serving, {model}, {rate:g} requests/s of {prompt}/{out}", requests=len(requests), **figures)
    source = random.Random(5)  # noqa: S311  (a workload)
    shared = _ids(source, core, scale.count(2048, 64))
    hits = core.pool.hit
    requests = _arrivals(source, core, rates[1], seconds, (scale.count(128, 8), out), shared)
    took = serve(core, requests)
    blocks = len(shared) // 16 * (len(requests) - 1)
    rows.add(
        f"serving, {model}, shared prefix of {len(shared)}", requests=len(requests),
        prefix_blocks_reused=(core.pool.hit - hits) / max(blocks, 1), **latencies(requests, took),
        **_fraction(core, ceilings, requests, took),
    )  # fmt: skip


def _fraction(core: EngineCore, ceilings: Ceilings, requests: list[Request], took: float) -> dict[str, float]:
    """Of what would be possible if all had come at once and nothing were shared: low where the engine waits for work,
    above one where a prefix is reused."""
    sizes = [(len(one.tokens), one.out) for one in requests]
    return {"fraction": batch_seconds(core.decoder.spec, ceilings, sizes) / took}


def _arrivals(
    source: random.Random, core: EngineCore, rate: float, seconds: float, sizes: tuple[int, int], shared: list[int]
) -> list[Request]:
    requests: list[Request] = []
    due = 0.0
    while due < seconds:
        requests.append(Request(shared + _ids(source, core, sizes[0]), sizes[1], due))
        due += source.expovariate(rate)
    return requests


def long_prompts(scale: Scale, rows: Rows, model: str) -> None:
    """8k prompts into 16 decoders: their largest gap while the prompt is read, over the median before it came."""
    ceilings = measured(scale.device)
    for chunk in (512, 2048):
        core = make_core(scale, make_decoder(scale, model), chunk=chunk)
        warm(core, scale)
        source = random.Random(2)  # noqa: S311  (a workload)
        decoders = [Request(_ids(source, core, 64), scale.count(600, 40), 0.0) for _ in range(scale.count(16, 4))]
        late = Request(_ids(source, core, scale.count(8192, 300)), 4, scale.count(1000, 20) / 1000)
        serve(core, [*decoders, late])
        before: list[float] = []
        during: list[float] = []
        for one in decoders:
            for left, right in zip(one.times, one.times[1:], strict=False):
                (before if right < late.due else during if left < late.times[0] else []).append(right - left)
        median = statistics.median(before) if before else None
        rows.add(
            f"8k prompt into {len(decoders)} decoders, {model}, chunk {chunk}", ttft_ms=late.ttft * 1e3,
            gap_before_ms=median and median * 1e3, largest_gap_ms=max(during, default=0.0) * 1e3,
            ratio=max(during, default=0.0) / median if median else None, wanted_ratio_below=3,
            fraction=prefill_seconds(core.decoder.spec, ceilings, len(late.tokens)) / late.ttft,
        )  # fmt: skip
        del core


def first_token(scale: Scale, rows: Rows, model: str) -> None:
    """TTFT of a 1k prompt on an idle engine, beside what its arithmetic alone takes."""
    ceilings = measured(scale.device)
    decoder = make_decoder(scale, model)
    core = make_core(scale, decoder)
    warm(core, scale)
    prompt = scale.count(1024, 50)
    times: list[float] = []
    for seed in range(scale.count(12, 3)):
        tokens = _ids(random.Random(100 + seed), core, prompt)  # noqa: S311  (a workload)
        core.submit(seed, submit(tokens, SamplingParams(max_tokens=1)))
        began = time.perf_counter()
        drain(core)
        times.append(time.perf_counter() - began)
    floor = prefill_seconds(decoder.spec, ceilings, prompt)
    rows.add(
        f"TTFT, idle, {prompt} tokens, {model}", ttft_ms=statistics.median(times[2:]) * 1e3, wanted_ms_below=10,
        roofline_ms=floor * 1e3, fraction=floor / statistics.median(times[2:]),
    )  # fmt: skip
