"""A model that reads two texts together and says whether one answer does for both: MiniLM with changes of its own.

The sentence encoder maps each text alone, so what differs by a word ends up near by. Here both go through the same
layers at once, every word of one seeing every word of the other (a cross-encoder: Nogueira and Cho 2019,
arXiv:1901.04085). The changes to the encoder's weights are of low rank (Hu et al. 2021, arXiv:2106.09685), so a
megabyte ships beside the encoder's ninety. `cache.training.reading` makes them.
Knows the artefact and the arithmetic. Does not know what is done with its word, or sockets.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load, load_file
from torch import Tensor
from torch.nn.functional import linear

from cache.bert import Bert, mean, passes
from cache.priors import digest

# A longer text is read up to here, as many word pieces of each: all that the encoder's window holds.
_HALF = 256
# A pass takes so many pairs, and so many padded tokens.
_MAX_PAIRS = 32
_MAX_TOKENS = 4_096


class Reader:
    """For one folder of weights, and changes to them made for these very weights."""

    def __init__(self, folder: Path, changes: bytes, precision: torch.dtype) -> None:
        self.digest = digest(changes)
        held = {name: tensor.float() for name, tensor in load(changes).items()}
        self._bert = Bert(folder, precision, changed(load_file(folder / "model.safetensors"), held))
        self._head = tuple(held[f"head.{name}"] for name in ("hidden.weight", "hidden.bias", "out.weight", "out.bias"))

    @torch.inference_mode()
    def read(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Log odds for each pair (kept text, question) that an answer to the one is right for the other."""
        first = self._bert.tokenize([kept for kept, _ in pairs])
        second = self._bert.tokenize([asked for _, asked in pairs])
        rows = [
            [*_cut(one), *_cut(other)[1:]] for one, other in zip(first, second, strict=True)
        ]  # the second without its own start: start, kept, end, question, end
        lengths = [min(len(one), _HALF) for one in first]
        odds = [0.0] * len(rows)
        for chosen in passes([len(row) for row in rows], _MAX_PAIRS, _MAX_TOKENS):
            held = [lengths[i] for i in chosen]
            hidden, seen = self._bert.hidden([rows[i] for i in chosen], held)
            for i, found in zip(chosen, self._judged(hidden.float(), seen, torch.tensor(held)).tolist(), strict=True):
                odds[i] = found
        return odds

    def _judged(self, x: Tensor, seen: Tensor, lengths: Tensor) -> Tensor:
        """`x`: (pairs, width, dimension). The start's state, and the mean of each text: how far apart, how alike."""
        of_first = torch.arange(x.shape[1])[None, :] < lengths[:, None]
        one, other = (mean(x, seen & part) for part in (of_first, ~of_first))
        found = torch.cat([x[:, 0], (one - other).abs(), one * other], dim=1)
        hidden, bias, out, shift = self._head
        return linear(torch.tanh(linear(found, hidden, bias)), out, shift).squeeze(1)


def changed(weights: dict[str, Tensor], changes: dict[str, Tensor]) -> dict[str, Tensor]:
    """The encoder's weights with what the artefact adds (`NAME.up @ NAME.down`) or replaces (by NAME)."""
    found = dict(weights)
    for name, tensor in changes.items():
        if name.endswith(".down"):
            target = name.removesuffix(".down")
            found[target] = found[target] + changes[f"{target}.up"] @ tensor
        elif name in found:
            found[name] = tensor
    return found


def _cut(ids: list[int]) -> list[int]:
    return ids if len(ids) <= _HALF else [*ids[: _HALF - 1], ids[-1]]
