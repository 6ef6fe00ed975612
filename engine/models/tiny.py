"""Small random models made in memory: for tests, and for a gateway that must start with no files at all.

Knows: configurations and tensors under Hugging Face names, from a seed. Does not know: files, training. The output is
noise and is labelled so.
"""

import torch
from torch import Tensor

from engine.models.layout import HEAD, shapes
from engine.models.numbers import Config
from engine.models.spec import Spec
from engine.tokenizer import BYTE_VOCABULARY, END_OF_TURN

_WINDOW = 96
_ORIGINAL = 1024
_LOCAL_AND_GLOBAL: Config = {
    "head_dim": 32,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 24,
    "sliding_window": _WINDOW,
    "layer_types": ["sliding_attention", "full_attention"],
}
_OWN: dict[str, Config] = {
    "llama": {},
    "mistral": {"sliding_window": _WINDOW},
    "qwen2": {},
    "qwen3": {},
    "smollm3": {"no_rope_layers": [1, 0]},
    "gemma2": _LOCAL_AND_GLOBAL | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 30.0},
    "gemma3": _LOCAL_AND_GLOBAL | {"model_type": "gemma3_text", "rope_theta": 1e6, "rope_local_base_freq": 1e4},
    "phi3": {
        "original_max_position_embeddings": _ORIGINAL,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0 + at for at in range(8)]},
    },
}
_ARCHITECTURES = {"smollm3": "SmolLM3"}


def config(family: str) -> Config:
    """A `config.json` of this family: 2 layers, about 120 thousand parameters, a window of 2,048 tokens."""
    base: Config = {
        "model_type": family,
        "architectures": [_ARCHITECTURES.get(family, family.capitalize()) + "ForCausalLM"],
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
    return base | _OWN[family]


def tensors(spec: Spec, seed: int) -> dict[str, Tensor]:
    """All weights of `spec`, normally distributed. Norms and biases are random too, so that each of them matters."""
    generator = torch.Generator().manual_seed(seed)
    made: dict[str, Tensor] = {}
    for name, shape in shapes(spec).items():
        drawn = torch.randn(*shape, generator=generator)
        if name.endswith(".bias"):
            made[name] = drawn * 0.1
        elif len(shape) == 1:
            made[name] = drawn * 0.1 + (1.0 - spec.norm_offset)
        elif "embed_tokens" in name or name == f"{HEAD}.weight":
            made[name] = drawn * 0.5
        else:
            made[name] = drawn * (1.5 * shape[1] ** -0.5)
    return made
