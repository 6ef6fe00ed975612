"""Scores a model on questions: right means that greedy decoding writes the expected answer to the last token.

Greedy decoding writes exactly the expected answer if and only if, fed that answer, the most likely token at each of its
positions is the next one of it. One forward pass checks that, many questions at a time.
Knows: questions with answers that count as right. Does not know: where they come from.
"""

from collections.abc import Sequence
from typing import Any

import torch
from msgspec import Struct

from engine.demo.batches import Encoder, Item, pad


class Asked(Struct, frozen=True):
    """One question with the answer it should get; `turns` as in a sample."""

    turns: tuple[tuple[str, str], ...]
    answer: str


def ask(question: str, answer: str) -> Asked:
    """A question without any turn before it."""
    return Asked((("user", question),), answer)


@torch.inference_mode()
def verdicts(model: Any, encoder: Encoder, asked: Sequence[Asked], *, size: int = 64) -> list[bool]:
    """For each question whether greedy decoding gives exactly its answer. `model` is in eval mode."""
    order = sorted(range(len(asked)), key=lambda at: len(encoder.prompt(asked[at].turns)))
    found = [False] * len(asked)
    for begin in range(0, len(order), size):
        chosen = order[begin : begin + size]
        group: list[Item] = []
        for at in chosen:
            head, answer = encoder.prompt(asked[at].turns), encoder.answer(asked[at].answer)
            group.append(Item(head + answer, [0.0] * len(head) + [1.0] * len(answer)))
        batch = pad(group, encoder.pad)
        best = model(input_ids=batch.tokens).logits[:, :-1].argmax(-1)
        agrees = (best == batch.tokens[:, 1:]) | (batch.weights[:, 1:] == 0)
        for at, right in zip(chosen, agrees.all(-1).tolist(), strict=True):
            found[at] = right
    return found
