"""Checkpoints: everything is read, nothing is guessed, and what cannot be honoured is refused by name."""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.api import EngineError
from engine.launch import launch
from engine.locate import FAMILIES, locate
from engine.models import tiny
from engine.models.linear import DenseFactory
from engine.models.loader import BadCheckpoint, build, load, read_config
from engine.models.spec import Config, Spec, UnsupportedModel, read_spec
from engine.options import Options
from engine.testing import write_checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "model", "tiny-random:qwen3?seed=4")


def config(**changes: object) -> Config:
    return tiny.config("llama") | changes


DENSE = DenseFactory(torch.float32, torch.device("cpu"))


def spec(**changes: object) -> Spec:
    return read_spec(config(**changes))


def test_a_folder_and_the_model_in_memory_are_the_same(folder: Path) -> None:
    """`tiny-random` stands in for a real folder only if both go the same way."""
    from_disk, in_memory = load(locate(str(folder))), load(locate("tiny-random:qwen3?seed=4"))
    assert from_disk.spec == in_memory.spec
    ids = torch.arange(259)
    assert torch.equal(from_disk.embed.rows(ids), in_memory.embed.rows(ids))
    for one, other in zip(from_disk.layers, in_memory.layers, strict=True):
        x = torch.randn(4, 64)
        assert torch.equal(one.qkv(x), other.qkv(x))
    assert not torch.equal(from_disk.embed.rows(ids), load(locate("tiny-random:qwen3?seed=5")).embed.rows(ids))


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
        build(made, tensors, DENSE)


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
    with pytest.raises(BadCheckpoint, match="neither"):
        load(locate(str(folder)))
    index = folder / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "../elsewhere.safetensors"}}')
    with pytest.raises(BadCheckpoint, match="same folder"):
        load(locate(str(folder)))
    index.write_text('{"weight_map": {"a": "missing.safetensors"}}')
    with pytest.raises(BadCheckpoint, match="missing"):
        load(locate(str(folder)))
    for nonsense in ("[", '{"weight_map": 3}', '{"weight_map": {"a": 1}}', "{}"):
        index.write_text(nonsense)
        with pytest.raises(BadCheckpoint, match=r"index\.json"):
            load(locate(str(folder)))
    for nonsense in ("[", "[]", "\xff", '"llama"'):
        (folder / "config.json").write_bytes(nonsense.encode("latin-1"))
        with pytest.raises(UnsupportedModel, match=r"config\.json"):
            read_config(locate(str(folder)))


def test_pickles_are_not_opened(folder: Path) -> None:
    """Loading a pickle runs what is in it; a pickle under another name must be refused as well."""
    weights = folder / "model.safetensors"
    trap = folder / "sprung"

    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return (trap.touch, ())

    weights.unlink()
    torch.save({"model.norm.weight": Trap()}, folder / "pytorch_model.bin")
    with pytest.raises(BadCheckpoint, match=r"pytorch_model\.bin is not read"):
        load(locate(str(folder)))
    weights.write_bytes((folder / "pytorch_model.bin").read_bytes())
    with pytest.raises(BadCheckpoint, match=r"model\.safetensors"):
        load(locate(str(folder)))
    index = {"weight_map": {"model.norm.weight": "pytorch_model.bin"}}
    (folder / "model.safetensors.index.json").write_bytes(msgspec.json.encode(index))
    with pytest.raises(BadCheckpoint, match=r"must .*be safetensors"):
        load(locate(str(folder)))
    assert not trap.exists()


