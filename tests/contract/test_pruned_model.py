"""Models that were made smaller: what pruning and distillation leave behind loads like any other checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.locate import ModelSource
from engine.models import loader
from engine.models.checkpoint import BadCheckpoint
from engine.models.decoder import Decoder
from engine.models.spec import UnsupportedModel
from tests.contract.model_zoo import Made, made, run_mixed, transformers, worst, zoo

__all__ = ["zoo"]  # a fixture

Tensors = dict[str, torch.Tensor]
Zoo = Callable[[str], Made]


def load(folder: Path, **options: Any) -> Decoder:
    return loader.load(ModelSource(name="model", folder=folder), "float32", **options)


def write(origin: Made, folder: Path, tensors: Tensors, **config: object) -> Made:
    """The changed model as a folder, with what transformers makes of it."""
    folder.mkdir(exist_ok=True)
    given = msgspec.json.decode((origin.folder / "config.json").read_bytes()) | config
    (folder / "config.json").write_bytes(msgspec.json.encode(given))
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    return made(model, folder)


def without_layer(tensors: Tensors, layer: int) -> Tensors:
    """The layers behind move up."""
    kept: Tensors = {}
    for name, tensor in tensors.items():
        parts = name.split(".")
        if parts[1] == "layers":
            at = int(parts[2])
            if at == layer:
                continue
            parts[2] = str(at - (at > layer))
        kept[".".join(parts)] = tensor
    return kept


def test_fewer_layers(zoo: Zoo, tmp_path: Path) -> None:
    """Depth pruning drops layers; a list of layers that was left as it was leaves open which ones, so it is refused."""
    origin = zoo("gemma2")
    kept = without_layer(load_file(origin.folder / "model.safetensors"), 0)
    kinds = ["full_attention", "sliding_attention"]
    pruned = write(origin, tmp_path / "pruned", kept, num_hidden_layers=2, layer_types=kinds)
    assert worst(pruned, run_mixed(load(pruned.folder))) <= 2e-5
    config = msgspec.json.decode((pruned.folder / "config.json").read_bytes())
    (pruned.folder / "config.json").write_bytes(msgspec.json.encode(config | {"layer_types": [*kinds, kinds[0]]}))
    with pytest.raises(UnsupportedModel, match="list of 2, one per layer"):
        load(pruned.folder)
    (pruned.folder / "config.json").write_bytes(
        msgspec.json.encode(config | {"num_hidden_layers": 1, "layer_types": kinds[:1]})
    )
    with pytest.raises(BadCheckpoint, match=r"not used.*layers\.1"):
        load(pruned.folder)


NARROW = slice(0, 40)  # channels of the feed-forward that stay
HEAD = 32


def narrowed(tensors: Tensors) -> Tensors:
    """Without the second key/value group (two query heads) of each layer, and with 40 feed-forward channels."""
    kept: Tensors = {}
    for name, tensor in tensors.items():
        if "q_proj" in name:
            tensor = tensor[: 2 * HEAD]
        elif "k_proj" in name or "v_proj" in name:
            tensor = tensor[:HEAD]
        elif "o_proj" in name:
            tensor = tensor[:, : 2 * HEAD]
        elif "gate_proj" in name or "up_proj" in name:
            tensor = tensor[NARROW]
        elif "down_proj" in name:
            tensor = tensor[:, NARROW]
        kept[name] = tensor
    return kept


def zeroed(tensors: Tensors) -> Tensors:
    """The same parts kept in place as zeros, as unstructured tools leave them."""
    kept = {name: tensor.clone() for name, tensor in tensors.items()}
    for name, tensor in kept.items():
        if "q_proj" in name:
            tensor[2 * HEAD :] = 0
        elif "k_proj" in name or "v_proj" in name:
            tensor[HEAD:] = 0
        elif "o_proj" in name:
            tensor[:, 2 * HEAD :] = 0
        elif "gate_proj" in name or "up_proj" in name:
            tensor[NARROW.stop :] = 0
        elif "down_proj" in name:
            tensor[:, NARROW.stop :] = 0
    return kept


def test_narrower_and_zeroed_are_the_same_model(zoo: Zoo, tmp_path: Path) -> None:
    """Width pruning, both ways of writing it: head_dim is not d / heads any more, zero rows must not become NaN."""
    origin = zoo("qwen3")
    tensors = load_file(origin.folder / "model.safetensors")
    narrow = write(
        origin,
        tmp_path / "narrow",
        narrowed(tensors),
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=40,
    )
    zero = write(origin, tmp_path / "zero", zeroed(tensors))
    assert worst(narrow, run_mixed(load(narrow.folder))) <= 2e-5
    assert worst(zero, run_mixed(load(zero.folder))) <= 2e-5
    assert worst(narrow, run_mixed(load(zero.folder))) <= 2e-5


@pytest.mark.parametrize("quant", ["int8", "int4"])
def test_pruned_models_can_be_quantized(quant: str, zoo: Zoo, tmp_path: Path) -> None:
    """Rows of zeros have no largest value to scale by, odd widths have no kernel: both must come out right."""
    origin = zoo("qwen3")
    tensors = load_file(origin.folder / "model.safetensors")
    zero = write(origin, tmp_path / "zero", zeroed(tensors))
    decoder = load(zero.folder, quant=quant)
    x = torch.randn(3, 64)
    for layer in decoder.layers:
        queries = layer.qkv(x).view(3, 8, HEAD)
        assert torch.equal(queries[:, 2:4], torch.zeros(3, 2, HEAD))
        assert not torch.isnan(layer.down(torch.randn(3, 96))).any()
    assert all(torch.isfinite(one.logits).all() for one in run_mixed(decoder, kv_dtype="int8"))
    narrow = write(
        origin,
        tmp_path / "narrow",
        narrowed(tensors),
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=40,
    )
    reduced = load(narrow.folder, quant=quant)
    assert any("40 inputs" in note for note in reduced.notes)
    assert all(torch.isfinite(one.logits).all() for one in run_mixed(reduced))
