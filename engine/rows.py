"""From a plan to what the sampler must know, and from its picks to tokens.

Knows: sequences, guesses, grammars, end tokens. Does not know: the scheduler, tensors, blocks.
"""

from typing import NamedTuple

from engine.api import FinishReason
from engine.frames import Choice
from engine.grammar import Forked
from engine.sampler import Pick, Row
from engine.scheduler import Work
from engine.sequence import Sequence


class Asked(NamedTuple):
    """The rows of one work: `scores` of the prompt first, then `draws`. `broken`: why its grammar cannot go on."""

    work: Work
    scores: list[Row]
    draws: list[Row]
    broken: str | None = None


class Drawn(NamedTuple):
    """What one work came to. `finish` is set when the sequence has ended.

    `failed`: a row was not finite. `broken`: why its grammar cannot go on.
    """

    tokens: list[int]
    choices: list[Choice]
    scores: list[Choice]
    finish: FinishReason | None = None
    failed: bool = False
    broken: str | None = None


def ask(work: Work) -> Asked:
    """The rows of `work`: exactly `work.wanted` of them, so that they match the logits."""
    sequence = work.sequence
    known = len(sequence.tokens)
    draws = range(known, work.end + 1) if work.end >= known else range(0)
    first = work.end - work.wanted + 1
    scores = [_score(sequence, position) for position in range(first, min(work.end + 1, known))]
    if not draws:
        return Asked(work, scores, [])
    masks: list[bytes] | None = None
    broken = None
    if sequence.matcher is not None:
        try:
            masks = sequence.matcher.masks(work.drafts)
        except Forked as error:
            broken = str(error)
    return Asked(work, scores, [_draw(work, at, masks) for at in range(len(draws))], broken)


def _score(sequence: Sequence, position: int) -> Row:
    return Row(sequence.sampling, sequence.seed, position, score=sequence.tokens[position])


def _draw(work: Work, at: int, masks: list[bytes] | None) -> Row:
    """The row after `at` guesses. What was generated is copied only for those whose penalties look at it."""
    sequence, sampling = work.sequence, work.sequence.sampling
    row = Row(sampling, sequence.seed, len(sequence.tokens) + at)
    if row.penalised:
        generated = sequence.tokens[sequence.prompt :] + list(work.drafts[:at])
        prompt = sequence.tokens[: sequence.prompt] if sampling.repetition_penalty != 1 else []
        row = row._replace(generated=generated, prompt=prompt)
    if sequence.completion + at < sampling.min_tokens:
        row = row._replace(banned=tuple(sequence.eos))
    if masks is None or sequence.matcher is None:
        return row
    closing = sequence.closing is not None and sequence.completion + at >= sequence.closing
    return row._replace(allowed=sequence.matcher.ending(masks[at]) if closing else masks[at])


def take(asked: Asked, picks: list[Pick]) -> Drawn:
    """Add what was drawn to the sequence's tokens: the first token, and one more after each guess that was right."""
    sequence = asked.work.sequence
    scores = [pick.choice for pick in picks[: len(asked.scores)] if pick.choice is not None]
    failed = any(pick.token is None for pick in picks[: len(asked.scores)])
    tokens: list[int] = []
    choices: list[Choice] = []
    finish: FinishReason | None = None
    broken = asked.broken
    if asked.draws and sequence.sampling.max_tokens == 0:
        finish = "length"
    for at, pick in enumerate(picks[len(asked.scores) :]):
        if finish is not None or failed or (at and tokens[-1] != asked.work.drafts[at - 1]):
            break
        if pick.token is None:
            failed = True
            break
        tokens.append(pick.token)
        sequence.tokens.append(pick.token)
        if pick.choice is not None:
            choices.append(pick.choice)
        try:
            finish = _finish(sequence, pick.token)
        except Forked as error:
            broken, finish = str(error), "error"
    return Drawn(tokens, choices, scores, "error" if failed or broken is not None else finish, failed, broken)


def _finish(sequence: Sequence, token: int) -> FinishReason | None:
    """Raises Forked."""
    if token in sequence.eos:
        return "stop"
    if sequence.matcher is not None:
        sequence.matcher.accept(token)
        if sequence.matcher.ended:
            return "stop"
    return "length" if sequence.completion >= sequence.sampling.max_tokens else None
