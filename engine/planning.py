"""`python -m engine plan`: what a model will need and could do here, without loading it.

Knows: a checkpoint's configuration, memory, measured ceilings. Does not know: weights, requests.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from msgspec.structs import replace

from engine.attention import KVCache
from engine.launch import can_guess, device_of, dtype_of, kv_dtype_of, memory_of
from engine.locate import locate, locate_draft
from engine.models.linear import DenseFactory
from engine.models.loader import read_config
from engine.models.spec import read_spec
from engine.options import Options
from engine.parallel import divisible
from engine.quant.factory import quantizing
from engine.roofline import Machine, shape

_BYTES = {"float32": 4.0, "bfloat16": 2.0}
_READ_BYTES = 2**28  # far beyond any cache
_SIDE = 1024
_CONTEXTS = (128, 1024)


def plan(model: str, options: Options, *, monotonic: Callable[[], float] = time.monotonic) -> dict[str, Any]:
    """Bytes, capacity and the most tokens/s that memory and arithmetic allow here. Raises EngineError."""
    spec = read_spec(read_config(locate(model)))
    device = device_of(options)
    divisible(spec, options.tensor_parallel)
    if (draft := locate_draft(options.speculate)) is not None:
        can_guess(options, read_spec(read_config(draft)), spec)
    dtype = dtype_of(options, spec)
    quantizing(options.quant, DenseFactory(torch.float32, torch.device(device)))  # refuses what cannot be done here
    kv_dtype = kv_dtype_of(options)
    each = KVCache.token_bytes(spec.layers, spec.kv_heads, spec.head, kv_dtype)
    found = replace(shape(spec, _BYTES[dtype], quant=options.quant), kv=each)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    machine = measure(monotonic=monotonic)
    memory = memory_of(options)
    context = min(spec.context, options.context or spec.context)
    capacity = min(memory // found.kv, options.sequences * context)
    return {
        "model": model,
        "architecture": spec.family,
        "parameters": spec.parameters,
        "dtype": dtype,
        "quant": options.quant,
        "kv_dtype": kv_dtype,
        "weights_bytes": found.stored,
        "kv_bytes_per_token": found.kv,
        "context": context,
        "kv_capacity_tokens": capacity,
        "kv_bytes": capacity * found.kv,
        "sequences_at_full_context": capacity // context,
        "read_gb_per_s": round(machine.read / 1e9, 2),
        "gflops": round(machine.flops / 1e9, 1),
        "ceiling_prefill_tokens_per_s": round(found.prefill(machine), 1),
        **{
            f"ceiling_decode_tokens_per_s_batch_{batch}_context_{length}": round(
                found.decode(machine, batch, length), 1
            )
            for batch in (1, 16)
            for length in _CONTEXTS
            if length <= context
        },
    }


def measure(*, monotonic: Callable[[], float], repeats: int = 5) -> Machine:
    """The best of `repeats`: what the machine can do is what it did once. With as many threads as torch may use."""
    numbers = torch.ones(_READ_BYTES // 4)
    square = torch.ones(_SIDE, _SIDE)
    read = _best(numbers.sum, repeats, monotonic)
    product = _best(lambda: square @ square, repeats, monotonic)
    return Machine(read=_READ_BYTES / read, flops=2 * _SIDE**3 / product)


def _best(work: Callable[[], object], repeats: int, monotonic: Callable[[], float]) -> float:
    """Seconds of the quickest run after one that warms up."""
    work()
    seconds: list[float] = []
    for _ in range(repeats):
        began = monotonic()
        work()
        seconds.append(monotonic() - began)
    return min(seconds)
