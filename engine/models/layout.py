"""Which tensors a model's files must hold: names, shapes, and how they are stacked into linears.

Knows: the tensor names of the Llama lineage as Hugging Face writes them. Does not know: files, values, types.
"""

from typing import NamedTuple

from engine.models.spec import Spec

EMBED, HEAD, NORM = "model.embed_tokens", "lm_head", "model.norm"


class Stack(NamedTuple):
    """One linear. `rows` are the outputs of its parts; the file has a tensor for each, or one `packed` for all."""

    names: tuple[str, ...]
    rows: tuple[int, ...]
    columns: int
    bias: bool

    @property
    def tensors(self) -> list[tuple[str, int]]:
        """As the file has them: name without `.weight`, rows."""
        if len(self.names) == len(self.rows):
            return list(zip(self.names, self.rows, strict=True))
        return [(self.names[0], sum(self.rows))]


class LayerLayout(NamedTuple):
    """One layer. `norms`: field of `Layer` -> tensor name, without `.weight`, and size."""

    qkv: Stack
    out: Stack
    gate_up: Stack
    down: Stack
    norms: dict[str, tuple[str, int]]


def layer_layout(spec: Spec, layer: int) -> LayerLayout:
    prefix = f"model.layers.{layer}."
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    queries, keys = spec.heads * spec.head, spec.kv_heads * spec.head
    qkv = ("qkv",) if spec.packed else ("q", "k", "v")
    gate_up = ("gate_up",) if spec.packed else ("gate", "up")
    return LayerLayout(
        Stack(tuple(f"{attention}{one}_proj" for one in qkv), (queries, keys, keys), spec.hidden, spec.qkv_bias),
        Stack((attention + "o_proj",), (spec.hidden,), queries, spec.out_bias),
        Stack(tuple(f"{mlp}{one}_proj" for one in gate_up), (spec.feed_forward,) * 2, spec.hidden, spec.mlp_bias),
        Stack((mlp + "down_proj",), (spec.hidden,), spec.feed_forward, spec.mlp_bias),
        _norms(spec, prefix),
    )


def _norms(spec: Spec, prefix: str) -> dict[str, tuple[str, int]]:
    """In Gemma `post_attention_layernorm` really stands after attention; elsewhere it stands before the MLP."""
    if spec.sandwich:
        names = {
            "norm_attention": "input_layernorm",
            "norm_attended": "post_attention_layernorm",
            "norm_mlp": "pre_feedforward_layernorm",
            "norm_fed": "post_feedforward_layernorm",
        }
    else:
        names = {"norm_attention": "input_layernorm", "norm_mlp": "post_attention_layernorm"}
    found = {field: (prefix + name, spec.hidden) for field, name in names.items()}
    if spec.qk_norm:
        found |= {field: (f"{prefix}self_attn.{field}", spec.head) for field in ("q_norm", "k_norm")}
    return found


def shapes(spec: Spec) -> dict[str, tuple[int, ...]]:
    """Every tensor that must be there. A tied head need not."""
    table = (spec.vocabulary, spec.hidden)
    found: dict[str, tuple[int, ...]] = {f"{EMBED}.weight": table, f"{NORM}.weight": (spec.hidden,)}
    for layer in range(spec.layers):
        *stacks, norms = layer_layout(spec, layer)
        for stack in stacks:
            assert isinstance(stack, Stack)
            for name, rows in stack.tensors:
                found[f"{name}.weight"] = (rows, stack.columns)
                if stack.bias:
                    found[f"{name}.bias"] = (rows,)
        assert isinstance(norms, dict)
        found |= {f"{name}.weight": (size,) for name, size in norms.values()}
    if not spec.tied:
        found[f"{HEAD}.weight"] = table
    return found
