"""Turns samples into padded batches of token numbers with a weight per answer token.

Knows: the chat template's token form, where answers part from each other. Does not know: where samples come from.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import torch
from msgspec import Struct
from tokenizers import Tokenizer

from engine.demo.corpus import Sample
from engine.demo.vocabulary import END, PAD, START, token_id, with_dropout

_EASY, _HARD = 0.25, 3.0
NO_LABEL: Final = -100  # what cross_entropy ignores


class Batch(Struct, frozen=True):
    """`tokens` (batch, length) int64; `weights` (batch, length) float32, above 0 for tokens to predict.

    All (batch,) int64: `ends`, the place of the question's last token; `labels`, the answer's number or -100; `rows`,
    the teacher's vector or -1.
    """

    tokens: torch.Tensor
    weights: torch.Tensor
    ends: torch.Tensor
    labels: torch.Tensor
    rows: torch.Tensor


class Item(Struct):
    """One encoded sample; the last three as in `Batch`."""

    tokens: list[int]
    weights: list[float]
    end: int = 0
    label: int = NO_LABEL
    row: int = -1


class Encoder:
    """Encodes conversations; questions lose a tenth of their merges when `dropout` is asked for."""

    def __init__(self, tokenizer: Tokenizer, answers: Sequence[str]) -> None:
        self._exact = tokenizer
        self._rough = with_dropout(tokenizer, 0.1)
        self.pad = token_id(tokenizer, PAD)
        self._start = token_id(tokenizer, START)
        self._end = token_id(tokenizer, END)
        self._newline = self.ids("\n")
        self._head = {role: [self._start, *self.ids(f"{role}\n")] for role in ("system", "user", "assistant")}
        self._labels = {answer: at for at, answer in enumerate(answers)}
        self._answers = {answer: [*self.ids(answer), self._end] for answer in answers}
        self._weights = {answer: self._weigh(answer) for answer in answers}

    def ids(self, text: str) -> list[int]:
        """The tokens of `text` alone."""
        return self._exact.encode(text, add_special_tokens=False).ids

    def prompt(self, turns: Sequence[tuple[str, str]], *, dropout: bool = False) -> list[int]:
        """The tokens up to where the answer begins; the same as the chat template gives."""
        out: list[int] = []
        for role, text in turns:
            rough = dropout and role == "user"
            body = self._rough.encode(text, add_special_tokens=False).ids if rough else self.ids(text)
            out += [*self._head[role], *body, self._end, *self._newline]
        return out + self._head["assistant"]

    def answer(self, text: str) -> list[int]:
        """The tokens of an answer, end mark included."""
        return self._answers[text]

    def encode(self, sample: Sample, *, whole: bool) -> Item:
        """Tokens and weights; without an answer, only the question's.

        Unless `whole`, the answer is cut where no other answer shares its beginning.
        """
        head = self.prompt(sample.turns, dropout=True)
        if not sample.answer:
            return Item([*head, self.pad], [0.0] * (len(head) + 1), len(head) - 1)
        answer, weights = self._answers[sample.answer], self._weights[sample.answer]
        if not whole:
            keep = 2 + max(at for at, weight in enumerate(weights) if weight == _HARD)
            answer, weights = answer[:keep], weights[:keep]
        return Item(head + answer, [0.0] * len(head) + weights, len(head) - 1, self._labels[sample.answer])

    def _weigh(self, answer: str) -> list[float]:
        """Heavy where another answer goes on differently: only there the question decides."""
        mine = self._answers[answer]
        splits = {0}
        for other in self._answers.values():
            same = next((at for at, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), None)
            if same is not None:
                splits.add(same)
        return [_HARD if at in splits else _EASY for at in range(len(mine))]


def batches(
    encoder: Encoder, samples: Iterable[Sample], size: int, seed: int, rows: dict[str, int], whole: float = 0.1
) -> Iterator[Batch]:
    """Endless batches of `size` samples of similar length; a share `whole` of them carries its whole answer.

    `rows` numbers the questions the teacher has a vector of.
    """
    rng = random.Random(seed)  # noqa: S311 - order of batches, not security
    stream = iter(samples)
    while True:
        pool: list[Item] = []
        for sample in islice(stream, size * 32):
            item = encoder.encode(sample, whole=rng.random() < whole)
            item.row = rows.get(sample.source, -1)
            pool.append(item)
        pool.sort(key=lambda item: len(item.tokens))
        groups = [pool[at : at + size] for at in range(0, len(pool), size)]
        rng.shuffle(groups)
        for group in groups:
            yield pad(group, encoder.pad)


def pad(group: Sequence[Item], filler: int) -> Batch:
    """Right-pads to the longest; causal attention never looks there, so no mask is needed."""
    length = max(len(item.tokens) for item in group)
    tokens = torch.full((len(group), length), filler, dtype=torch.int64)
    weights = torch.zeros((len(group), length), dtype=torch.float32)
    for row, item in enumerate(group):
        tokens[row, : len(item.tokens)] = torch.tensor(item.tokens)
        weights[row, : len(item.weights)] = torch.tensor(item.weights)
    return Batch(
        tokens,
        weights,
        torch.tensor([item.end for item in group]),
        torch.tensor([item.label for item in group]),
        torch.tensor([item.row for item in group]),
    )
