"""Small random models made in memory: for tests, and for a gateway that must start with no files at all.

Knows: configurations and tensors under Hugging Face names, from a seed. Does not know: files, training. The output is
noise and is labelled so.
"""

import torch
from torch import Tensor

from engine.models.spec import Spec
from engine.tokenizer import BYTE_VOCABULARY, END_OF_TURN


def config(family: str) -> dict[str, object]:
    """A `config.json` of this family: 2 layers, about 120 thousand parameters, a window of 2,048 tokens."""
    return {
        "model_type": family,
        "architectures": [{"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}[family]],
        "vocab_size": BYTE_VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": END_OF_TURN,
        "dtype": "float32",
    }


def tensors(spec: Spec, seed: int) -> dict[str, Tensor]:
    """All weights of `spec`, normally distributed. Norms and biases are random too, so that each of them matters."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, scale: float, mean: float = 0.0) -> Tensor:
        return torch.randn(*shape, generator=generator) * scale + mean

    queries, keys = spec.heads * spec.head, spec.kv_heads * spec.head
    shapes = {
        "self_attn.q_proj": (queries, spec.hidden, spec.qkv_bias),
        "self_attn.k_proj": (keys, spec.hidden, spec.qkv_bias),
        "self_attn.v_proj": (keys, spec.hidden, spec.qkv_bias),
        "self_attn.o_proj": (spec.hidden, queries, spec.out_bias),
        "mlp.gate_proj": (spec.feed_forward, spec.hidden, spec.mlp_bias),
        "mlp.up_proj": (spec.feed_forward, spec.hidden, spec.mlp_bias),
        "mlp.down_proj": (spec.hidden, spec.feed_forward, spec.mlp_bias),
    }
    made = {
        "model.embed_tokens.weight": random(spec.vocabulary, spec.hidden, scale=0.5),
        "model.norm.weight": random(spec.hidden, scale=0.1, mean=1.0),
    }
    for layer in range(spec.layers):
        prefix = f"model.layers.{layer}."
        for name, (rows, columns, bias) in shapes.items():
            made[f"{prefix}{name}.weight"] = random(rows, columns, scale=1.5 * columns**-0.5)
            if bias:
                made[f"{prefix}{name}.bias"] = random(rows, scale=0.1)
        norms = {"input_layernorm": spec.hidden, "post_attention_layernorm": spec.hidden}
        if spec.qk_norm:
            norms |= {"self_attn.q_norm": spec.head, "self_attn.k_norm": spec.head}
        for name, size in norms.items():
            made[f"{prefix}{name}.weight"] = random(size, scale=0.1, mean=1.0)
    if not spec.tied:
        made["lm_head.weight"] = random(spec.vocabulary, spec.hidden, scale=0.5)
    return made
