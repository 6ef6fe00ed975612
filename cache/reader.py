"""A model that reads two texts together and says whether one answer does for both: MiniLM with changes of its own.

The sentence encoder maps each text alone, so what differs by a word ends up near by. Here both go through the same
layers at once, every word of one seeing every word of the other (a cross-encoder: Nogueira and Cho 2019,
arXiv:1901.04085). The word pieces that only one of them has, or that stand elsewhere in the other, are marked: of near
texts most words are the same, and what was exchanged for what decides. The changes to the encoder's weights are of low
rank (Hu et al. 2021, arXiv:2106.09685), so 1.6 megabytes ship beside the encoder's ninety. `cache.training.reading`
makes them.
Knows the artefact and the arithmetic. Does not know what is done with its word, or sockets.
"""

from collections.abc import Sequence
from difflib import SequenceMatcher
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
ONLY_HERE, MOVED = 1, 2


class Reader:
    """For one folder of weights, and changes to them made for these very weights."""

    def __init__(self, folder: Path, changes: bytes, precision: torch.dtype) -> None:
        self.digest = digest(changes)
        held = {name: tensor.float() for name, tensor in load(changes).items()}
        self._bert = Bert(folder, precision, changed(load_file(folder / "model.safetensors"), held))
        self._head = tuple(held[f"head.{name}"] for name in ("hidden.weight", "hidden.bias", "out.weight", "out.bias"))
        self._marks, self._of_marked = held["marks.weight"], held["head.marked.weight"]

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
            marked = differing([rows[i] for i in chosen], held)
            first = torch.arange(marked.shape[1])[None, :] < torch.tensor(held)[:, None]
            hidden, seen = self._bert.hidden([rows[i] for i in chosen], held, carried(self._marks, first, marked))
            for i, found in zip(chosen, self._judged(hidden.float(), seen, first, marked).tolist(), strict=True):
                odds[i] = found
        return odds

    def _judged(self, x: Tensor, seen: Tensor, first: Tensor, marked: Tensor) -> Tensor:
        """`x`: (pairs, width, dimension), the others (pairs, width). See `pooled`."""
        hidden, bias, out, shift = self._head
        whole, apart = pooled(x, seen, first, marked)
        return linear(torch.tanh(linear(whole, hidden, bias) + linear(apart, self._of_marked)), out, shift).squeeze(1)


def differing(rows: Sequence[list[int]], first: Sequence[int]) -> Tensor:
    """(pairs, width): `ONLY_HERE` for an id that the other text of its row does not have, else 0.

    `MOVED` for one that it has in another place (outside the longest matching blocks, which take 60 ms to find in the
    most contrived of texts).

    `first`: how many ids are the first text's, its start and end included.
    """
    found = torch.zeros(len(rows), max(len(row) for row in rows), dtype=torch.long)
    for i, (row, until) in enumerate(zip(rows, first, strict=True)):
        one, other = row[1 : until - 1], row[until:-1]
        shared = frozenset(one) & frozenset(other)
        of_one, of_other = ([MOVED if at in shared else ONLY_HERE for at in ids] for ids in (one, other))
        for here, there, length in SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks():
            of_one[here : here + length] = of_other[there : there + length] = [0] * length
        found[i, 1 : len(row)] = torch.tensor([*of_one, 0, *of_other, 0])
    return found


def carried(marks: Tensor, first: Tensor, marked: Tensor) -> Tensor:
    """(pairs, width, dimension): what each id carries besides.

    `marks`: (4, dimension), of what only the first has, only the second, of what moved in the first, in the second.
    """
    unmarked = torch.cat([torch.zeros_like(marks[:1]), marks])
    return unmarked[torch.where(marked > 0, 2 * marked - first.long(), 0)]


def pooled(x: Tensor, seen: Tensor, first: Tensor, marked: Tensor) -> tuple[Tensor, Tensor]:
    """Of the states `x`: the start's and the mean of each text (how far apart, how alike), (pairs, 3 dimensions).

    And of what only one has, and of what moved, the mean in each text (their sum, how far apart), zero where there is
    none, (pairs, 4 dimensions).
    """
    one, other = (mean(x, seen & part) for part in (first, ~first))
    apart: list[Tensor] = []
    for mark in (ONLY_HERE, MOVED):
        weights = [((marked == mark) & part)[:, :, None].float() for part in (first, ~first)]
        here, there = ((x * weight).sum(1) / weight.sum(1).clamp(min=1.0) for weight in weights)
        apart += [here + there, (here - there).abs()]
    return torch.cat([x[:, 0], (one - other).abs(), one * other], dim=1), torch.cat(apart, dim=1)


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