def test_a_file_that_changes_later_changes_nothing(tmp_path: Path) -> None:
    """Tensors of an open file are the file: one replaced in place under a running engine would end it (SIGBUS)."""
    for family in FAMILIES:
        folder = write_checkpoint(tmp_path / family, f"tiny-random:{family}")
        decoder, wanted = load(locate(str(folder))), load(locate(f"tiny-random:{family}"))
        file = folder / "model.safetensors"
        with file.open("r+b") as opened:
            opened.write(bytes(file.stat().st_size))
        x = torch.randn(4, 64)
        assert torch.equal(decoder.embed.rows(torch.arange(9)), wanted.embed.rows(torch.arange(9)))
        assert torch.equal(decoder.head(x), wanted.head(x))
        assert torch.equal(decoder.norm, wanted.norm)
        for one, other in zip(decoder.layers, wanted.layers, strict=True):
            down, out = torch.randn(4, 192), torch.randn(4, 4 * decoder.spec.head)
            assert torch.equal(one.down(down), other.down(down))
            assert torch.equal(one.out(out), other.out(out))
            assert torch.equal(one.qkv(x), other.qkv(x))


@pytest.mark.parametrize("kept", [0, 4, 8, 300, -1])
def test_truncated_weights_are_refused(kept: int, folder: Path) -> None:
    """A copy that was interrupted anywhere must not load, not even one byte short."""
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(BadCheckpoint, match=r"model\.safetensors"):
        load(locate(str(folder)))


