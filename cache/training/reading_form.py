"""The reader while it learns: the bundled encoder's frozen weights, low-rank changes beside them, and a head.

Knows the arithmetic of `cache.bert` and `cache.reader` with gradients, and the artefact's names. Does not know data.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, layer_norm, linear, scaled_dot_product_attention

from cache.reader import carried, differing, pooled

DIMENSION, HEADS, LAYERS, HIDDEN = 384, 12, 6, 32
_EPS = 1e-12
# What the low-rank changes are multiplied by.
_LOUDER = 2.0
_PARTS = {
    "qkv": tuple(f"attention.self.{name}" for name in ("query", "key", "value")),
    "out": ("attention.output.dense",),
    "up": ("intermediate.dense",),
    "down": ("output.dense",),
}
_NORMS = {"attended": "attention.output.LayerNorm", "passed": "output.LayerNorm"}


class Changed(nn.Module):
    """A frozen matrix (of several, stacked) with a change of low rank, and a bias that learns."""

    def __init__(self, matrix: Tensor, bias: Tensor, rank: int) -> None:
        super().__init__()
        self.register_buffer("matrix", matrix)
        self.bias = nn.Parameter(bias.clone())
        self.down = nn.Parameter(torch.randn(rank, matrix.shape[1]) / math.sqrt(matrix.shape[1]))
        self.up = nn.Parameter(torch.zeros(matrix.shape[0], rank))

    def forward(self, x: Tensor) -> Tensor:
        """(…, in) to (…, out)."""
        matrix = self.get_buffer("matrix")
        return linear(x, matrix, self.bias) + _LOUDER * linear(linear(x, self.down), self.up)


class Norm(nn.Module):
    """Layer norm over the last dimension."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, (DIMENSION,), self.weight, self.bias, _EPS)


class Layer(nn.Module):
    """One layer of the encoder."""

    def __init__(self, held: Mapping[str, Tensor], prefix: str, rank: int) -> None:
        super().__init__()
        made = {
            part: Changed(
                torch.cat([held[f"{prefix}{name}.weight"] for name in names]),
                torch.cat([held[f"{prefix}{name}.bias"] for name in names]),
                rank,
            )
            for part, names in _PARTS.items()
        }
        self.qkv, self.out, self.up, self.down = (made[part] for part in _PARTS)
        self.attended, self.passed = (
            Norm(held[f"{prefix}{name}.weight"], held[f"{prefix}{name}.bias"]) for name in _NORMS.values()
        )

    def forward(self, x: Tensor, seen: Tensor, drop: float) -> Tensor:
        count, width, _ = x.shape
        query, key, value = self.qkv(x).view(count, width, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        found = scaled_dot_product_attention(query, key, value, attn_mask=seen[:, None, None, :])
        found = self.out(found.transpose(1, 2).reshape(count, width, DIMENSION))
        x = self.attended(x + dropout(found, drop, self.training))
        return self.passed(x + dropout(self.down(gelu(self.up(x))), drop, self.training))


class Reader(nn.Module):
    """Starts as the encoder itself with a head that knows nothing."""

    def __init__(self, held: Mapping[str, Tensor], rank: int) -> None:
        super().__init__()
        self.register_buffer("words", held["embeddings.word_embeddings.weight"])
        self.register_buffer("places", held["embeddings.position_embeddings.weight"])
        self.types = nn.Parameter(held["embeddings.token_type_embeddings.weight"].clone())
        self.marks = nn.Parameter(torch.zeros(4, DIMENSION))
        self.norm = Norm(held["embeddings.LayerNorm.weight"], held["embeddings.LayerNorm.bias"])
        self.layers = nn.ModuleList([Layer(held, f"encoder.layer.{i}.", rank) for i in range(LAYERS)])
        self.hidden, self.judged = nn.Linear(3 * DIMENSION, HIDDEN), nn.Linear(HIDDEN, 1)
        self.marked = nn.Linear(4 * DIMENSION, HIDDEN, bias=False)
        nn.init.zeros_(self.marked.weight)

    def forward(self, rows: Sequence[tuple[list[int], list[int]]], drop: float = 0.0) -> Tensor:
        """Log odds of each row: ids, and which of the two texts (0, 1) each belongs to."""
        width = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in rows])
        kinds = torch.tensor([kinds + [0] * (width - len(kinds)) for _, kinds in rows])
        seen = torch.arange(width)[None, :] < torch.tensor([len(ids) for ids, _ in rows])[:, None]
        first = [len(held) - sum(held) for _, held in rows]
        marked = differing([ids for ids, _ in rows], first)
        x = self.get_buffer("words")[ids] + self.get_buffer("places")[:width] + self.types[kinds]
        x = self.norm(x + carried(self.marks, kinds == 0, marked))
        for layer in self.layers:
            x = layer(x, seen, drop)
        with torch.autocast("cpu", enabled=False):
            whole, apart = pooled(x.float(), seen, kinds == 0, marked)
            return self.judged(torch.tanh(self.hidden(whole) + self.marked(apart))).squeeze(1)


