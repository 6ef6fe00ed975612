"""Checkpoints: everything is read, nothing is guessed, and what cannot be honoured is refused by name."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.api import EngineError
from engine.locate import locate
from engine.models import tiny
from engine.models.loader import BadCheckpoint, build, load, read_config
from engine.models.spec import Config, Spec, UnsupportedModel, read_spec
from engine.testing import write_checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "model", "tiny-random:qwen3?seed=4")


def config(**changes: object) -> Config:
    return tiny.config("llama") | changes


def spec(**changes: object) -> Spec:
    return read_spec(config(**changes))


def test_a_folder_and_the_model_in_memory_are_the_same(folder: Path) -> None:
    """`tiny-random` stands in for a real folder only if both go the same way."""
    from_disk, in_memory = load(locate(str(folder))), load(locate("tiny-random:qwen3?seed=4"))
    assert from_disk.spec == in_memory.spec
    for one, other in zip(from_disk._layers, in_memory._layers, strict=True):
        assert torch.equal(one.qkv.weight, other.qkv.weight)
    assert not torch.equal(from_disk._embed, load(locate("tiny-random:qwen3?seed=5"))._embed)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda t: t.pop("model.layers.1.self_attn.k_norm.weight"), "k_norm"),
        (lambda t: t.pop("model.layers.0.mlp.up_proj.weight"), "up_proj"),
        (lambda t: t.update({"model.layers.2.mlp.up_proj.weight": torch.zeros(1)}), "layers.2"),
        (lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}), "q_proj.bias"),
        (lambda t: t.update({"model.norm.weight": torch.zeros(63)}), "model.norm"),
        (lambda t: t.update({"lm_head.bias": torch.zeros(1)}), "lm_head.bias"),
    ],
)
def test_missing_extra_and_misshapen_tensors(change: Callable[[dict[str, torch.Tensor]], None], names: str) -> None:
    """A half-read model answers fluently and wrongly: the only safe moment to notice is loading."""
    made = read_spec(tiny.config("qwen3"))
    tensors = tiny.tensors(made, 0)
    change(tensors)
    with pytest.raises(BadCheckpoint, match=names):
        build(made, tensors, torch.float32)


def test_what_may_be_left_over(folder: Path) -> None:
    """Writers store a tied head twice, and old ones store rotary tables: both say nothing new."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    save_file(tensors, file)
    load(locate(str(folder)))
    untied = config(tie_word_embeddings=False) | {"model_type": "qwen3"}
    (folder / "config.json").write_bytes(msgspec.json.encode(untied))
    load(locate(str(folder)))
    save_file({name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}, file)
    with pytest.raises(BadCheckpoint, match="lm_head"):
        load(locate(str(folder)))


def test_broken_files_are_named(folder: Path) -> None:
    """An operator who copied half a model must read which file is at fault."""
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadCheckpoint, match=r"model\.safetensors"):
        load(locate(str(folder)))
    file.unlink()
    with pytest.raises(BadCheckpoint, match=r"\.bin is not read"):
        load(locate(str(folder)))
    index = folder / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "../elsewhere.safetensors"}}')
    with pytest.raises(BadCheckpoint, match="same folder"):
        load(locate(str(folder)))
    index.write_text('{"weight_map": {"a": "missing.safetensors"}}')
    with pytest.raises(BadCheckpoint, match="missing"):
        load(locate(str(folder)))
    (folder / "config.json").write_text("[")
    with pytest.raises(UnsupportedModel):
        read_config(locate(str(folder)))


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"bits": 4}}, "[Qq]uantized"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "yarn"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": 5}, "rope_scaling"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "per layer type"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "divide"),
        ({"max_position_embeddings": None}, "max_position_embeddings"),
    ],
)
def test_what_cannot_be_honoured_is_refused(changes: dict[str, object], names: str) -> None:
    """A setting silently ignored makes text that looks right."""
    with pytest.raises(UnsupportedModel, match=names):
        spec(**changes)


def test_both_generations_of_key_names() -> None:
    """transformers 5 moved rope_theta and renamed torch_dtype; both must read alike."""
    older = spec(rope_theta=1e6, rope_scaling={"type": "linear", "factor": 2.0}, dtype=None, torch_dtype="bfloat16")
    plain = config(rope_parameters={"rope_type": "linear", "rope_theta": 1e6, "factor": 2.0}, dtype="bfloat16")
    del plain["rope_theta"]
    assert older == read_spec(plain)


def test_windows_of_each_family() -> None:
    """Qwen files name a window that is off; Mistral's is on; layer types overrule."""
    off = spec(model_type="qwen3", sliding_window=32, use_sliding_window=False)
    assert off.windows == (0, 0)
    on = spec(model_type="qwen3", sliding_window=32, use_sliding_window=True, max_window_layers=1)
    assert on.windows == (0, 32)
    kinds = ["sliding_attention", "full_attention"]
    assert spec(model_type="mistral", sliding_window=32).windows == (32, 32)
    assert spec(model_type="mistral", sliding_window=32, layer_types=kinds).windows == (32, 0)
    assert spec(model_type="llama", sliding_window=32).windows == (0, 0)


def test_a_shorter_window_is_kept() -> None:
    """Operators cut the window to save memory; it can never grow past what was trained."""
    assert load(locate("tiny-random:llama"), context=100).spec.context == 100
    assert load(locate("tiny-random:llama"), context=10**6).spec.context == 2048


def test_parameters_are_counted() -> None:
    """The choice of threads and types depends on the size."""
    made = spec()
    tensors = tiny.tensors(made, 0)
    matrices = sum(tensor.numel() for tensor in tensors.values() if tensor.dim() == 2)
    assert made.parameters == matrices


def test_errors_have_one_base() -> None:
    """The process reports any reason not to load through one `except`."""
    assert issubclass(BadCheckpoint, EngineError)
    assert issubclass(UnsupportedModel, EngineError)