def test_tensors_that_are_no_plain_numbers(folder: Path) -> None:
    """8-bit tensors under ordinary names are some quantized format: their scales would be lost."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.0.mlp.down_proj.weight"
    save_file(tensors | {name: tensors[name].to(torch.int8)}, file)
    with pytest.raises(BadCheckpoint, match=r"down_proj.*int8"):
        load(locate(str(folder)))


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"bits": 4}}, "[Qq]uantized"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4}}, "dynamic"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4, "mscale": 1.0}}, "mscale"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}}, "short_factor"),
        ({"rope_parameters": {"full_attention": 5}}, "full_attention"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": 5}, "rope_scaling"),
        ({"partial_rotary_factor": 1.5}, "Rotary"),
        ({"partial_rotary_factor": 0.5}, "Rotary"),  # transformers passes it over, and it is no matter of taste
        ({"rope_parameters": {"rope_theta": 1e6}, "rope_scaling": {"type": "yarn", "factor": 4}}, "rope_parameters"),
        ({"model_type": "qwen3", "sliding_window": 8, "layer_types": ["sliding_attention"] * 2}, "use_sliding_window"),
        (
            {"model_type": "phi3", "sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]},
            "layer_types",
        ),
        ({"partial_rotary_factor": 0.01}, "Rotary"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "divide"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"hidden_size": -64}, "hidden_size"),
        ({"hidden_size": 64.5}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"head_dim": 15}, "divide"),
        ({"vocab_size": 10**12}, "vocab_size"),
        ({"vocab_size": 10**400}, "vocab_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"max_position_embeddings": None}, "max_position_embeddings"),
        ({"max_position_embeddings": 10**10}, "max_position_embeddings"),
        ({"model_type": "gemma3"}, "num_attention_heads|hidden_size"),
        ({"model_type": "gemma3", "text_config": 7}, "text_config"),
        ({"model_type": "gemma3_text", "attn_logit_softcapping": 50.0}, "softcapping"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "bidirectional"),
        ({"model_type": "gemma2", "layer_types": ["full_attention"]}, "layer_types"),
        ({"model_type": "gemma2", "layer_types": ["full_attention", "chunked_attention"]}, "layer_types"),
        ({"model_type": "gemma2", "layer_types": 3}, "layer_types"),
        ({"model_type": "smollm3", "no_rope_layers": [1]}, "no_rope_layers"),
        ({"model_type": "smollm3", "no_rope_layers": None, "no_rope_layer_interval": 0}, "no_rope_layer_interval"),
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
    """Qwen files name a window that is off; Mistral's is on; Gemma's alternates; layer types overrule."""
    off = spec(model_type="qwen3", sliding_window=32, use_sliding_window=False)
    assert off.windows == (0, 0)
    on = spec(model_type="qwen3", sliding_window=32, use_sliding_window=True, max_window_layers=1)
    assert on.windows == (0, 32)
    every = spec(model_type="qwen3", sliding_window=32, use_sliding_window=True, max_window_layers=0)
    assert every.windows == (32, 32)
    kinds = ["sliding_attention", "full_attention"]
    assert spec(model_type="mistral", sliding_window=32).windows == (32, 32)
    assert spec(model_type="mistral", sliding_window=32, layer_types=kinds).windows == (32, 0)
    assert spec(model_type="llama", sliding_window=32).windows == (0, 0)
    assert spec(model_type="gemma2", sliding_window=32, num_hidden_layers=4).windows == (32, 0, 32, 0)
    assert spec(model_type="gemma3_text", sliding_window=32, num_hidden_layers=7).windows == (32,) * 5 + (0, 32)
    still = {"model_type": "smollm3", "no_rope_layers": [0, 1, 1], "sliding_window": 32}  # one entry more than layers
    assert spec(**still, use_sliding_window=True).windows == (32, 0)
    assert [one is None for one in spec(**still).ropes] == [True, False]


def test_what_files_leave_out() -> None:
    """Gemma 3's hub files leave most of a text configuration to defaults: a wrong one is a wrong model."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    text |= {"sliding_window": 1024, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    read = read_spec({"model_type": "gemma3", "text_config": text, "torch_dtype": "bfloat16"})
    assert (read.heads, read.kv_heads, read.head, read.vocabulary) == (8, 4, 256, 262_208)
    assert (read.context, read.scale, read.tied, read.stored_dtype) == (131_072, 1 / 16, True, "bfloat16")
    local, everywhere = read.ropes[0], read.ropes[5]
    assert local is not None
    assert everywhere is not None
    assert (local.theta, local.kind, everywhere.theta, everywhere.kind) == (1e4, "default", 1e6, "linear")
    assert read.activation == "gelu_pytorch_tanh"
    phi = config(model_type="phi3")
    del phi["rms_norm_eps"]
    assert read_spec(phi).epsilon == 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_made_up_and_written(family: str, tmp_path: Path) -> None:
    """`tiny-random:` serves tests and examples of every family, in memory and as a folder."""
    from_memory = load(locate(f"tiny-random:{family}?seed=2"))
    from_disk = load(locate(str(write_checkpoint(tmp_path / family, f"tiny-random:{family}?seed=2"))))
    assert from_disk.spec == from_memory.spec
    x = torch.randn(4, 64)
    assert torch.equal(from_disk.layers[1].gate_up(x), from_memory.layers[1].gate_up(x))


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


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not supported. Known: llama, mistral"),
        ({"vocab_size": 10**12}, "vocab_size must be a whole number"),
        ({"vocab_size": 2**24}, r"embed_tokens.weight has shape \(259, 64\), the configuration says \(16777216, 64\)"),
        ({"num_attention_heads": 0}, "num_attention_heads must be a positive number"),
        ({"max_position_embeddings": 2**23}, None),  # a window nobody can fill costs nothing
    ],
)
def test_an_engine_says_why_it_cannot_start(change: dict[str, object], reason: str | None, folder: Path) -> None:
    """Whoever starts one reads one sentence, not a traceback; nothing is allocated before the files are believed."""
    file = folder / "config.json"
    file.write_bytes(msgspec.json.encode(msgspec.json.decode(file.read_bytes()) | change))
    options = Options(memory=2**20)
    if reason is None:
        assert launch(str(folder), options, monotonic=time.monotonic).info().context < 10_000
        return
    with pytest.raises(EngineError, match=reason):
        launch(str(folder), options, monotonic=time.monotonic)


def test_errors_have_one_base() -> None:
    """The process reports any reason not to load through one `except`."""
    assert issubclass(BadCheckpoint, EngineError)
    assert issubclass(UnsupportedModel, EngineError)