def artefact(reader: Reader) -> dict[str, Tensor]:
    """What `cache.reader` reads: changes to the encoder's weights by their names, and the head; half precision."""
    held: dict[str, Tensor] = {"embeddings.token_type_embeddings.weight": reader.types}
    held |= {f"embeddings.LayerNorm.{name}": getattr(reader.norm, name) for name in ("weight", "bias")}
    for i, layer in enumerate(reader.layers):
        prefix = f"encoder.layer.{i}."
        for part, names in _PARTS.items():
            found: Changed = getattr(layer, part)
            size = found.up.shape[0] // len(names)
            for at, name in enumerate(names):
                rows = slice(at * size, (at + 1) * size)
                held[f"{prefix}{name}.weight.down"] = found.down
                held[f"{prefix}{name}.weight.up"] = _LOUDER * found.up[rows]
                held[f"{prefix}{name}.bias"] = found.bias[rows]
        for part, name in _NORMS.items():
            held |= {f"{prefix}{name}.{side}": getattr(getattr(layer, part), side) for side in ("weight", "bias")}
    head = {"hidden": reader.hidden, "out": reader.judged}
    held |= {f"head.{name}.{side}": getattr(part, side) for name, part in head.items() for side in ("weight", "bias")}
    held |= {"marks.weight": reader.marks, "head.marked.weight": reader.marked.weight}
    return {name: tensor.detach().to(torch.float16).contiguous() for name, tensor in held.items()}


def restore(reader: Reader, held: Mapping[str, Tensor]) -> None:
    """Go on where an `artefact` of a reader of the same rank ended, but for what half precision lost."""
    with torch.no_grad():
        reader.types.copy_(held["embeddings.token_type_embeddings.weight"])
        if "marks.weight" in held:  # readers before 28 November 2026 have none: it is learned from nothing
            reader.marks.copy_(held["marks.weight"])
            reader.marked.weight.copy_(held["head.marked.weight"])
        for name in ("weight", "bias"):
            getattr(reader.norm, name).copy_(held[f"embeddings.LayerNorm.{name}"])
        for i, layer in enumerate(reader.layers):
            prefix = f"encoder.layer.{i}."
            for part, names in _PARTS.items():
                found: Changed = getattr(layer, part)
                found.down.copy_(held[f"{prefix}{names[0]}.weight.down"])
                found.up.copy_(torch.cat([held[f"{prefix}{name}.weight.up"] for name in names]).float() / _LOUDER)
                found.bias.copy_(torch.cat([held[f"{prefix}{name}.bias"] for name in names]))
            for part, name in _NORMS.items():
                for side in ("weight", "bias"):
                    getattr(getattr(layer, part), side).copy_(held[f"{prefix}{name}.{side}"])
        for name, part in {"hidden": reader.hidden, "out": reader.judged}.items():
            for side in ("weight", "bias"):
                getattr(part, side).copy_(held[f"head.{name}.{side}"])
