"""How many blocks of keys and values fit beside a model on a GPU.

Knows: bytes. Does not know: models, kernels.

The largest step is run once and its peak is subtracted from what is free: a share "of the card" would forget what other
processes, the weights and that step take, and end in an out-of-memory error at the first long prompt.
"""

from collections.abc import Callable

import torch

from engine.api import EngineFailed


def blocks_within(free: int, peak: int, fraction: float, block_bytes: int) -> int:
    """`fraction` of what is left of `free` bytes beside a step that takes `peak`. Raises EngineFailed below one."""
    blocks = int(fraction * (free - peak)) // block_bytes
    if blocks < 1:
        message = f"{free / 2**30:.2f} GiB are free, the largest step takes {peak / 2**30:.2f}: no room for a cache."
        raise EngineFailed(message)
    return blocks


def peak_of(step: Callable[[], object]) -> int:
    """Bytes that a step takes beyond what is held now, on the current GPU."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    torch.cuda.empty_cache()
    return peak


def free_bytes() -> int:
    """What new allocations could take on the current GPU."""
    free, _ = torch.cuda.mem_get_info()
    return free
