"""Every model family against transformers: the same weights give the same logits, whatever the batch looks like."""

import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from engine.api import SamplingParams
from engine.attention import KVCache, pack
from engine.blocks import BLOCK
from engine.locate import ModelSource
from engine.models import loader
from engine.models.decoder import Decoder
from engine.models.spec import Rope, Spec
from engine.scheduler import Work
from engine.sequence import Sequence

transformers = pytest.importorskip("transformers")

torch.set_num_threads(1)  # threads of a model this small only wait for each other

VOCABULARY = 320
BASE = {
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
CONFIGS: dict[str, Callable[[], object]] = {
    "llama": lambda: transformers.LlamaConfig(**BASE),
    "llama-tied": lambda: transformers.LlamaConfig(**BASE, tie_word_embeddings=True),
    "llama-3.1-rope": lambda: transformers.LlamaConfig(**BASE, rope_parameters=LLAMA3),
    "llama-linear-rope": lambda: transformers.LlamaConfig(
        **BASE, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    ),
    "llama-biases": lambda: transformers.LlamaConfig(**BASE, attention_bias=True, mlp_bias=True),
    "llama-one-kv-head": lambda: transformers.LlamaConfig(**{**BASE, "num_key_value_heads": 1}),
    "llama-no-groups": lambda: transformers.LlamaConfig(**{**BASE, "num_key_value_heads": 4}),
    "qwen3": lambda: transformers.Qwen3Config(**BASE, head_dim=32),
    "qwen3-tied": lambda: transformers.Qwen3Config(**BASE, head_dim=16, tie_word_embeddings=True),
    "qwen2": lambda: transformers.Qwen2Config(**BASE),
    "mistral-window": lambda: transformers.MistralConfig(**BASE, sliding_window=24),
}


def make(name: str, folder: Path) -> torch.nn.Module:
    """A random transformers model saved to `folder`; norms and biases random, queries and keys sharp, so all matter."""
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name](), attn_implementation="eager").eval().float()
    for key, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
        else:
            parameter.data.mul_(8.0 if "q_proj" in key or "k_proj" in key else 3.0)
    model.save_pretrained(folder)
    return model


def expected(model: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0]


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


