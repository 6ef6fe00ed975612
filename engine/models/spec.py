"""From a Hugging Face `config.json` to the handful of facts the decoder needs.

Knows: the families below, in the key names of transformers 4 and 5. Does not know: tensors, files.
What it cannot honour it refuses: a silently ignored setting would make wrong text that looks right.

Sources: Llama (arXiv 2302.13971, 2407.21783), Mistral (2310.06825), Qwen2.5 (2412.15115), Qwen3 (2505.09388), SmolLM2
(2502.02737), Gemma 2 (2408.00118), Gemma 3 (2503.19786), Phi-3 (2404.14219), no rotation in some layers (2501.18795).
"""

from typing import cast

from msgspec import Struct

from engine.models.numbers import Config, UnsupportedModel, entry, integer, number
from engine.models.rope import Rope, read_rope

__all__ = ["FAMILIES", "Config", "Spec", "UnsupportedModel", "read_spec"]

_MOST = {
    "vocab_size": 2**24,
    "hidden_size": 2**17,
    "intermediate_size": 2**20,
    "num_hidden_layers": 2048,
    "num_attention_heads": 4096,
    "num_key_value_heads": 4096,
    "head_dim": 2048,
    "max_position_embeddings": 2**24,
    "sliding_window": 2**24,
}
_KINDS = ("full_attention", "sliding_attention")


class Spec(Struct, frozen=True, kw_only=True):
    """One decoder. `windows[i]`: how many tokens layer i looks back, 0 for all; `ropes[i]`: how it rotates, if it does.

    `context`: trained window in tokens. `scale`: of attention scores. Softcaps: x becomes cap * tanh(x / cap), 0 for
    none. `norm_offset`: added to the weights of norms. `sandwich`: what attention and feed-forward give is normalised
    before it joins the stream. `packed`: the file holds q, k, v (and gate, up) as one tensor. `nested`: the decoder is
    part of a model that also sees images, whose other tensors are left unread.
    """

    family: str
    vocabulary: int
    hidden: int
    feed_forward: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    epsilon: float
    tied: bool
    context: int
    ropes: tuple[Rope | None, ...]
    windows: tuple[int, ...]
    scale: float
    activation: str = "silu"
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    norm_offset: float = 0.0
    sandwich: bool = False
    embed_scale: float = 1.0
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    packed: bool = False
    nested: bool = False
    stored_dtype: str = "float32"

    @property
    def parameters(self) -> int:
        """Weights of the matrices; norms and biases are too few to matter."""
        attention = self.hidden * self.head * (2 * self.heads + 2 * self.kv_heads)
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * (attention + 3 * self.hidden * self.feed_forward) + embeddings


class Family(Struct, frozen=True, kw_only=True):
    """What sets a lineage apart. `window`: which layers look back a limited way when the file does not list them.

    none; all, if a size is set; late: those from `max_window_layers` on, if asked for; still: those that do not rotate,
    if asked for; most: all but every `sliding_window_pattern`-th. `defaults`: what files of this family leave out.
    """

    qkv_bias: bool = False
    bias_by_config: bool = False
    mlp_bias_by_config: bool = False
    qk_norm: bool = False
    window: str = "none"
    gemma: bool = False
    packed: bool = False
    defaults: Config = {}


