"""Every model family against transformers: the same weights give the same logits, whatever the batch looks like."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from msgspec.structs import replace

from engine.attention import KVCache, pack
from engine.blocks import BLOCK
from engine.locate import ModelSource
from engine.models import loader
from engine.models.decoder import Decoder
from engine.models.linear import DenseFactory
from engine.models.rope import Rope
from engine.models.spec import FAMILIES, Spec, read_spec
from engine.scheduler import Work
from tests.contract.model_zoo import (
    CONFIGS,
    FIRST,
    LLAMA3,
    Made,
    draw_config,
    made,
    make,
    run_mixed,
    sequence,
    transformers,
    worst,
    zoo,
)

__all__ = ["zoo"]  # a fixture

PARITY = 2e-5
DENSE = DenseFactory(torch.float32, torch.device("cpu"))
Zoo = Callable[[str], Made]


def load(folder: Path, dtype: str = "float32", **options: Any) -> Decoder:
    return loader.load(ModelSource(name="model", folder=folder), dtype, **options)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_transformers(name: str, zoo: Zoo) -> None:
    """A wrong norm, bias, rotation, mask or page shows as a different logit somewhere in a mixed, chunked batch."""
    origin = zoo(name)
    decoder = load(origin.folder)
    for seed in range(4):
        assert worst(origin, run_mixed(decoder, seed)) <= PARITY, f"seed {seed}"


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_random_configurations(family: str, tmp_path: Path) -> None:
    """Sizes nobody thought of: odd heads, one layer, windows shorter than a block."""
    compare_random(family, 0, tmp_path)


@pytest.mark.proof
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_many_random_configurations(family: str, tmp_path: Path) -> None:
    """The same, thirty times."""
    for seed in range(1, 31):
        compare_random(family, seed, tmp_path / str(seed))


def compare_random(family: str, seed: int, folder: Path) -> None:
    drawn = made(make(draw_config(family, seed), folder), folder)
    decoder = load(folder)
    assert max(worst(drawn, run_mixed(decoder, each)) for each in (seed, seed + 1)) <= PARITY, f"seed {seed}"


def test_every_family_is_compared(zoo: Zoo) -> None:
    """A family that is added must come with its proof."""
    assert {load(zoo(name).folder).spec.family for name in CONFIGS} == set(FAMILIES)


class Mutation(NamedTuple):
    """Something ignored: in the spec before the weights are read, or in the decoder after."""

    model: str
    spec: Callable[[Spec], Spec] = lambda spec: spec
    decoder: Callable[[Decoder], None] = lambda decoder: None


def off(model: str, **changes: Any) -> Mutation:
    return Mutation(model, lambda spec: replace(spec, **changes))


def rope(model: str, **changes: Any) -> Mutation:
    """Change the rotation of every layer that rotates."""
    return Mutation(
        model, lambda s: replace(s, ropes=tuple(None if one is None else replace(one, **changes) for one in s.ropes))
    )


def without(model: str, *fields: str) -> Mutation:
    """Drop a part of every layer."""

    def drop(decoder: Decoder) -> None:
        for layer in decoder.layers:
            for field in fields:
                outer, _, inner = field.rpartition(".")
                setattr(getattr(layer, outer) if outer else layer, inner, None)

    return Mutation(model, decoder=drop)


MUTATIONS: dict[str, Mutation] = {
    "rope kind": rope("llama-3.1-rope", kind="default"),
    "rope factor": rope("llama-linear-rope", factor=1.0),
    "rope low": rope("llama-3.1-rope", low=0.1),
    "rope high": rope("llama-3.1-rope", high=8.0),
    "rope original": rope("llama-3.1-rope", original=64),
    "rope theta": rope("qwen3", theta=20000.0),
    "rope rotary": rope("phi3-partial", rotary=16),
    "rope amplitude": rope("qwen3-yarn", amplitude=1.0),
    "rope amplitude of longrope": rope("phi3-long", amplitude=1.0),
    "rope truncate": rope("qwen3-yarn", truncate=False),
    "rope long": rope("phi3-long", long=(1.0,) * 8),
    "rope short": off("phi3-long", context=16),
    "ropes: all rotate": Mutation("smollm3", lambda s: replace(s, ropes=(s.ropes[0],) * s.layers)),
    "ropes: one for local and global": Mutation("gemma3", lambda s: replace(s, ropes=(s.ropes[1],) * s.layers)),
    "windows": off("mistral-window", windows=(0,) * 3),
    "windows: local in Gemma 2": off("gemma2", windows=(0,) * 3),
    "windows: one token more": off("gemma3", windows=(25, 0, 25)),
    "windows: late in Qwen 2": off("qwen2-windows", windows=(0,) * 3),
    "epsilon": off("llama", epsilon=1e-2),
    "scale": off("gemma2", scale=32**-0.5),
    "activation": off("gemma2", activation="silu"),
    "norm_offset": off("gemma3", norm_offset=0.0),
    "embed_scale": off("gemma3", embed_scale=1.0),
    "attention_softcap": off("gemma2", attention_softcap=0.0),
    "logit_softcap": off("gemma2", logit_softcap=0.0),
    "tied": off("llama", tied=True),
    "sandwich: after attention": without("gemma2", "norm_attended"),
    "sandwich: after the MLP": without("gemma3", "norm_fed"),
    "qk_norm": without("qwen3", "qk_norm"),
    "qk_norm of Gemma 3": without("gemma3", "qk_norm"),
    "qkv_bias": without("qwen2", "qkv.bias"),
    "out_bias": without("qwen3-yarn", "out.bias"),
    "mlp_bias: gate and up": without("llama-biases", "gate_up.bias"),
    "mlp_bias: down": without("llama-biases", "down.bias"),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_parity_has_teeth(mutation: str, zoo: Zoo) -> None:
    """The parity test is worth something only if it notices each setting being ignored."""
    change = MUTATIONS[mutation]
    origin = zoo(change.model)
    spec = change.spec(load(origin.folder).spec)
    with loader.open_folder(origin.folder) as tensors:
        broken = loader.build(spec, tensors, DENSE)
    change.decoder(broken)
    assert worst(origin, run_mixed(broken, 1)) > 10 * PARITY


def test_every_setting_is_mutated() -> None:
    """What is added to a spec must be shown to matter. Sizes need no proof: shapes are checked."""
    sizes = {"family", "vocabulary", "hidden", "feed_forward", "layers", "heads", "kv_heads", "head", "stored_dtype"}
    elsewhere = {"context", "packed", "nested"}  # the first by "rope short", the others change names only
    words = {word for name in MUTATIONS for word in name.replace(":", "").split()}
    assert set(Spec.__struct_fields__) - sizes - elsewhere <= words
    assert set(Rope.__struct_fields__) <= words


def test_longrope_serves_its_short_window_as_trained(tmp_path: Path) -> None:
    """Cut to the original window, Phi-3 must use the short factors, as transformers does for short texts."""
    model = make(CONFIGS["phi3-long"](), tmp_path)
    decoder = load(tmp_path, context=16)
    with torch.inference_mode():
        wanted = model(torch.tensor([FIRST[:16]])).logits[0, -1]
    cache = KVCache(3, 1, 2, 16)
    logits = decoder.forward(pack([Work(sequence(FIRST[:16], [1]), 16)]), cache)[0]
    assert float((logits - wanted).abs().max()) <= PARITY * float(wanted.abs().max())


def older(config: dict[str, Any]) -> dict[str, Any]:
    """The same settings under the names of transformers 4."""
    rope = config.pop("rope_parameters")
    if "full_attention" in rope:
        config["rope_theta"] = rope["full_attention"].pop("rope_theta")
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        scaling = rope["full_attention"]
    else:
        config["rope_theta"], scaling = rope.pop("rope_theta"), rope
    partial = scaling.pop("partial_rotary_factor", None)
    kind = scaling.pop("rope_type")
    config |= {} if partial is None else {"partial_rotary_factor": partial}
    config |= {"rope_scaling": None if kind == "default" else {"type": kind, **scaling}}
    return config | {"torch_dtype": config.pop("dtype")}


@pytest.mark.parametrize("name", CONFIGS)
def test_both_generations_of_configurations(name: str, zoo: Zoo) -> None:
    """transformers 5 renamed rotary settings and dtype; hubs are full of the older files."""
    config = msgspec.json.decode((zoo(name).folder / "config.json").read_bytes())
    new = read_spec(config)
    assert read_spec(older(config)) == new


def test_sharded_files_load_alike(tmp_path: Path, zoo: Zoo) -> None:
    """Large models come in shards: they must give the same model."""
    whole = load(zoo("llama-3.1-rope").folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(zoo("llama-3.1-rope").folder)
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert LLAMA3["factor"] == whole.spec.ropes[0].factor if whole.spec.ropes[0] else False
    for one, other in zip(run_mixed(whole), run_mixed(load(tmp_path)), strict=True):
        assert torch.equal(one.logits, other.logits)


def test_the_text_part_of_a_model_that_sees(tmp_path: Path) -> None:
    """Gemma 3 from 4 B on comes with a vision tower; its text decoder must load from it, by both layouts of names."""
    text = CONFIGS["gemma3"]().to_dict()
    eye = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Gemma3Config(text_config=text, vision_config=eye | {"image_size": 28, "patch_size": 14})
    torch.manual_seed(3)
    model = transformers.Gemma3ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path)
    with torch.inference_mode():
        wanted = model(torch.tensor([FIRST])).logits[0]
    decoder = load(tmp_path)
    assert decoder.spec.nested
    cache = KVCache(3, 5, 2, 32)
    found = decoder.forward(pack([Work(sequence(FIRST, [1, 2, 3, 4, 5]), len(FIRST))]), cache)[0]
    assert float((found - wanted[-1]).abs().max()) <= PARITY * float(wanted.abs().max())
    with loader.open_folder(tmp_path) as tensors:
        prefix = next(name for name in tensors if name.endswith("embed_tokens.weight")).removesuffix(
            "embed_tokens.weight"
        )
        other = "language_model.model." if prefix == "model.language_model." else "model.language_model."
        renamed = {other + n.removeprefix(prefix) if n.startswith(prefix) else n: tensors[n] for n in tensors}
    same = loader.build(decoder.spec, renamed, DENSE)
    cache = KVCache(3, 5, 2, 32)
    assert torch.equal(same.forward(pack([Work(sequence(FIRST, [1, 2, 3, 4, 5]), len(FIRST))]), cache)[0], found)


def test_bfloat16_agrees_where_it_is_sure(zoo: Zoo) -> None:
    """bfloat16 linears are a choice of speed; they may not change an answer that is not a close call."""
    origin = zoo("qwen3")
    clear = 0
    for which, length, logits in run_mixed(load(origin.folder, "bfloat16")):
        best = origin.wanted[which][length - 1].topk(2)
        if best.values[0] - best.values[1] > 0.1 * origin.wanted[which].abs().max():
            clear += 1
            assert int(logits.argmax()) == int(best.indices[0])
    assert clear > 0


@pytest.mark.parametrize("name", ["qwen3", "gemma2", "phi3-long"])
@pytest.mark.parametrize(("quant", "kv_dtype"), [("none", "float32"), ("int8", "int8"), ("int4", "fp8")])
def test_rows_do_not_depend_on_the_batch(name: str, quant: str, kv_dtype: str, zoo: Zoo) -> None:
    """A cached answer equals a fresh one only if a row's logits are the same alone and among others, to the bit."""
    decoder = load(zoo(name).folder, quant=quant)
    spec = decoder.spec
    cache = KVCache(spec.layers, 200, spec.kv_heads, spec.head, kv_dtype)
    everyone = [sequence(FIRST[n : n + 30 + n], [1 + n * 4 + at for at in range(4)], key=n) for n in range(17)]
    for one in everyone:
        decoder.forward(pack([Work(one, len(one.tokens))], decoder.multiple), cache)
        one.computed = len(one.tokens) - 1
    alone = decoder.forward(pack([Work(everyone[0], 1)], decoder.multiple), cache)[0].clone()
    for size in (2, 3, 5, 8, 17):
        logits = decoder.forward(pack([Work(one, 1) for one in everyone[:size]], decoder.multiple), cache)[0]
        assert torch.equal(alone, logits), f"differs in a batch of {size}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packing_linears_changes_nothing(dtype: torch.dtype) -> None:
    """q, k and v in one multiplication, and both halves of the gate: faster, and the same numbers as apart."""
    factory = DenseFactory(dtype, torch.device("cpu"))
    parts = [torch.randn(rows, 64) for rows in (128, 32, 32)]
    biases = [torch.randn(len(part)) for part in parts]
    packed = factory.column("qkv", parts, biases)
    for tokens in (4, 16, 64):
        x = torch.randn(tokens, 64)
        apart = [factory.row("one", part, bias)(x) for part, bias in zip(parts, biases, strict=True)]
        torch.testing.assert_close(packed(x), torch.cat(apart, -1), rtol=1e-6, atol=1e-6)


def test_blocks_of_the_cache_are_what_the_pool_counts() -> None:
    """The cache has one block more than the pool hands out: block 0 takes the padding."""
    cache = KVCache(1, 3, 2, 4)
    assert cache.layers[0].shape == (2, 4 * BLOCK, 2, 4)
