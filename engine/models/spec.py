"""From a Hugging Face `config.json` to the handful of facts the decoder needs.

Knows: Llama, Qwen3, Qwen2 and Mistral, in the key names of transformers 4 and 5. Does not know: tensors, files.
What it cannot honour it refuses: a silently ignored setting would make wrong text that looks right.
"""

from typing import cast

from msgspec import Struct

from engine.api import EngineError

Config = dict[str, object]


class UnsupportedModel(EngineError):
    """This configuration asks for something the decoder does not do. The message names it."""


class Rope(Struct, frozen=True, kw_only=True):
    """Rotary embedding. `kind` is default, linear or llama3 (Llama 3.1's three-band scaling)."""

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192


class Spec(Struct, frozen=True, kw_only=True):
    """One decoder. `windows[i]`: how many tokens layer i looks back, 0 for all. `context`: trained window in tokens."""

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
    rope: Rope
    windows: tuple[int, ...]
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    stored_dtype: str = "float32"

    @property
    def parameters(self) -> int:
        """Weights of the matrices; norms and biases are too few to matter."""
        attention = self.hidden * self.head * (2 * self.heads + 2 * self.kv_heads)
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * (attention + 3 * self.hidden * self.feed_forward) + embeddings


class _Family(Struct, frozen=True, kw_only=True):
    qkv_bias: bool = False
    qk_norm: bool = False
    bias_by_config: bool = False
    window: str = "none"  # none | always: if set | asked: only with use_sliding_window


FAMILIES = {
    "llama": _Family(bias_by_config=True),
    "mistral": _Family(window="always"),
    "qwen2": _Family(qkv_bias=True, window="asked"),
    "qwen3": _Family(qk_norm=True, bias_by_config=True, window="asked"),
}


def read_spec(config: Config) -> Spec:
    """Raises UnsupportedModel."""
    name = str(config.get("model_type"))
    family = FAMILIES.get(name)
    if family is None:
        raise UnsupportedModel(f"model_type {name!r} is not supported. Known: {', '.join(FAMILIES)}.")
    if config.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel(f"hidden_act {config['hidden_act']!r} is not supported, only silu.")
    if config.get("quantization_config"):
        raise UnsupportedModel("Quantized checkpoints are not supported.")
    heads, hidden, layers = (
        _integer(config, key) for key in ("num_attention_heads", "hidden_size", "num_hidden_layers")
    )
    attention_bias = family.bias_by_config and bool(config.get("attention_bias"))
    spec = Spec(
        family=name,
        vocabulary=_integer(config, "vocab_size"),
        hidden=hidden,
        feed_forward=_integer(config, "intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=_integer(config, "num_key_value_heads", heads),
        head=_integer(config, "head_dim", hidden // heads),
        epsilon=_number(config, "rms_norm_eps", 1e-6),
        tied=bool(config.get("tie_word_embeddings", False)),
        context=_integer(config, "max_position_embeddings"),
        rope=_rope(config),
        windows=_windows(config, family, layers),
        qkv_bias=family.qkv_bias or attention_bias,
        out_bias=attention_bias,
        mlp_bias=name == "llama" and bool(config.get("mlp_bias")),
        qk_norm=family.qk_norm,
        stored_dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
    )
    if spec.heads % spec.kv_heads or spec.head % 2:
        raise UnsupportedModel(f"{spec.heads} heads of {spec.head} with {spec.kv_heads} key/value heads do not divide.")
    return spec


def _number(config: Config, key: str, default: float | None = None) -> float:
    value = config.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise UnsupportedModel(f"config.json: {key} must be a positive number, not {value!r}.")
    return float(value)


def _integer(config: Config, key: str, default: int | None = None) -> int:
    return int(_number(config, key, default))


def _rope(config: Config) -> Rope:
    """transformers 5 writes `rope_parameters`; before, `rope_theta` and `rope_scaling` were apart."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise UnsupportedModel("config.json: rope_scaling must be an object.")
    given = cast("Config", scaling)
    if any(isinstance(value, dict) for value in given.values()):
        raise UnsupportedModel("Rotary parameters per layer type are not supported.")
    kind = str(given.get("rope_type") or given.get("type") or "default")
    if kind not in ("default", "linear", "llama3"):
        raise UnsupportedModel(f"Rotary scaling {kind!r} is not supported. Known: default, linear, llama3.")
    if _number({**config, **given}, "partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModel("partial_rotary_factor is not supported.")
    theta = _number(given, "rope_theta", _number(config, "rope_theta", 10000.0))
    if kind == "default":
        return Rope(theta=theta)
    if kind == "linear":
        return Rope(theta=theta, kind=kind, factor=_number(given, "factor"))
    return Rope(
        theta=theta,
        kind=kind,
        factor=_number(given, "factor"),
        low=_number(given, "low_freq_factor"),
        high=_number(given, "high_freq_factor"),
        original=_integer(given, "original_max_position_embeddings"),
    )


def _windows(config: Config, family: _Family, layers: int) -> tuple[int, ...]:
    """Qwen lists a `sliding_window` that is off unless `use_sliding_window`; Mistral's is on when it is set."""
    size = config.get("sliding_window")
    asked = family.window == "always" or (family.window == "asked" and bool(config.get("use_sliding_window")))
    if not asked or size is None:
        return (0,) * layers
    window = _integer(config, "sliding_window")
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        named = cast("list[object]", kinds)
        return tuple(window if kind == "sliding_attention" else 0 for kind in named)
    if family.window == "asked":  # the first `max_window_layers` layers look at everything
        full = _integer(config, "max_window_layers", layers)
        return tuple(window if layer >= full else 0 for layer in range(layers))
    return (window,) * layers
