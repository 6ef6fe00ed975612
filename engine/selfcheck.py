"""Does this processor compute a row alike in every company? Asked once at start: no specification promises it.

Knows: one decoder. Does not know: requests, schedulers.
"""

import torch

from engine.api import SamplingParams
from engine.attention import KVCache, pack
from engine.blocks import BLOCK
from engine.models.decoder import Decoder
from engine.scheduler import Work
from engine.sequence import Sequence

_COMPANY = (1, 4, 8, 16)
_PROMPT = 2 * BLOCK + 3


def reproducible(decoder: Decoder, kv_dtype: str = "float32") -> bool:
    """Whether a prompt's logits are the same to the bit: alone, in batches of several sizes, and in two parts.

    And those of a token that follows, alone and beside others' tokens.
    """
    spec = decoder.spec
    cache = KVCache(spec.layers, 3 + max(_COMPANY), spec.kv_heads, spec.head, kv_dtype)
    me = _one(0, [at * 7 % spec.vocabulary for at in range(_PROMPT)], [1, 2, 3])
    others = [_one(at, [(at * 5 + n) % spec.vocabulary for n in range(3)], [3 + at]) for at in range(1, 17)]
    alone = decoder.forward(pack([Work(me, _PROMPT)], decoder.multiple), cache)[0].clone()
    for size in _COMPANY:
        company = [Work(other, 3) for other in others[:size]]
        if not torch.equal(alone, decoder.forward(pack([Work(me, _PROMPT), *company], decoder.multiple), cache)[0]):
            return False
    me.computed = BLOCK  # its first block is in the cache
    if not torch.equal(alone, decoder.forward(pack([Work(me, _PROMPT - BLOCK)], decoder.multiple), cache)[0]):
        return False
    for one in (me, *others):
        one.computed = len(one.tokens)
        one.tokens.append(1)
    alone = decoder.forward(pack([Work(me, 1)], decoder.multiple), cache)[0].clone()
    for size in _COMPANY:
        company = [Work(one, 1) for one in (*others[:size], me)]
        if not torch.equal(alone, decoder.forward(pack(company, decoder.multiple), cache)[size]):
            return False
    return True


def _one(at: int, tokens: list[int], blocks: list[int]) -> Sequence:
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
        blocks=blocks,
    )