_GEMMA: Config = {
    "head_dim": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
    "hidden_act": "gelu_pytorch_tanh",
}
_GEMMA2: Config = {"sliding_window_pattern": 2, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
_GEMMA3: Config = {
    "sliding_window_pattern": 6,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "rope_theta": 1e6,
    "rope_local_base_freq": 10_000.0,
}
_SMOLLM3: Config = {
    "rope_theta": 2e6,
    "no_rope_layer_interval": 4,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
}
_MISTRAL: Config = {"num_key_value_heads": 8, "sliding_window": 4096}
_QWEN: Config = {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28}

FAMILIES = {
    "llama": Family(bias_by_config=True, mlp_bias_by_config=True),
    "mistral": Family(window="all", defaults=_MISTRAL),
    "qwen2": Family(qkv_bias=True, window="late", defaults=_QWEN),
    "qwen3": Family(qk_norm=True, bias_by_config=True, window="late", defaults=_QWEN | {"head_dim": 128}),
    "smollm3": Family(bias_by_config=True, mlp_bias_by_config=True, window="still", defaults=_SMOLLM3),
    "gemma2": Family(gemma=True, bias_by_config=True, window="most", defaults=_GEMMA | _GEMMA2),
    "gemma3_text": Family(gemma=True, bias_by_config=True, qk_norm=True, window="most", defaults=_GEMMA | _GEMMA3),
    "phi3": Family(packed=True, window="all", defaults={"rms_norm_eps": 1e-5}),
}
_NESTED = {"gemma3": "gemma3_text"}  # models that see images; their text decoder's configuration is in `text_config`


def read_spec(config: Config) -> Spec:
    """Raises UnsupportedModel."""
    name = str(config.get("model_type"))
    nested = name in _NESTED
    if nested:
        stored = {key: config[key] for key in ("dtype", "torch_dtype") if key in config}
        name, config = _NESTED[name], stored | entry(config, "text_config")
    family = FAMILIES.get(name)
    if family is None:
        known = ", ".join([*FAMILIES, *_NESTED])
        raise UnsupportedModel(f"model_type {name!r} is not supported. Known: {known}.")
    config = family.defaults | config
    _refuse(config, name)
    heads, hidden, layers = (
        _integer(config, key) for key in ("num_attention_heads", "hidden_size", "num_hidden_layers")
    )
    head = _integer(config, "head_dim", max(hidden // heads, 1))
    kv_heads = _integer(config, "num_key_value_heads", heads)
    if heads % kv_heads or head % 2:
        raise UnsupportedModel(f"{heads} heads of {head} with {kv_heads} key/value heads do not divide.")
    bias = family.bias_by_config and bool(config.get("attention_bias"))
    still = _still(config, name, layers)
    sliding = _sliding(config, family, layers, still)
    scalar = number(config, "query_pre_attn_scalar", head) if family.gemma else head
    return Spec(
        family=name,
        vocabulary=_integer(config, "vocab_size"),
        hidden=hidden,
        feed_forward=_integer(config, "intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head=head,
        epsilon=number(config, "rms_norm_eps", 1e-6),
        tied=bool(config.get("tie_word_embeddings", False)),
        context=_context(config),
        ropes=_ropes(config, head, sliding, still),
        windows=tuple(_integer(config, "sliding_window") if one else 0 for one in sliding),
        scale=scalar**-0.5,
        activation=_activation(config, family),
        qkv_bias=family.qkv_bias or bias,
        out_bias=bias,
        mlp_bias=family.mlp_bias_by_config and bool(config.get("mlp_bias")),
        qk_norm=family.qk_norm,
        norm_offset=1.0 if family.gemma else 0.0,
        sandwich=family.gemma,
        embed_scale=hidden**0.5 if family.gemma else 1.0,
        attention_softcap=_softcap(config, "attn_logit_softcapping") if family.gemma else 0.0,
        logit_softcap=_softcap(config, "final_logit_softcapping") if family.gemma else 0.0,
        packed=family.packed,
        nested=nested,
        stored_dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
    )


def _integer(config: Config, key: str, default: int | None = None) -> int:
    return integer(config, key, default, most=_MOST[key])


def _context(config: Config) -> int:
    """YaRN is switched on by adding it, with the window it stretches, beside an unchanged `max_position_embeddings`."""
    stated = _integer(config, "max_position_embeddings")
    given = _rotation(config)
    if (given.get("rope_type") or given.get("type")) != "yarn" or "original_max_position_embeddings" not in given:
        return stated
    stretched = number(given, "original_max_position_embeddings") * number(given, "factor")
    return min(max(stated, int(stretched)), _MOST["max_position_embeddings"])


def _refuse(config: Config, name: str) -> None:
    """Settings that change what a model computes and that this decoder has no part for."""
    if config.get("quantization_config"):
        raise UnsupportedModel("Quantized checkpoints are not supported. Give the original and set `quant`.")
    if config.get("use_bidirectional_attention"):
        raise UnsupportedModel("use_bidirectional_attention is not supported: this engine generates text.")
    if name == "gemma3_text" and config.get("attn_logit_softcapping"):
        raise UnsupportedModel("attn_logit_softcapping is not part of gemma3_text.")


def _activation(config: Config, family: Family) -> str:
    """Gemma's files have the true activation under `hidden_activation`; an old `hidden_act` beside it is void."""
    act = (config.get("hidden_activation") if family.gemma else None) or config.get("hidden_act") or "silu"
    if act not in ("silu", "gelu_pytorch_tanh"):
        raise UnsupportedModel(f"hidden_act {act!r} is not supported, only silu and gelu_pytorch_tanh.")
    return str(act)


def _softcap(config: Config, key: str) -> float:
    return 0.0 if config.get(key) is None else number(config, key)


def _still(config: Config, name: str, layers: int) -> tuple[bool, ...]:
    """Which layers do not rotate (SmolLM3): named by `no_rope_layers` (0: does not), else every n-th."""
    if name != "smollm3":
        return (False,) * layers
    given = config.get("no_rope_layers")
    if given is None:
        interval = integer(config, "no_rope_layer_interval", most=_MOST["num_hidden_layers"] + 1)
        return tuple((layer + 1) % interval == 0 for layer in range(layers))
    if not isinstance(given, list) or len(cast("list[object]", given)) < layers:
        raise UnsupportedModel(f"config.json: no_rope_layers must be a list with an entry for each of {layers} layers.")
    return tuple(not value for value in cast("list[object]", given)[:layers])


def _sliding(config: Config, family: Family, layers: int, still: tuple[bool, ...]) -> tuple[bool, ...]:
    """Which layers look back `sliding_window` tokens only. Qwen lists a size that is off unless asked for."""
    asked = family.window not in ("late", "still") or bool(config.get("use_sliding_window"))
    kinds = _layer_types(config, layers)
    if not asked and "sliding_attention" in (kinds or ()) and config.get("sliding_window") is not None:
        raise UnsupportedModel("config.json: layer_types has windows and use_sliding_window says that there are none.")
    if family.window == "none" or not asked or config.get("sliding_window") is None:
        return (False,) * layers
    if kinds is not None and family.packed and "full_attention" in kinds:
        raise UnsupportedModel("layer_types is not part of phi3: all its layers look back sliding_window tokens.")
    if kinds is not None:
        return tuple(kind == "sliding_attention" for kind in kinds)
    if family.window == "late":
        full = integer(config, "max_window_layers", layers, most=2**20) if config.get("max_window_layers") != 0 else 0
        return tuple(layer >= full for layer in range(layers))
    if family.window == "still":
        return still
    if family.window == "most":
        pattern = integer(config, "sliding_window_pattern", most=2**20)
        return tuple((layer + 1) % pattern != 0 for layer in range(layers))
    return (True,) * layers


def _layer_types(config: Config, layers: int) -> list[str] | None:
    """A list that does not fit the layers (after pruning, say) leaves open which ones are left: refused."""
    kinds = config.get("layer_types")
    if kinds is None:
        return None
    named = [str(kind) for kind in cast("list[object]", kinds)] if isinstance(kinds, list) else []
    if len(named) != layers or any(kind not in _KINDS for kind in named):
        wanted = f"a list of {layers}, one per layer, each {' or '.join(_KINDS)}"
        raise UnsupportedModel(f"config.json: layer_types must be {wanted}.")
    return named


def _rotation(config: Config) -> Config:
    """What the file says of rotation: `rope_parameters`, or `rope_scaling` of older ones, as cards still tell to add.

    Where both are there and differ, transformers forgets the former, its theta among it: nobody can mean that.
    """
    newer, older = entry(config, "rope_parameters"), entry(config, "rope_scaling")
    said = {"rope_type": "default"} | _typed(entry(newer, "full_attention") or newer)
    if newer and any(said.get(key) != value for key, value in _typed(older).items()):
        raise UnsupportedModel("config.json: rope_scaling is not what rope_parameters says. Write it there.")
    return newer or older


def _typed(given: Config) -> Config:
    return {"rope_type" if key == "type" else key: value for key, value in given.items()}


def _ropes(config: Config, head: int, sliding: tuple[bool, ...], still: tuple[bool, ...]) -> tuple[Rope | None, ...]:
    """transformers 5 writes `rope_parameters`, per kind of layer where they differ; before, `rope_theta` and
    `rope_scaling` were apart, and Gemma 3 had `rope_local_base_freq` for its layers with a window."""
    given = _rotation(config)
    if any(kind in given for kind in _KINDS):
        full, local = entry(given, "full_attention"), entry(given, "sliding_attention")
    else:
        full, local = given, ({} if "rope_local_base_freq" in config else given)
    near = config | {"rope_theta": config.get("rope_local_base_freq") or config.get("rope_theta")}
    kinds = {False: read_rope(config, full, head), True: read_rope(near, local, head) if any(sliding) else None}
    if config.get("model_type") != "phi3" and any(rope and rope.rotary < head for rope in kinds.values()):
        raise UnsupportedModel(f"Rotary embedding: partial_rotary_factor is not part of {config.get('model_type')}.")
    return tuple(None if no else kinds[slides] for slides, no in zip(sliding, still, strict=True))
