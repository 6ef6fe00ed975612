"""How fast the engine is: alone, in closed batches, quantized, with guesses; each row beside its roofline.

Knows: workloads that need no clock of their own. Does not know: open arrivals (`serving`), peers.
"""

import random
import statistics
import time
from typing import Any

import torch

from engine.api import SamplingParams
from engine.core import EngineCore
from engine.device_bench.models import Scale, forget, make_core, make_decoder
from engine.device_bench.right import submit
from engine.device_bench.roof import batch_seconds, decode_seconds, measured
from engine.device_bench.rows import Rows
from engine.speculation import NGram, Speculation

GATES = {
    ("batch 1", "Qwen3-0.6B"): (1000, 1500),
    ("batch 1", "Qwen3-8B"): (190, 215),
    ("nano mix", "Qwen3-0.6B"): (20_000, 25_000),
    ("nano mix", "Qwen3-8B"): (8_500, 10_000),
}  # tokens per second: wanted, hoped for
_BYTES = {"none": 2.0, "int8": 1.0, "fp8": 1.0, "int4": 0.5}  # per weight of the layers


def gates(workload: str, model: str) -> dict[str, int]:
    wanted, hoped = GATES.get((workload, model), (None, None))
    return {} if wanted is None or hoped is None else {"wanted": wanted, "hoped_for": hoped}


def drain(core: EngineCore) -> int:
    """Step until nothing is left; tokens that came out."""
    tokens = 0
    while core.busy:
        tokens += sum(len(ended.output.tokens) for ended in core.step())
    return tokens


def warm(core: EngineCore, scale: Scale) -> None:
    """Kernels are compiled, every size of decode step is recorded, prompts of several lengths were computed."""
    source = random.Random(9)  # noqa: S311  (a workload)
    vocabulary = core.info().vocabulary
    for at in range(scale.sequences):  # each ends one step after the one before
        tokens = [source.randrange(vocabulary) for _ in range(8 + at % 7)]
        core.submit(("warm", at), submit(tokens, SamplingParams(max_tokens=2 + at, temperature=0.6)))
    drain(core)
    tokens = [source.randrange(vocabulary) for _ in range(scale.count(2000, 100))]
    core.submit("long", submit(tokens, SamplingParams(max_tokens=2, temperature=0.6)))
    drain(core)


