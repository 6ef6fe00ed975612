"""A batch-1 decoder in the manner of gpt-fast (github.com/meta-pytorch/gpt-fast), made for torch.compile.

Knows: dense weights of Llama and Qwen3 shapes. Does not know: paging, batching, requests. It exists to be the bar: what
the compiler alone makes of the same weights when nothing else is asked of it.
"""

import torch
from torch import Tensor
from torch.nn import functional

from engine.models.decoder import Decoder, Layer
from engine.models.linear import Dense


class WholeModel:
    """Static keys and values [layers, 2, 1, G, length, D]; `step` takes a token [1] and its position [1]."""

    def __init__(self, decoder: Decoder, length: int) -> None:
        spec = decoder.spec
        decoder.rotary.reserve(length)
        rope = spec.ropes[0]
        assert rope is not None
        device = decoder.norm.device
        self._cos, self._sin = (table[:length].to(torch.bfloat16) for table in decoder.rotary.table(rope))
        self._spec = spec
        self._decoder = decoder
        shape = (spec.layers, 2, 1, spec.kv_heads, length, spec.head)
        self._cache = torch.zeros(shape, dtype=torch.bfloat16, device=device)
        self._places = torch.arange(length, device=device)
        self._settle()

    def tensors(self) -> list[Tensor]:
        """All that stays where it is from step to step."""
        decoder = self._decoder
        linears = [decoder.embed, decoder.head]
        norms = [decoder.norm]
        for layer in decoder.layers:
            linears += [layer.qkv, layer.out, layer.gate_up, layer.down]
            norms += [layer.norm_attention, layer.norm_mlp]
            norms += [] if layer.qk_norm is None else [layer.qk_norm]
        return [*(_weight(linear) for linear in linears), *norms, self._cos, self._sin, self._cache, self._places]

    def _settle(self) -> None:
        """Tell the compiler, as a module's buffers would: else its graphs copy every weight at each step, and a cache
        that is written to keeps it from recording any."""
        from torch._dynamo import mark_static_address  # takes seconds, and few who import this make a model

        for tensor in self.tensors():
            mark_static_address(tensor)

    def step(self, token: Tensor, position: Tensor) -> Tensor:
        """The likeliest next token [1]."""
        x = functional.embedding(token, _weight(self._decoder.embed))
        seen = (self._places <= position)[None, None, None]
        for index, layer in enumerate(self._decoder.layers):
            attended = self._attend(layer, self._norm(x, layer.norm_attention), position, self._cache[index], seen)
            x = x + functional.linear(attended, _weight(layer.out))
            gate, up = functional.linear(self._norm(x, layer.norm_mlp), _weight(layer.gate_up)).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * up, _weight(layer.down))
        return functional.linear(self._norm(x, self._decoder.norm), _weight(self._decoder.head)).argmax(-1)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x.float(), (x.shape[-1],), weight.float(), self._spec.epsilon).to(x.dtype)

    def _attend(self, layer: Layer, x: Tensor, position: Tensor, cache: Tensor, seen: Tensor) -> Tensor:
        spec = self._spec
        both = functional.linear(x, _weight(layer.qkv)).view(1, -1, spec.head)
        mixed, value = both[:, : -spec.kv_heads], both[:, -spec.kv_heads :]
        if layer.qk_norm is not None:
            mixed = self._norm(mixed, torch.ones_like(mixed[0, 0])) * layer.qk_norm.to(mixed.dtype)
        mixed = mixed * self._cos[position, None] + mixed.roll(spec.head // 2, -1) * self._sin[position, None]
        query, key = mixed[:, : spec.heads], mixed[:, spec.heads :]
        keys = cache[0].index_copy_(2, position, key.transpose(0, 1)[None])
        values = cache[1].index_copy_(2, position, value.transpose(0, 1)[None])
        told = functional.scaled_dot_product_attention(
            query.transpose(0, 1)[None], keys, values, attn_mask=seen, enable_gqa=spec.heads != spec.kv_heads
        )
        return told.view(1, -1)


def _weight(linear: object) -> Tensor:
    assert isinstance(linear, Dense)
    return linear.weight
