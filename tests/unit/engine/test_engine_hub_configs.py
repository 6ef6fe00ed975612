"""The configurations of published models, as their authors wrote them: read, and as large as their cards say."""

import math

import pytest

from engine.models.layout import shapes
from engine.models.spec import Config, Spec, read_spec

LLAMA3: Config = {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
GEMMA3: Config = {
    "model_type": "gemma3_text",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": None,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "torch_dtype": "bfloat16",
    "vocab_size": 262144,
}
PHI3: Config = {
    "model_type": "phi3",
    "hidden_act": "silu",
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 32064,
}
# name -> (configuration, parameters of the card)
HUB: dict[str, tuple[Config, int]] = {
    "Llama-3.2-1B": (
        {
            "model_type": "llama",
            "attention_bias": False,
            "head_dim": 64,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "max_position_embeddings": 131072,
            "mlp_bias": False,
            "num_attention_heads": 32,
            "num_hidden_layers": 16,
            "num_key_value_heads": 8,
            "pretraining_tp": 1,
            "rms_norm_eps": 1e-05,
            "rope_scaling": LLAMA3,
            "rope_theta": 500000.0,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "vocab_size": 128256,
        },
        1_235_814_400,
    ),
    "Mistral-7B-v0.1": (
        {
            "model_type": "mistral",
            "hidden_act": "silu",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "max_position_embeddings": 32768,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05,
            "rope_theta": 10000.0,
            "sliding_window": 4096,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "vocab_size": 32000,
        },
        7_241_732_096,
    ),
    "Qwen2.5-0.5B": (
        {
            "model_type": "qwen2",
            "hidden_act": "silu",
            "hidden_size": 896,
            "intermediate_size": 4864,
            "max_position_embeddings": 32768,
            "max_window_layers": 24,
            "num_attention_heads": 14,
            "num_hidden_layers": 24,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-06,
            "rope_theta": 1000000.0,
            "sliding_window": 32768,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "use_mrope": False,
            "use_sliding_window": False,
            "vocab_size": 151936,
        },
        494_032_768,
    ),
    "Qwen3-0.6B": (
        {
            "model_type": "qwen3",
            "attention_bias": False,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "max_position_embeddings": 40960,
            "max_window_layers": 28,
            "num_attention_heads": 16,
            "num_hidden_layers": 28,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-06,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "sliding_window": None,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "use_sliding_window": False,
            "vocab_size": 151936,
        },
        596_049_920,
    ),
    "SmolLM2-135M": (
        {
            "model_type": "llama",
            "attention_bias": False,
            "hidden_act": "silu",
            "hidden_size": 576,
            "intermediate_size": 1536,
            "is_llama_config": True,
            "max_position_embeddings": 8192,
            "num_attention_heads": 9,
            "num_hidden_layers": 30,
            "num_key_value_heads": 3,
            "rms_norm_eps": 1e-05,
            "rope_interleaved": False,
            "rope_scaling": None,
            "rope_theta": 100000,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "vocab_size": 49152,
        },
        134_515_008,
    ),
    "SmolLM3-3B": (
        {
            "model_type": "smollm3",
            "attention_bias": False,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "layer_types": ["full_attention"] * 36,
            "max_position_embeddings": 65536,
            "max_window_layers": 28,
            "mlp_bias": False,
            "no_rope_layer_interval": 4,
            "no_rope_layers": [1, 1, 1, 0] * 9,
            "num_attention_heads": 16,
            "num_hidden_layers": 36,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-06,
            "rope_scaling": None,
            "rope_theta": 5000000.0,
            "sliding_window": None,
            "torch_dtype": "bfloat16",
            "use_sliding_window": False,
            "vocab_size": 128256,
        },
        3_075_098_624,
    ),
    "gemma-2-2b": (
        {
            "model_type": "gemma2",
            "attention_bias": False,
            "attn_logit_softcapping": 50.0,
            "cache_implementation": "hybrid",
            "final_logit_softcapping": 30.0,
            "head_dim": 256,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "max_position_embeddings": 8192,
            "num_attention_heads": 8,
            "num_hidden_layers": 26,
            "num_key_value_heads": 4,
            "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-06,
            "rope_theta": 10000.0,
            "sliding_window": 4096,
            "torch_dtype": "float32",
            "vocab_size": 256000,
        },
        2_614_341_888,
    ),
    "gemma-3-1b": (GEMMA3, 999_885_952),
    "Phi-3-mini-4k": (
        PHI3 | {"max_position_embeddings": 4096, "rope_scaling": None, "sliding_window": 2047},
        3_821_079_552,
    ),
    "Phi-3-mini-128k": (
        PHI3
        | {
            "max_position_embeddings": 131072,
            "rope_scaling": {"type": "longrope", "long_factor": [1.5] * 48, "short_factor": [1.05] * 48},
            "sliding_window": 262144,
        },
        3_821_079_552,
    ),
    "Phi-4-mini": (
        PHI3
        | {
            "max_position_embeddings": 131072,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "partial_rotary_factor": 0.75,
            "rope_scaling": {"type": "longrope", "long_factor": [1.5] * 48, "short_factor": [1.0] * 48},
            "sliding_window": 262144,
            "tie_word_embeddings": True,
            "vocab_size": 200064,
        },
        3_836_021_760,
    ),
}


def read(name: str) -> Spec:
    return read_spec(HUB[name][0])


@pytest.mark.parametrize("name", HUB)
def test_a_published_model_is_as_large_as_its_card_says(name: str) -> None:
    """The number of parameters hangs on every size and on which tensors there are: one wrong default shows."""
    spec = read(name)
    total = sum(math.prod(shape) for shape in shapes(spec).values())
    assert total == HUB[name][1]
    assert 0.99 < spec.parameters / total <= 1


def test_what_sets_published_models_apart() -> None:
    """Settings that no shape would betray."""
    assert read("Mistral-7B-v0.1").windows == (4096,) * 32
    assert read("Qwen2.5-0.5B").windows == (0,) * 24
    assert (read("Qwen2.5-0.5B").qkv_bias, read("Qwen3-0.6B").qkv_bias, read("Qwen3-0.6B").qk_norm) == (
        True,
        False,
        True,
    )
    assert [one is None for one in read("SmolLM3-3B").ropes] == [False, False, False, True] * 9
    gemma2, gemma3 = read("gemma-2-2b"), read("gemma-3-1b")
    assert gemma2.windows == (4096, 0) * 13
    assert (gemma2.attention_softcap, gemma2.logit_softcap, gemma2.scale, gemma2.embed_scale) == (
        50.0,
        30.0,
        1 / 16,
        48.0,
    )
    assert gemma3.windows == ((512,) * 5 + (0,)) * 4 + (512, 512)
    assert [one.theta for one in gemma3.ropes if one][:6] == [1e4] * 5 + [1e6]
    assert (gemma3.attention_softcap, gemma3.logit_softcap, gemma3.qk_norm, gemma3.tied) == (0.0, 0.0, True, True)
    llama = read("Llama-3.2-1B").ropes[0]
    assert llama is not None
    assert (llama.kind, llama.factor, llama.original, llama.theta) == ("llama3", 32.0, 8192, 5e5)
    assert read("Phi-3-mini-4k").windows == (2047,) * 32
    short, long = read("Phi-3-mini-4k").ropes[0], read("Phi-3-mini-128k").ropes[0]
    assert short is not None
    assert long is not None
    assert (short.kind, long.kind, long.original, long.rotary) == ("default", "longrope", 4096, 96)
    assert long.amplitude == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))
    mini = read("Phi-4-mini").ropes[0]
    assert mini is not None
    assert (mini.rotary, read("Phi-4-mini").head) == (96, 128)


