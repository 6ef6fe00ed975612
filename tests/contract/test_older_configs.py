"""Configurations in the form their authors wrote them, before transformers 5: the same logits as transformers', and the
same tokens out of a whole core."""

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from engine.api import SamplingParams
from engine.core import EngineCore
from engine.frames import Submit
from engine.locate import ModelSource
from engine.models import loader
from engine.models.decoder import Decoder
from engine.scheduler import Limits
from tests.contract.model_zoo import FIRST, SECOND, THIRD, Made, made, make, run_mixed, transformers, worst

PARITY = 2e-5
SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "pad_token_id": None,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64, "type": "yarn"}
LLAMA3 = {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 64,
    "rope_type": "llama3",
}
LONG = {
    "type": "longrope",
    "short_factor": [1.0 + at / 10 for at in range(6)],
    "long_factor": [1.0 + at for at in range(6)],
}
GEMMA3 = {"head_dim": 32, "sliding_window": 24, "query_pre_attn_scalar": 24, "hidden_activation": "gelu_pytorch_tanh"}
OLDER: dict[str, dict[str, Any]] = {
    "Llama 3.2": {
        "model_type": "llama",
        "head_dim": 16,
        "rope_theta": 5e5,
        "rope_scaling": LLAMA3,
        "pretraining_tp": 1,
    },
    "Llama, linear": {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2.0}},
    "Mistral 0.1": {"model_type": "mistral", "sliding_window": 20, "rope_theta": 1e4},
    "Mistral Nemo": {"model_type": "mistral", "sliding_window": None, "head_dim": 32, "rope_theta": 1e6},
    "Qwen 2.5": {"model_type": "qwen2", "sliding_window": 99, "use_sliding_window": False, "rope_scaling": YARN},
    "Qwen 3": {"model_type": "qwen3", "head_dim": 32, "rope_scaling": None, "tie_word_embeddings": True},
    "SmolLM 3": {
        "model_type": "smollm3",
        "no_rope_layers": [1, 1, 1, 0],
        "rope_theta": 5e6,
        "use_sliding_window": False,
    },
    "Gemma 2": {"model_type": "gemma2", **GEMMA3, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "Gemma 3": {
        "model_type": "gemma3_text",
        **GEMMA3,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "rope_local_base_freq": 10000,
        "rope_theta": 1000000,
        "sliding_window_pattern": 2,
    },
    "Phi 3": {
        "model_type": "phi3",
        "original_max_position_embeddings": 256,
        "sliding_window": 20,
        "rope_scaling": None,
    },
    "Phi 4 mini": {
        "model_type": "phi3",
        "original_max_position_embeddings": 32,
        "sliding_window": 262144,
        "partial_rotary_factor": 0.75,
        "rope_scaling": LONG,
        "tie_word_embeddings": True,
    },
}


@pytest.mark.parametrize("name", OLDER)
def test_older_files_are_read_as_transformers_reads_them(name: str, tmp_path: Path) -> None:
    """Most folders people have are of this kind; what tests save themselves is written in the newer one."""
    model, decoder, origin = both(name, tmp_path)
    assert worst(origin, run_mixed(decoder)) <= PARITY
    said = answers(decoder)
    assert said == [likeliest(model, prompt, told) for prompt, told in zip(PROMPTS, said, strict=True)]


@pytest.mark.proof
@pytest.mark.parametrize("name", OLDER)
def test_what_transformers_generates_is_what_is_said(name: str, tmp_path: Path) -> None:
    """The same through `generate` and its own cache, a token at a time, which takes ten times as long."""
    model, decoder, _ = both(name, tmp_path)
    assert answers(decoder) == [generated(model, prompt) for prompt in PROMPTS]


def both(name: str, folder: Path) -> tuple[Any, Decoder, Made]:
    """Of one older file: what transformers and what the engine make of it, and logits of the former."""
    written = SIZES | OLDER[name]
    (folder / "config.json").write_bytes(msgspec.json.encode(written))
    model = make(transformers.AutoConfig.from_pretrained(folder), folder)
    origin = made(model, folder)
    (folder / "config.json").write_bytes(msgspec.json.encode(written))
    return model, loader.load(ModelSource(name="model", folder=folder), "float32"), origin


PROMPTS = [FIRST, SECOND, THIRD, FIRST[:48] + SECOND]
MOST = 24


def answers(decoder: Decoder) -> list[list[int]]:
    """Greedy, all at once in too few blocks: some are preempted, one shares another's beginning."""
    limits = Limits(sequences=4, step_tokens=64, chunk=16)
    core = EngineCore("m", decoder, blocks=14, limits=limits, queue=9, monotonic=time.monotonic)
    for key, tokens in enumerate(PROMPTS):
        sampling = SamplingParams(max_tokens=MOST, temperature=0)
        core.submit(
            key,
            Submit(handle=0, tokens=tokens, sampling=sampling, seed=1, eos=[], salt="", priority=0, deadline_ms=None),
        )
    said: list[list[int]] = [[] for _ in PROMPTS]
    while core.busy:
        for ended in core.step():
            assert isinstance(ended.key, int)
            said[ended.key] += ended.output.tokens
        core.check()
    assert core.stats().preemptions
    return said


def likeliest(model: Any, prompt: list[int], told: list[int]) -> list[int]:
    """What transformers holds likeliest after the prompt and after each token of `told`: `told`, if each is right.

    Then a greedy `generate` says the same, token by token.
    """
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + told[:-1]])).logits[0, len(prompt) - 1 :]
    assert len(told) == MOST
    return logits.argmax(-1).tolist()


def generated(model: Any, prompt: list[int]) -> list[int]:
    """What transformers' `generate` says."""
    exactly = {"max_new_tokens": MOST, "min_new_tokens": MOST, "do_sample": False, "pad_token_id": 0}
    with torch.inference_mode():
        whole = model.generate(torch.tensor([prompt]), **exactly, eos_token_id=None)
    return whole[0, len(prompt) :].tolist()
