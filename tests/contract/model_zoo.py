"""Tiny random models of every family, made by transformers, and mixed batches to run them with."""

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from engine.api import SamplingParams
from engine.attention import KVCache, pack
from engine.blocks import blocks_for
from engine.models.decoder import Decoder
from engine.scheduler import Work
from engine.sequence import Sequence


class _Transformers:
    """The library, imported by who first uses it: every process that collects these tests would take a second to."""

    def __getattr__(self, name: str) -> Any:
        return getattr(pytest.importorskip("transformers"), name)


transformers: Any = _Transformers()

torch.set_num_threads(1)  # threads of a model this small only wait for each other

VOCABULARY = 320
BASE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
GEMMA = {"head_dim": 32, "sliding_window": 24, "query_pre_attn_scalar": 24}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + at / 10 for at in range(8)],
    "long_factor": [1.0 + at for at in range(8)],
}
GEMMA3_ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


def make_configs() -> dict[str, Callable[[], Any]]:
    """Name -> a configuration of transformers. Every setting that the decoder knows is on in one of them."""

    def of(kind: str, **changes: Any) -> Callable[[], Any]:
        """`kind` by its name: collecting the tests must not import what transformers needs for it."""
        return lambda: getattr(transformers, kind)(**(BASE | changes))

    return {
        "llama": of("LlamaConfig"),
        "llama-tied": of("LlamaConfig", tie_word_embeddings=True),
        "llama-3.1-rope": of("LlamaConfig", rope_parameters=LLAMA3),
        "llama-linear-rope": of("LlamaConfig", rope_parameters=LINEAR),
        "llama-biases": of("LlamaConfig", attention_bias=True, mlp_bias=True),
        "llama-one-kv-head": of("LlamaConfig", num_key_value_heads=1),
        "llama-no-groups": of("LlamaConfig", num_key_value_heads=4),
        "llama-pruned": of(
            "LlamaConfig", num_attention_heads=2, num_key_value_heads=1, head_dim=10, intermediate_size=50
        ),
        "mistral-window": of("MistralConfig", sliding_window=24),
        "mistral-head": of("MistralConfig", sliding_window=None, head_dim=32),
        "qwen2": of("Qwen2Config"),
        "qwen2-windows": of("Qwen2Config", use_sliding_window=True, sliding_window=24, max_window_layers=1),
        "qwen3": of("Qwen3Config", head_dim=32),
        "qwen3-tied": of("Qwen3Config", head_dim=16, tie_word_embeddings=True),
        "qwen3-yarn": of("Qwen3Config", head_dim=32, attention_bias=True, rope_parameters=YARN),
        "smollm3": of("SmolLM3Config", no_rope_layer_interval=2),
        "smollm3-windows": of("SmolLM3Config", no_rope_layers=[0, 1, 0], use_sliding_window=True, sliding_window=24),
        "gemma2": of("Gemma2Config", **GEMMA, attn_logit_softcapping=5.0, final_logit_softcapping=3.0),
        "gemma2-uncapped": of("Gemma2Config", **GEMMA, attn_logit_softcapping=None, final_logit_softcapping=None),
        "gemma3": of("Gemma3TextConfig", **GEMMA, sliding_window_pattern=2),
        "gemma3-global-scaling": of(
            "Gemma3TextConfig", **GEMMA, sliding_window_pattern=3, rope_parameters=GEMMA3_ROPES
        ),
        "phi3": of("Phi3Config"),
        "phi3-window": of("Phi3Config", sliding_window=24),
        "phi3-partial": of("Phi3Config", partial_rotary_factor=0.5, tie_word_embeddings=True),
        "phi3-long": of("Phi3Config", rope_parameters=LONGROPE, original_max_position_embeddings=16),
    }


