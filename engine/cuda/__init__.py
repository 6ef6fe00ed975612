"""A loaded model on a GPU: how much cache fits, and the runner that computes its steps.

Knows: which parts make a runner. Does not know: requests, sockets. Imports Triton only when a model is on a GPU; on a
processor the same runner computes with plain torch, which is how it is tested.
"""

import torch
from msgspec import Struct
from torch import Tensor

from engine.api import SamplingParams
from engine.attention import KVCache
from engine.blocks import BLOCK, blocks_for
from engine.cuda.forward import Forward
from engine.cuda.graphs import CudaRecorder, Recorder, unrecorded
from engine.cuda.memory import blocks_within, free_bytes, peak_of
from engine.cuda.runner import SHORT, CudaRunner
from engine.cuda.table import BlockTable
from engine.kernels import Kernels, Parts
from engine.models.decoder import Decoder
from engine.sampler import Row
from engine.scheduler import Work
from engine.sequence import Sequence

_AT_START = (1, 2, 4, 8)  # sizes recorded before the first request
_PARTS = 16_384  # partial results set aside: 64 sequences of 256 ranges each; more of them take turns, unrecorded


class CudaOptions(Struct, frozen=True, kw_only=True):
    """`fraction` of the memory left becomes cache; `blocks` overrides it. `deterministic`: same tokens in any batch.

    `step_tokens`, `sequences`: the largest step. `graphs`: record decode steps (never on a processor).
    """

    sequences: int = 256
    step_tokens: int = 8192
    fraction: float = 0.9
    blocks: int | None = None
    kv_dtype: str = "bfloat16"
    deterministic: bool = False
    graphs: bool = True


def kernels_for(device: torch.device) -> Kernels:
    """Triton's on a GPU, plain torch elsewhere."""
    if device.type == "cuda":
        from engine.kernels import fast

        return fast
    from engine.kernels import plain

    return plain


def build(decoder: Decoder, options: CudaOptions, kernels: Kernels | None = None) -> CudaRunner:
    """A runner whose cache fills what is free. Raises EngineFailed when nothing fits."""
    device = decoder.norm.device
    kernels = kernels or kernels_for(device)
    blocks = options.blocks
    if blocks is None:
        blocks = _measured_blocks(decoder, options, kernels)
    on_gpu = device.type == "cuda"
    recorder: Recorder = CudaRecorder() if on_gpu and options.graphs else unrecorded
    runner = assembled(decoder, options, kernels, blocks, recorder)
    if on_gpu:
        runner.prepare(_AT_START if options.graphs else ())
    return runner


def assembled(decoder: Decoder, options: CudaOptions, kernels: Kernels, blocks: int, recorder: Recorder) -> CudaRunner:
    """A runner with a cache of so many blocks. Nothing is recorded or measured yet."""
    spec, device = decoder.spec, decoder.norm.device
    cache = KVCache(spec.layers, blocks, spec.kv_heads, spec.head, options.kv_dtype, str(device))
    table = BlockTable(options.sequences, blocks_for(spec.context), device)
    ranges = -(-spec.context // SHORT)  # of the longest row, cut as short as it ever is: a row's ranges stay together
    parts = _room(max(ranges, min(_PARTS, options.sequences * ranges)), spec.heads, spec.head, device)
    forward = Forward(decoder, cache, kernels, table.blocks, parts, deterministic=options.deterministic)
    return CudaRunner(forward, cache, table, recorder, sequences=options.sequences)


def _room(count: int, heads: int, size: int, device: torch.device) -> Parts:
    def room(width: int) -> Tensor:
        return torch.empty(count, heads, width, dtype=torch.float32, device=device)

    return Parts(room(size), room(2))


def _measured_blocks(decoder: Decoder, options: CudaOptions, kernels: Kernels) -> int:
    """Run the largest step over a small cache: a prompt as long as a step takes, and a token for every sequence."""
    spec = decoder.spec
    length = min(options.step_tokens, spec.context)
    small = assembled(decoder, options, kernels, blocks_for(length), unrecorded)
    plan, rows = largest_step(length, options.sequences, spec.vocabulary)
    peak = peak_of(lambda: small.launch(plan, rows).finish())
    block_bytes = BLOCK * KVCache.token_bytes(spec.layers, spec.kv_heads, spec.head, options.kv_dtype)
    return blocks_within(free_bytes(), peak, options.fraction, block_bytes)


def largest_step(length: int, sequences: int, vocabulary: int) -> tuple[list[Work], list[Row]]:
    """`sequences` prompts that fill a step of `length` rows together, each of which wants logits."""
    each = max(1, length // sequences)
    plan: list[Work] = []
    for at in range(min(sequences, length)):
        tokens = [n % vocabulary for n in range(each)]
        first = at * each // BLOCK
        blocks = [1 + (first + n) % blocks_for(length) for n in range(blocks_for(each))]
        plan.append(Work(_sequence(at, tokens, blocks), each))
    return plan, [Row(work.sequence.sampling, 0, each) for work in plan]


def _sequence(key: int, tokens: list[int], blocks: list[int]) -> Sequence:
    return Sequence(
        key=("measure", key),
        tokens=tokens,
        prompt=len(tokens),
        sampling=SamplingParams(max_tokens=1, temperature=1.0, top_p=0.9),  # the general sampler takes the most
        seed=0,
        eos=frozenset(),
        salt="",
        priority=0,
        arrival=key,
        submitted=0.0,
        blocks=blocks,
    )
