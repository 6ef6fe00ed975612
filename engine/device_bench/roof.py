"""How fast the hardware would allow: bytes that must be read, operations that must be done.

Knows: a model's sizes, two ceilings that are measured first. Does not know: engines.

A decode step reads every weight and every kept key and value once; a prompt's rows cost two operations per weight. The
larger of the two times is the floor, and a row's fraction of it is what is reported. The copy that measures the
bandwidth counts bytes read and written; a stream that only reads may be a little faster, so fractions err downwards.
"""

import statistics
import time
from collections.abc import Callable
from typing import cast

import torch
from msgspec import Struct

from engine.cuda.graphs import CudaRecorder
from engine.models.spec import Spec

_ASSUMED = (4.3e12, 790e12)  # an H200's, as measured once; used where nothing is measured


class Ceilings(Struct, frozen=True):
    """`bandwidth` bytes/s, `arithmetic` bfloat16 operations/s."""

    bandwidth: float = _ASSUMED[0]
    arithmetic: float = _ASSUMED[1]


def measured(device: str, size: int = 8192) -> Ceilings:
    """A large copy and a large matrix product, the medians of several. On a processor: what is assumed of an H200."""
    if device != "cuda":
        return Ceilings()
    source = torch.randn(2**31 // 2, device=device, dtype=torch.bfloat16)
    target = torch.empty_like(source)
    copy_ms = median_ms(lambda: target.copy_(source))
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    product_ms = median_ms(lambda: a @ b)
    return Ceilings(2 * source.nbytes / copy_ms * 1e3, 2 * size**3 / product_ms * 1e3)


def median_ms(call: Callable[[], object], device: str = "cuda", rep: int = 100) -> float:
    """Milliseconds of `call`; it is repeated for about `rep` of them on a GPU, three times on a processor."""
    if device != "cuda":
        return statistics.median(_wall_ms(call) for _ in range(3))
    from triton.testing import do_bench

    return cast("float", do_bench(call, return_mode="median", rep=rep, warmup=max(5, rep // 4)))


def _wall_ms(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


def recorded(call: Callable[[], object], device: str) -> Callable[[], object]:
    """Without the time that launching takes: as a CUDA graph, where there are such."""
    if device != "cuda":
        return call
    return CudaRecorder()(call)


def weight_count(spec: Spec) -> tuple[int, int]:
    """Weights of the layers' matrices, and of the head."""
    attention = spec.hidden * spec.head * (2 * spec.heads + 2 * spec.kv_heads)
    return spec.layers * (attention + 3 * spec.hidden * spec.feed_forward), spec.hidden * spec.vocabulary


def kv_bytes(spec: Spec, each: float = 2.0) -> float:
    """Bytes of keys and values per token; `each`: bytes per number."""
    return 2 * spec.layers * spec.kv_heads * spec.head * each


def decode_seconds(spec: Spec, ceilings: Ceilings, contexts: list[int], weight: float = 2.0, kv: float = 2.0) -> float:
    """The floor of one decode step over sequences of these lengths. `weight`: bytes per weight of the layers."""
    layers, head = weight_count(spec)
    read = layers * weight + head * 2 + kv_bytes(spec, kv) * sum(contexts)
    return max(read / ceilings.bandwidth, 2 * (layers + head) * len(contexts) / ceilings.arithmetic)


def prefill_seconds(spec: Spec, ceilings: Ceilings, tokens: int) -> float:
    """The floor of computing a prompt's rows, attention left out (it is small below some thousand tokens)."""
    layers, _ = weight_count(spec)
    return 2 * layers * tokens / ceilings.arithmetic


def batch_seconds(
    spec: Spec, ceilings: Ceilings, sizes: list[tuple[int, int]], weight: float = 2.0, kv: float = 2.0
) -> float:
    """The floor of a closed batch of (prompt, completion) lengths that starts at once: every step as full as can be."""
    layers, head = weight_count(spec)
    steps = max(completion for _, completion in sizes)
    seen = sum(sum(range(prompt + 1, prompt + completion + 1)) for prompt, completion in sizes)
    read = steps * (layers * weight + head * 2) + kv_bytes(spec, kv) * seen
    return read / ceilings.bandwidth + prefill_seconds(spec, ceilings, sum(prompt for prompt, _ in sizes))