def batch_one(scale: Scale, rows: Rows, model: str, quant: str = "none", **options: Any) -> None:
    """128 tokens in, 1,024 out, greedy, one request: decode tokens/s from the first token to the last."""
    ceilings = measured(scale.device)
    decoder = make_decoder(scale, model, quant=quant)
    core = make_core(scale, decoder, **options)
    prompt, out = scale.count(128, 16), scale.count(1024, 12)
    rates = [_alone(core, prompt, out, seed) for seed in range(scale.count(4, 2))][1:]
    contexts = [prompt + out // 2]
    floor = decode_seconds(decoder.spec, ceilings, contexts, weight=_BYTES[quant])
    rate = statistics.median(rates)
    marks = gates("batch 1", model) if quant == "none" and not options else {}
    rows.add(
        f"batch 1, {model}, weights {quant}{_named(options)}",
        tokens_per_s=rate, least=min(rates), most=max(rates), roofline=1 / floor, fraction=rate * floor, **marks,
        **({"notes": decoder.notes} if decoder.notes else {}),
    )  # fmt: skip


def _named(options: dict[str, Any]) -> str:
    return "".join(f", {name} {value}" for name, value in options.items())


def _alone(core: EngineCore, prompt: int, out: int, seed: int) -> float:
    source = random.Random(seed)  # noqa: S311  (a workload)
    tokens = [source.randrange(core.info().vocabulary) for _ in range(prompt)]
    core.submit(("alone", seed), submit(tokens, SamplingParams(max_tokens=out, temperature=0.0)))
    came: list[tuple[float, int]] = []
    while core.busy:
        count = sum(len(ended.output.tokens) for ended in core.step())
        came.append((time.perf_counter(), count))
    first = next(at for at, (_, count) in enumerate(came) if count)
    seconds = came[-1][0] - came[first][0]
    return sum(count for _, count in came[first + 1 :]) / seconds


def nano_sizes(scale: Scale) -> tuple[list[list[int]], list[int]]:
    """nano-vllm's benchmark with seed 0: 256 prompts of 100 to 1,024 random ids, as many tokens out."""
    source = random.Random(0)  # noqa: S311  (a workload)
    count, low, high = scale.count(256, 8), scale.count(100, 5), scale.count(1024, 12)
    top = min(10_000, scale.config("Qwen3-0.6B")["vocab_size"] - 1)
    prompts = [[source.randint(0, top) for _ in range(source.randint(low, high))] for _ in range(count)]
    return prompts, [source.randint(low, high) for _ in range(count)]


def nano_mix(scale: Scale, rows: Rows, model: str, **options: Any) -> None:
    """All at once, temperature 0.6, nothing ends early: tokens out per second, as that benchmark counts."""
    ceilings = measured(scale.device)
    decoder = make_decoder(scale, model, quant=options.pop("quant", "none"))
    core = make_core(scale, decoder, chunk=scale.step_tokens, **options)
    prompts, outs = nano_sizes(scale)
    warm(core, scale)
    core.pool.forget(range(1, core.pool.count + 1))
    seconds, tokens = _closed(core, prompts, outs)
    sizes = [(len(prompt), out) for prompt, out in zip(prompts, outs, strict=True)]
    kv = 1.0 if options.get("kv_dtype") in ("fp8", "int8") else 2.0
    floor = batch_seconds(decoder.spec, ceilings, sizes, kv=kv)
    rows.add(
        f"nano mix, {model}{_named(options)}",
        tokens_per_s=tokens / seconds, seconds=seconds, tokens=tokens, roofline=tokens / floor,
        fraction=floor / seconds, **(gates("nano mix", model) if not options else {}),
    )  # fmt: skip


def _closed(core: EngineCore, prompts: list[list[int]], outs: list[int]) -> tuple[float, int]:
    for at, (tokens, out) in enumerate(zip(prompts, outs, strict=True)):
        core.submit(("closed", at), submit(tokens, SamplingParams(max_tokens=out, temperature=0.6), seed=at))
    began = time.perf_counter()
    tokens = drain(core)
    return time.perf_counter() - began, tokens


def guesses(scale: Scale, rows: Rows, model: str) -> None:
    """N-gram speculation where it helps (a text that repeats itself) and where it cannot (random ids)."""
    ceilings, decoder = measured(scale.device), make_decoder(scale, model)
    for name, repeated in (("a prompt that repeats", True), ("random ids", False)):
        for speculating in (False, True):
            speculation = Speculation(NGram(always=True), 4) if speculating else None
            forget()
            core = make_core(scale, decoder, speculation=speculation, blocks=scale.count(1024, 64))
            source = random.Random(1)  # noqa: S311  (a workload)
            phrase = [source.randrange(core.info().vocabulary) for _ in range(24)]
            tokens = phrase * scale.count(20, 2) if repeated else phrase
            core.submit("warm", submit(tokens, SamplingParams(max_tokens=8, temperature=0.0)))
            drain(core)
            out = scale.count(256, 8)
            core.submit("one", submit(tokens, SamplingParams(max_tokens=out, temperature=0.0)))
            began = time.perf_counter()
            drain(core)
            rate = out / (time.perf_counter() - began)
            acceptance = None if speculation is None else speculation.accepted / max(speculation.drafted, 1)
            floor = decode_seconds(decoder.spec, ceilings, [len(tokens) + out // 2])
            rows.add(
                f"guesses, {name}, n-gram {speculating}",
                tokens_per_s=rate, acceptance=acceptance, fraction=rate * floor,
            )  # fmt: skip
            del core


def profile(scale: Scale, rows: Rows, model: str) -> None:
    """Where a step's time goes: kernels by total time, at batch 1 and in a full batch; and what the host adds."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    decoder = make_decoder(scale, model)
    core = make_core(scale, decoder, graphs=False, blocks=scale.count(4096, 128))
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if scale.device == "cuda" else [])]
    for size in (1, scale.count(64, 4)):
        for at in range(size):
            source = random.Random(at)  # noqa: S311  (a workload)
            tokens = [source.randrange(core.info().vocabulary) for _ in range(scale.count(500, 10))]
            core.submit(("profile", at), submit(tokens, SamplingParams(max_tokens=scale.count(60, 4), temperature=0.0)))
        for _ in range(scale.count(40, 1)):
            core.step()
        with profiled(activities=activities) as seen:
            for _ in range(5):
                core.step()
        drain(core)
        events = sorted(seen.key_averages(), key=_device_us, reverse=True)[:12]
        rows.add(
            f"profile, {model}, {size} decoding, 5 steps without graphs",
            top={event.key[:80]: [round(_device_us(event) / 5), event.count // 5] for event in events},
        )


def _device_us(event: Any) -> float:
    return float(getattr(event, "self_device_time_total", 0.0) or getattr(event, "self_cpu_time_total", 0.0))


def host_share(scale: Scale, rows: Rows, model: str) -> None:
    """A decode step's time split: waiting for the device, and everything the host does around it."""
    ceilings, decoder = measured(scale.device), make_decoder(scale, model)
    core = make_core(scale, decoder)
    for size in (1, scale.count(256, 4)):
        for at in range(size):
            core.submit(("host", at), submit([at + 1] * 32, SamplingParams(max_tokens=scale.count(80, 5))))
        for _ in range(scale.count(20, 1)):
            core.step()
        waits: list[float] = []
        began = time.perf_counter()
        steps = scale.count(40, 3)
        for _ in range(steps):
            flight = core.launch()
            launched = time.perf_counter()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            waits.append(time.perf_counter() - launched)
            core.collect(flight)
        step = (time.perf_counter() - began) / steps
        floor = decode_seconds(decoder.spec, ceilings, [72] * size)
        rows.add(
            f"step, {model}, {size} decoding", step_ms=step * 1e3, device_wait_ms=statistics.mean(waits) * 1e3,
            host_ms=(step - statistics.mean(waits)) * 1e3, roofline_ms=floor * 1e3, fraction=floor / step,
        )  # fmt: skip
        drain(core)
