"""A BERT sentence encoder in plain torch, straight from a folder's files: what MiniLM needs and nothing else.

The same arithmetic as sentence-transformers on BertModel + mean pooling + normalisation, without importing either it or
transformers: the process starts in two seconds instead of ten and a short text takes a third less time.
`python -m cache.encoder --check` compares the two. Does not know sockets, batches' origins, or other architectures.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear, normalize, scaled_dot_product_attention

T = TypeVar("T")
_Norm = tuple[Tensor, Tensor]


class _Config(Struct):
    model_type: str
    hidden_size: int
    num_attention_heads: int
    num_hidden_layers: int
    layer_norm_eps: float
    hidden_act: str
    position_embedding_type: str = "absolute"


class _Pooling(Struct):
    pooling_mode_mean_tokens: bool
    pooling_mode_cls_token: bool = False
    pooling_mode_max_tokens: bool = False
    pooling_mode_mean_sqrt_len_tokens: bool = False


class _Module(Struct):
    type: str


class _Limits(Struct):
    max_seq_length: int
    do_lower_case: bool = False


class _Layer(Struct, frozen=True):
    """Weights of one layer; query, key and value as one matrix."""

    qkv: _Norm
    out: _Norm
    norm_attention: _Norm
    up: _Norm
    down: _Norm
    norm: _Norm


def understands(folder: Path) -> bool:
    """Whether the folder holds exactly what this file computes: absolute positions, GELU, mean pooling, normalised."""
    try:
        config = _read(folder / "config.json", _Config)
        pooling = _read(folder / "1_Pooling" / "config.json", _Pooling)
        modules = [module.type.rpartition(".")[2] for module in _read(folder / "modules.json", list[_Module])]
        limits = _read(folder / "sentence_bert_config.json", _Limits)
    except (OSError, msgspec.DecodeError):
        return False
    return (
        (config.model_type, config.hidden_act, config.position_embedding_type) == ("bert", "gelu", "absolute")
        and pooling == _Pooling(pooling_mode_mean_tokens=True)
        and modules == ["Transformer", "Pooling", "Normalize"]
        and not limits.do_lower_case
        and (folder / "tokenizer.json").is_file()
    )


class Bert:
    """`window` tokens at most, special ones included; vectors of `dimension`."""

    def __init__(self, folder: Path, precision: torch.dtype, weights: Mapping[str, Tensor] | None = None) -> None:
        self._config = _read(folder / "config.json", _Config)
        self.dimension = self._config.hidden_size
        self.window = _read(folder / "sentence_bert_config.json", _Limits).max_seq_length
        self._tokenizer: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        found = load_file(folder / "model.safetensors") if weights is None else weights
        self._weights = {name: value.to(precision) for name, value in found.items()}
        self._words = self._take("embeddings.word_embeddings.weight")
        # A text alone is of token type 0, so its row can be added to the positions once and for all.
        self._types = self._take("embeddings.token_type_embeddings.weight")
        self._places = self._take("embeddings.position_embeddings.weight") + self._types[0]
        self._norm = self._pair("embeddings.LayerNorm")
        self._layers = [self._layer(f"encoder.layer.{i}.") for i in range(self._config.num_hidden_layers)]
        self._weights.clear()

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids, special tokens included, nothing cut."""
        return [found.ids for found in self._tokenizer.encode_batch(list(texts))]

    @torch.inference_mode()
    def embed(self, rows: Sequence[list[int]]) -> NDArray[np.float32]:
        """`(len(rows), dimension)` float32, normalised. Rows hold at most `window` ids."""
        return normalize(mean(*self.hidden(rows)), dim=1).numpy()

    def hidden(
        self, rows: Sequence[list[int]], first: Sequence[int] | None = None, added: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The last layer's states `(len(rows), width, dimension)`, and which of them are of a token and no padding.

        `first`: how many ids of each row are its first text's; what follows is a second text, of token type 1.
        `added`: what else each token carries, of the states' shape.
        """
        width = max(len(row) for row in rows)
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        seen = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in rows])
        mask = None if bool(seen.all()) else seen[:, None, None, :]
        x = self._words[ids] + self._places[:width]
        if first is not None:
            second = torch.arange(width)[None, :] >= torch.tensor(first)[:, None]
            x = x + second[:, :, None].to(x.dtype) * (self._types[1] - self._types[0])
        x = self._normed(x if added is None else x + added.to(x.dtype), self._norm)
        for layer in self._layers:
            x = self._normed(x + self._attend(x, layer, mask), layer.norm_attention)
            x = self._normed(x + linear(gelu(linear(x, *layer.up)), *layer.down), layer.norm)
        return x, seen

    def _attend(self, x: Tensor, layer: _Layer, mask: Tensor | None) -> Tensor:
        count, width, _ = x.shape
        heads = self._config.num_attention_heads
        query, key, value = linear(x, *layer.qkv).view(count, width, 3, heads, -1).permute(2, 0, 3, 1, 4)
        found = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return linear(found.transpose(1, 2).reshape(count, width, self.dimension), *layer.out)

    def _normed(self, x: Tensor, norm: _Norm) -> Tensor:
        return layer_norm(x, (self.dimension,), *norm, eps=self._config.layer_norm_eps)

    def _layer(self, prefix: str) -> _Layer:
        parts = [self._pair(f"{prefix}attention.self.{name}") for name in ("query", "key", "value")]
        return _Layer(
            qkv=(torch.cat([weight for weight, _ in parts]), torch.cat([bias for _, bias in parts])),
            out=self._pair(f"{prefix}attention.output.dense"),
            norm_attention=self._pair(f"{prefix}attention.output.LayerNorm"),
            up=self._pair(f"{prefix}intermediate.dense"),
            down=self._pair(f"{prefix}output.dense"),
            norm=self._pair(f"{prefix}output.LayerNorm"),
        )

    def _pair(self, name: str) -> _Norm:
        return self._take(f"{name}.weight"), self._take(f"{name}.bias")

    def _take(self, name: str) -> Tensor:
        return self._weights[name]


def mean(x: Tensor, seen: Tensor) -> Tensor:
    """The mean of the states `(rows, width, dimension)` over the tokens that are `seen`, in float32."""
    weight = seen[:, :, None].float()
    return (x.float() * weight).sum(1) / weight.sum(1)


def passes(lengths: Sequence[int], most: int, tokens: int) -> Iterator[list[int]]:
    """The rows of each pass by their place: so many at most, and so many padded tokens. Longest first, so that a pass
    pads little."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    while order:
        count = max(1, min(most, tokens // max(1, lengths[order[0]])))
        yield order[:count]
        order = order[count:]


def _read(path: Path, kind: type[T]) -> T:
    return msgspec.json.decode(path.read_bytes(), type=kind)
