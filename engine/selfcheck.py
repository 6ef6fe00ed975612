"""Does this processor compute a row alike in every batch? Asked once at start, because no specification promises it.

Knows: one decoder. Does not know: requests, schedulers.
"""

import torch

from engine.api import SamplingParams
from engine.attention import KVCache, pack
from engine.blocks import BLOCK
from engine.models.decoder import Decoder
from engine.scheduler import Work
from engine.sequence import Sequence

_SIZES = (2, 5, 9, 17)


def batch_invariant(decoder: Decoder) -> bool:
    """Whether the same row gives the same logits, to the bit, alone and in batches of several sizes."""
    spec = decoder.spec
    everyone = [_one(at, [(at * 7 + n) % spec.vocabulary for n in range(3)]) for at in range(max(_SIZES))]
    cache = KVCache(spec.layers, len(everyone), spec.kv_heads, spec.head)
    alone = decoder.forward(pack([Work(everyone[0], 3)]), cache)[0].clone()
    if not torch.isfinite(alone).all():
        return False
    sizes = (decoder.forward(pack([Work(one, 3) for one in everyone[:size]]), cache)[0] for size in _SIZES)
    return all(torch.equal(alone, row) for row in sizes)


def _one(at: int, tokens: list[int]) -> Sequence:
    assert len(tokens) <= BLOCK
    return Sequence(
        key=at,
        tokens=tokens,
        prompt=len(tokens),
        sampling=SamplingParams(max_tokens=1),
        seed=0,
        eos=frozenset(),
        salt="",
        priority=0,
        arrival=at,
        submitted=0.0,
        blocks=[at + 1],
    )