def draw_config(family: str, seed: int) -> Any:
    """A configuration of `family` whose sizes and settings are random."""
    drawn = random.Random(f"{family} {seed}")
    one = drawn.choice
    kv_heads, groups = one((1, 2, 3)), one((1, 2, 4))
    heads = kv_heads * groups
    given = BASE | {
        "hidden_size": heads * one((8, 10, 16)),
        "intermediate_size": one((24, 50, 96)),
        "num_hidden_layers": drawn.randint(1, 4),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": one((1e-6, 1e-5, 1e-3)),
        "tie_word_embeddings": one((True, False)),
        "rope_parameters": {"rope_type": "default", "rope_theta": one((500.0, 1e4, 1e6))},
    }
    window, head, bias = drawn.randint(1, 60), one((8, 12, 32)), one((True, False))
    own: dict[str, dict[str, Any]] = {
        "llama": {"attention_bias": bias, "mlp_bias": one((True, False)), "head_dim": head},
        "mistral": {"sliding_window": one((window, None)), "head_dim": head},
        "qwen2": {"use_sliding_window": bias, "sliding_window": window, "max_window_layers": drawn.randint(0, 3)},
        "qwen3": {"attention_bias": bias, "head_dim": head, "use_sliding_window": True, "sliding_window": window},
        "smollm3": {"no_rope_layer_interval": drawn.randint(1, 4), "attention_bias": bias},
        "gemma2": {
            "head_dim": head,
            "sliding_window": window,
            "query_pre_attn_scalar": one((8, 30)),
            "attention_bias": bias,
        },
        "gemma3_text": {"head_dim": head, "sliding_window": window, "sliding_window_pattern": drawn.randint(2, 4)},
        "phi3": {"sliding_window": one((window, None))},
    }
    if family == "gemma2":
        given |= {"attn_logit_softcapping": one((2.0, 50.0)), "final_logit_softcapping": one((None, 5.0))}
    if family == "gemma3_text":
        given["rope_parameters"] = GEMMA3_ROPES
    return transformers.CONFIG_MAPPING[family](**(given | own[family]))


CONFIGS = make_configs()
FIRST, SECOND, THIRD = (
    torch.randint(1, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    for count, seed in ((70, 1), (37, 2), (53, 3))
)


class Made(NamedTuple):
    """A model on disk and transformers' logits [tokens, V] for each of the three texts."""

    folder: Path
    wanted: list[torch.Tensor]
    scale: float


def make(config: Any, folder: Path) -> Any:
    """A random transformers model saved to `folder`; norms and biases random, queries and keys sharp, so all matter."""
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().float()
    for key, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
        elif "qkv_proj" in key:  # Phi-3: values are in the same tensor
            parameter.data.mul_(3.0)
        else:
            parameter.data.mul_(8.0 if "q_proj" in key or "k_proj" in key else 3.0)
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """Each model is made once."""

    @cache
    def get(name: str) -> Made:
        folder = tmp_path_factory.mktemp("model")
        return made(make(CONFIGS[name](), folder), folder)

    return get


def made(model: Any, folder: Path) -> Made:
    """With transformers' logits."""
    with torch.inference_mode():
        wanted = [model(torch.tensor([one])).logits[0] for one in (FIRST, SECOND, THIRD)]
    return Made(folder, wanted, max(float(one.abs().max()) for one in wanted))


def sequence(tokens: list[int], blocks: list[int], key: int = 0) -> Sequence:
    return Sequence(
        key=key,
        tokens=list(tokens),
        prompt=len(tokens),
        sampling=SamplingParams(max_tokens=1),
        seed=0,
        eos=frozenset(),
        salt="",
        priority=0,
        arrival=key,
        submitted=0.0,
        blocks=blocks,
    )


class Seen(NamedTuple):
    """Logits after `length` tokens of text `which`."""

    which: int
    length: int
    logits: torch.Tensor


def run_mixed(decoder: Decoder, seed: int = 0, kv_dtype: str = "float32") -> list[Seen]:
    """The three texts in chunks of random sizes, in batches of random company, on scattered blocks, some neighbours."""
    drawn = random.Random(seed)
    texts = (FIRST, SECOND, THIRD)
    blocks = list(range(1, 16))
    if seed % 2:
        drawn.shuffle(blocks)
    spec = decoder.spec
    kept = KVCache(spec.layers, len(blocks), spec.kv_heads, spec.head, kv_dtype)
    rest = [
        sequence([], [blocks.pop() for _ in range(blocks_for(len(text)))][::-1], key) for key, text in enumerate(texts)
    ]
    seen: list[Seen] = []
    while any(one.computed < len(text) for one, text in zip(rest, texts, strict=True)):
        plan: list[Work] = []
        for one, text in zip(rest, texts, strict=True):
            left = len(text) - one.computed
            if left and drawn.random() < 0.7:
                count = min(left, drawn.choice((1, 1, 3, 16, 19, 32)))
                one.tokens, one.prompt = text[: one.computed + count], drawn.choice((0, len(text)))
                plan.append(Work(one, count))
        if not plan:
            continue
        logits = decoder.forward(pack(plan, decoder.multiple), kept)
        for row, work in enumerate(plan):
            work.sequence.computed += work.tokens
            seen.append(Seen(rest.index(work.sequence), work.sequence.computed, logits[row].clone()))
    return seen


def worst(made: Made, seen: list[Seen]) -> float:
    """The largest difference to transformers, relative to the largest logit."""
    return max(float((one.logits - made.wanted[one.which][one.length - 1]).abs().max()) for one in seen) / made.scale