def test_yarn_stretches_the_window() -> None:
    """Qwen's cards add it beside the old `max_position_embeddings`: three quarters of the window were refused."""
    qwen = HUB["Qwen2.5-0.5B"][0]
    yarn: Config = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert read_spec(qwen | {"rope_scaling": yarn}).context == 131_072
    assert read_spec(qwen | {"rope_scaling": yarn, "max_position_embeddings": 131_072}).context == 131_072
    assert read_spec(qwen | {"rope_scaling": {"type": "yarn", "factor": 4.0}}).context == 32_768
    assert read_spec(qwen | {"rope_scaling": {"type": "linear", "factor": 4.0}}).context == 32_768


def test_what_a_file_leaves_out_is_what_transformers_takes() -> None:
    """A window that is not named is not none: Mistral's is 4,096 then, as its first model's was."""
    mistral = {key: value for key, value in HUB["Mistral-7B-v0.1"][0].items() if key != "sliding_window"}
    assert set(read_spec(mistral).windows) == {4096}
    assert set(read_spec(mistral | {"sliding_window": None}).windows) == {0}
    del mistral["num_key_value_heads"]
    assert read_spec(mistral).kv_heads == 8
    qwen = {**HUB["Qwen2.5-0.5B"][0], "num_hidden_layers": 30, "use_sliding_window": True}
    del qwen["max_window_layers"]
    assert [bool(window) for window in read_spec(qwen).windows] == [False] * 28 + [True] * 2