def random_tokens(count: int, seed: int) -> list[int]:
    return torch.randint(1, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def run_mixed(decoder: Decoder, first: list[int], second: list[int]) -> list[tuple[int, int, torch.Tensor]]:
    """Two sequences in chunks of uneven sizes, in one batch, on scattered and on neighbouring blocks.

    Yields (sequence, tokens seen, logits after them) for every step.
    """
    cache = KVCache(decoder.spec.layers, 40, decoder.spec.kv_heads, decoder.spec.head)
    scattered = sequence(first, [9, 3, 17, 5, 2, 30, 8], key=0)
    neighbours = sequence(second, [20, 21, 22, 23], key=1)
    cuts = ([0, 19, 40, 64, 65, 66, 70], [0, 11, 18, 19, 20, 21, 37])
    seen: list[tuple[int, int, torch.Tensor]] = []
    for (a, b), (c, d) in zip(itertools.pairwise(cuts[0]), itertools.pairwise(cuts[1]), strict=True):
        plan = []
        for one, begin, end, tokens in ((scattered, a, b, first), (neighbours, c, d, second)):
            one.computed, one.tokens = begin, tokens[:end]
            plan.append(Work(one, end - begin))
        logits = decoder.forward(pack(plan), cache)
        seen += [(0, b, logits[0].clone()), (1, d, logits[1].clone())]
    return seen


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    """A wrong norm, bias, rotation, mask or page shows as a different logit somewhere in a mixed, chunked batch."""
    reference = make(name, tmp_path)
    decoder = loader.load(ModelSource(name=name, folder=tmp_path), "float32")
    tokens = (random_tokens(70, 1), random_tokens(37, 2))
    wanted = [expected(reference, one) for one in tokens]
    scale = max(float(one.abs().max()) for one in wanted)
    for which, length, logits in run_mixed(decoder, *tokens):
        worst = float((logits - wanted[which][length - 1]).abs().max())
        assert worst <= 2e-5 * scale, f"{name}: sequence {which} after {length} tokens is off by {worst}"


MUTATIONS: dict[str, tuple[str, Callable[[Spec], Spec]]] = {
    "rope scaling": ("llama-3.1-rope", lambda s: msgspec.structs.replace(s, rope=Rope(theta=s.rope.theta))),
    "rope factor": ("llama-linear-rope", lambda s: msgspec.structs.replace(s, rope=Rope(theta=s.rope.theta))),
    "rope theta": ("qwen3", lambda s: msgspec.structs.replace(s, rope=Rope(theta=s.rope.theta * 2))),
    "window": ("mistral-window", lambda s: msgspec.structs.replace(s, windows=(0,) * s.layers)),
    "epsilon": ("llama", lambda s: msgspec.structs.replace(s, epsilon=1e-2)),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_parity_has_teeth(mutation: str, tmp_path: Path) -> None:
    """The parity test is worth something only if it notices each setting being ignored."""
    name, change = MUTATIONS[mutation]
    reference = make(name, tmp_path)
    whole = loader.load(ModelSource(name=name, folder=tmp_path), "float32")
    with loader.open_folder(tmp_path) as tensors:
        broken = loader.build(change(whole.spec), tensors, torch.float32)
    tokens = (random_tokens(70, 1), random_tokens(37, 2))
    wanted = [expected(reference, one) for one in tokens]
    scale = max(float(one.abs().max()) for one in wanted)
    worst = max(float((out - wanted[which][n - 1]).abs().max()) for which, n, out in run_mixed(broken, *tokens))
    assert worst > 2e-4 * scale


def test_sharded_and_older_config_load_alike(tmp_path: Path) -> None:
    """transformers 4 wrote other key names, and large models come in shards: both must give the same model."""
    make("llama-3.1-rope", tmp_path / "one")
    whole = loader.load(ModelSource(name="one", folder=tmp_path / "one"), "float32")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="100KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 1
    file = tmp_path / "many" / "config.json"
    config = msgspec.json.decode(file.read_bytes())
    rope = config.pop("rope_parameters")
    config |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope, "torch_dtype": config.pop("dtype")}
    file.write_bytes(msgspec.json.encode(config))
    many = loader.load(ModelSource(name="many", folder=tmp_path / "many"), "float32")
    assert many.spec == whole.spec
    tokens = (random_tokens(70, 1), random_tokens(37, 2))
    for one, other in zip(run_mixed(whole, *tokens), run_mixed(many, *tokens), strict=True):
        assert torch.equal(one[2], other[2])


def test_bfloat16_agrees_where_it_is_sure(tmp_path: Path) -> None:
    """bfloat16 linears are a choice of speed; they may not change an answer that is not a close call."""
    reference = make("qwen3", tmp_path)
    decoder = loader.load(ModelSource(name="qwen3", folder=tmp_path), "bfloat16")
    tokens = (random_tokens(70, 1), random_tokens(37, 2))
    wanted = [expected(reference, one) for one in tokens]
    clear = 0
    for which, length, logits in run_mixed(decoder, *tokens):
        best = wanted[which][length - 1].topk(2)
        if best.values[0] - best.values[1] > 0.1 * wanted[which].abs().max():
            clear += 1
            assert int(logits.argmax()) == int(best.indices[0])
    assert clear > 0


def test_rows_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    """A cached answer equals a fresh one only if a row's logits are the same alone and among others, to the bit."""
    make("qwen3", tmp_path)
    decoder = loader.load(ModelSource(name="qwen3", folder=tmp_path), "float32")
    cache = KVCache(decoder.spec.layers, 200, decoder.spec.kv_heads, decoder.spec.head)
    everyone = [sequence(random_tokens(30 + n, n), [1 + n * 4 + at for at in range(4)], key=n) for n in range(17)]
    for one in everyone:
        decoder.forward(pack([Work(one, len(one.tokens))]), cache)
        one.computed = len(one.tokens) - 1
    alone = decoder.forward(pack([Work(everyone[0], 1)]), cache)[0].clone()
    for size in (2, 3, 5, 8, 17):
        logits = decoder.forward(pack([Work(one, 1) for one in everyone[:size]]), cache)[0]
        assert torch.equal(alone, logits), f"differs in a batch of {size}"


def test_blocks_of_the_cache_are_what_the_pool_counts() -> None:
    """The cache has one block more than the pool hands out: block 0 takes the padding."""
    cache = KVCache(1, 3, 2, 4)
    assert cache.layers[0].shape == (2, 4 * BLOCK, 2, 4)
