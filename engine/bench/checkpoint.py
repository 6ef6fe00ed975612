"""The same weights for everybody: a seeded Qwen3 as a Hugging Face folder and, with the package `gguf`, as a GGUF file.

Knows: shapes, both formats' names. Does not know: engines. Qwen3 needs no permutation of rows between the two.

The tokenizer is byte-level with short runs of ASCII for the rest of the vocabulary: only ids are compared. Tokens that
are no text by themselves (specials, parts of a character) have a zero embedding, so no engine ever chooses them: none
must be told to ignore an end, and none holds a token back because half a character cannot be shown.
"""

import string
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from engine.models import tiny
from engine.models.spec import Spec, read_spec

SIZES: dict[str, dict[str, int]] = {
    "5m": {"hidden": 256, "layers": 6, "heads": 8, "kv_heads": 2, "head": 32, "ff": 768, "vocabulary": 4096},
    "100m": {"hidden": 768, "layers": 12, "heads": 12, "kv_heads": 4, "head": 64, "ff": 2048, "vocabulary": 32000},
}
_CONTEXT = 9216
_SPECIAL = ("<|end|>", "<|pad|>", "<|a|>", "<|b|>")
_ASCII = string.ascii_letters + string.digits + string.punctuation
_BLOCK_NAMES = (
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
)
_GGUF = {"float32": "F32", "bfloat16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
_FILES = {"float32": "ALL_F32", "bfloat16": "MOSTLY_BF16", "int8": "MOSTLY_Q8_0", "int4": "MOSTLY_Q4_0"}


def config(size: str) -> dict[str, Any]:
    """Raises KeyError for an unknown size."""
    shape = SIZES[size]
    return {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": shape["vocabulary"],
        "hidden_size": shape["hidden"],
        "intermediate_size": shape["ff"],
        "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["kv_heads"],
        "head_dim": shape["head"],
        "max_position_embeddings": _CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "eos_token_id": 0,
        "pad_token_id": 1,
        "dtype": "float32",
    }


def write(folder: Path, size: str, seed: int = 0) -> Path:
    """The folder; made once. `model.gguf` lies in it where the package `gguf` is installed."""
    made = config(size)
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        save_file(_weights(read_spec(made), seed), folder / "model.safetensors", metadata={"format": "pt"})
        _tokenizer(made["vocab_size"]).save(str(folder / "tokenizer.json"))
        (folder / "generation_config.json").write_bytes(msgspec.json.encode({"eos_token_id": 0, "pad_token_id": 1}))
        (folder / "config.json").write_bytes(msgspec.json.encode(made))
    return folder


def _weights(spec: Spec, seed: int) -> dict[str, Tensor]:
    weights = tiny.tensors(spec, seed)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    silent = [at for at, letter in enumerate(letters, len(_SPECIAL)) if letter not in _ASCII]
    weights["model.embed_tokens.weight"][[*range(len(_SPECIAL)), *silent]] = 0.0
    return weights


def _tokenizer(vocabulary: int) -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(one, two) for one in _ASCII for two in _ASCII]
    longer = ((one + two, three) for one, two in pairs for three in _ASCII)
    merges = list(islice((*pairs, *longer), vocabulary - len(_SPECIAL) - len(letters)))
    tokens = [*_SPECIAL, *letters, *(one + two for one, two in merges)]
    made = Tokenizer(models.BPE(vocab={token: at for at, token in enumerate(tokens)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in _SPECIAL])
    return made


def write_gguf(folder: Path, weights: str = "float32") -> Path:
    """`model.gguf`, or `model-Q8_0.gguf` and so on. Raises ImportError where the package `gguf` is missing.

    Norms stay float32. With int4 the head is Q8_0, as it is int8 in ours.
    """
    import gguf

    kind = gguf.GGMLQuantizationType[_GGUF[weights]]
    target = folder / ("model.gguf" if weights == "float32" else f"model-{_GGUF[weights]}.gguf")
    if target.exists():
        return target
    made = msgspec.json.decode((folder / "config.json").read_bytes())
    draft = target.with_suffix(".new")
    writer = gguf.GGUFWriter(str(draft), "qwen3")
    _describe(writer, made, gguf.LlamaFileType[_FILES[weights]])
    _vocabulary(writer, msgspec.json.decode((folder / "tokenizer.json").read_bytes()))
    for name, tensor in _tensors(folder, made["num_hidden_layers"]):
        plain = tensor.ndim == 1 or weights == "float32"
        own = gguf.GGMLQuantizationType.Q8_0 if weights == "int4" and name == "token_embd.weight" else kind
        data = tensor.numpy() if plain else gguf.quants.quantize(tensor.numpy(), own)
        writer.add_tensor(name, data, raw_dtype=None if plain else own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    draft.replace(target)
    return target


def _tensors(folder: Path, layers: int) -> Iterator[tuple[str, Tensor]]:
    """All weights in float32 under GGUF's names."""
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    yield "token_embd.weight", weights["model.embed_tokens.weight"].float()
    yield "output_norm.weight", weights["model.norm.weight"].float()
    for layer in range(layers):
        for theirs, ours in _BLOCK_NAMES:
            yield f"blk.{layer}.{ours}.weight", weights[f"model.layers.{layer}.{theirs}.weight"].float()


def _describe(writer: Any, made: dict[str, Any], file_type: int) -> None:
    writer.add_name("bench")
    writer.add_context_length(made["max_position_embeddings"])
    writer.add_embedding_length(made["hidden_size"])
    writer.add_block_count(made["num_hidden_layers"])
    writer.add_feed_forward_length(made["intermediate_size"])
    writer.add_head_count(made["num_attention_heads"])
    writer.add_head_count_kv(made["num_key_value_heads"])
    writer.add_key_length(made["head_dim"])
    writer.add_value_length(made["head_dim"])
    writer.add_rope_freq_base(made["rope_theta"])
    writer.add_layer_norm_rms_eps(made["rms_norm_eps"])
    writer.add_file_type(file_type)


def _vocabulary(writer: Any, tokenizer: dict[str, Any]) -> None:
    import gguf

    by_id = sorted(tokenizer["model"]["vocab"].items(), key=lambda pair: pair[1])
    special = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([token for token, _ in by_id])
    writer.add_token_types([special if at < len(_SPECIAL) else gguf.TokenType.NORMAL for _, at in by_id])
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(1)
    writer.add_add_bos_token(False)
