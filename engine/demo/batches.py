"""Turns samples into padded batches of token numbers with a weight per answer token.

Knows: the chat template's token form, where answers part from each other. Does not know: where samples come from.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import torch
from msgspec import Struct
from tokenizers import Tokenizer

from engine.demo.corpus import Sample
from engine.demo.vocabulary import END, PAD, START, token_id, with_dropout

_EASY, _HARD = 0.25, 3.0


class Batch(Struct, frozen=True):
    """`tokens` (batch, length) int64; `weights` (batch, length) float32, above 0 for tokens to predict."""

    tokens: torch.Tensor
    weights: torch.Tensor


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

    def encode(self, sample: Sample, *, whole: bool) -> tuple[list[int], list[float]]:
        """Tokens and weights; unless `whole`, the answer is cut where no other answer shares its beginning."""
        head = self.prompt(sample.turns, dropout=True)
        answer, weights = self._answers[sample.answer], self._weights[sample.answer]
        if not whole:
            keep = 2 + max(at for at, weight in enumerate(weights) if weight == _HARD)
            answer, weights = answer[:keep], weights[:keep]
        return head + answer, [0.0] * len(head) + weights

    def _weigh(self, answer: str) -> list[float]:
        """Heavy where another answer goes on differently: only there the question decides."""
        mine = self._answers[answer]
        splits = {0}
        for other in self._answers.values():
            same = next((at for at, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), None)
            if same is not None:
                splits.add(same)
        return [_HARD if at in splits else _EASY for at in range(len(mine))]


def batches(encoder: Encoder, samples: Iterable[Sample], size: int, seed: int) -> Iterator[Batch]:
    """Endless batches of `size` samples of similar length; about every tenth sample carries its whole answer."""
    rng = random.Random(seed)  # noqa: S311 - order of batches, not security
    stream = iter(samples)
    while True:
        pool = [encoder.encode(sample, whole=rng.random() < 0.10) for sample in islice(stream, size * 32)]
        pool.sort(key=lambda item: len(item[0]))
        groups = [pool[at : at + size] for at in range(0, len(pool), size)]
        rng.shuffle(groups)
        for group in groups:
            yield pad(group, encoder.pad)


def pad(group: Sequence[tuple[list[int], list[float]]], filler: int) -> Batch:
    """Right-pads to the longest; causal attention never looks there, so no mask is needed."""
    length = max(len(tokens) for tokens, _ in group)
    tokens = torch.full((len(group), length), filler, dtype=torch.int64)
    weights = torch.zeros((len(group), length), dtype=torch.float32)
    for row, (ids, weight) in enumerate(group):
        tokens[row, : len(ids)] = torch.tensor(ids)
        weights[row, : len(ids)] = torch.tensor(weight)
    return Batch(tokens, weights)
