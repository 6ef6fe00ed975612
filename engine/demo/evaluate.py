"""Scores the shipped weights on questions they never saw: `python -m engine.demo.evaluate [--folder F] [--show]`.

`--development` asks the set that recipes are chosen on (an earlier test set) instead of the test set.

Knows: the test files and the held-out frames. Does not know: how training works; it never changes the model.
A question counts as right only when greedy decoding writes the whole expected answer (`scoring.py`).
"""

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from msgspec import Struct, json

from engine.demo.batches import Encoder
from engine.demo.corpus import load_material
from engine.demo.facts import FOLDER, REFUSAL
from engine.demo.questions import frame_questions
from engine.demo.scoring import Asked, ask, verdicts
from engine.demo.train import answers_of, load
from engine.demo.wording import typing_error

TEST: Final = FOLDER / "test_wordings.tsv"
DEVELOPMENT: Final = FOLDER / "development_wordings.tsv"
FRAMES_ASKED: Final = 1000


class Score(Struct, frozen=True):
    """`right` of `asked`, and their share rounded to four digits."""

    asked: int
    right: int
    share: float


class TestLine(Struct, frozen=True):
    """One line of the test file: what it asks, and the fact's key or `off-topic` or `near-topic`."""

    expected: str
    question: str


def read_test(path: Path = TEST) -> list[TestLine]:
    """The test wordings: `key <tab> question`, `#` lines are comments."""
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
    return [TestLine(key, question) for key, question in rows]


def expected_answers() -> dict[str, str]:
    """What the test file's keys stand for."""
    known = {fact.key: fact.answer for fact in load_material().facts}
    return {**known, "off-topic": REFUSAL, "near-topic": REFUSAL}


def suites(path: Path = TEST) -> dict[str, list[Asked]]:
    """Every set of questions that is scored, by name; the free wordings and refusals are those of `path`."""
    answers = expected_answers()
    test = read_test(path)
    asked = [ask(line.question, answers[line.expected]) for line in test if not line.expected.endswith("-topic")]
    rng = random.Random(11)  # noqa: S311 - places of typing errors, not security
    return {
        "unseen_frames": frame_questions(load_material(), FRAMES_ASKED),
        "free_wordings": asked,
        "free_wordings_lower_case": [_changed(one, one.turns[-1][1].lower()) for one in asked],
        "free_wordings_upper_case": [_changed(one, one.turns[-1][1].upper()) for one in asked],
        "free_wordings_one_typo": [_changed(one, typing_error(rng, one.turns[-1][1])) for one in asked],
        "free_wordings_system_prompt": [
            Asked((("system", "You are a helpful assistant."), *one.turns), one.answer) for one in asked
        ],
        "refusals": [ask(line.question, REFUSAL) for line in test if line.expected.endswith("-topic")],
        "refusals_off_topic": [ask(line.question, REFUSAL) for line in test if line.expected == "off-topic"],
        "refusals_near_topic": [ask(line.question, REFUSAL) for line in test if line.expected == "near-topic"],
    }


def evaluate(folder: Path = FOLDER, only: Sequence[str] = (), path: Path = TEST) -> dict[str, Score]:
    """The scores of the checkpoint in `folder`, by name; all of them unless `only` names some."""
    model, tokenizer = load(folder)
    encoder = Encoder(tokenizer, answers_of(load_material()))
    return {name: _score(model, encoder, asked) for name, asked in suites(path).items() if not only or name in only}


@torch.inference_mode()
def generate(model: Any, encoder: Encoder, tokenizer: Any, turns: Sequence[tuple[str, str]], limit: int = 128) -> str:
    """What greedy decoding through transformers really writes, without the end mark."""
    head = torch.tensor([encoder.prompt(turns)])
    out = model.generate(head, attention_mask=torch.ones_like(head), max_new_tokens=limit, do_sample=False)
    return tokenizer.decode(out[0, head.shape[1] :].tolist(), skip_special_tokens=True)


def _changed(asked: Asked, question: str) -> Asked:
    return Asked((*asked.turns[:-1], ("user", question)), asked.answer)


def _score(model: Any, encoder: Encoder, asked: Sequence[Asked]) -> Score:
    right = sum(verdicts(model, encoder, asked))
    return Score(len(asked), right, round(right / len(asked), 4))


def _show(folder: Path, path: Path) -> None:
    """Every question of `path` that is answered wrongly, with what the model writes."""
    model, tokenizer = load(folder)
    encoder = Encoder(tokenizer, answers_of(load_material()))
    answers = expected_answers()
    test = read_test(path)
    right = verdicts(model, encoder, [ask(line.question, answers[line.expected]) for line in test])
    for line, good in zip(test, right, strict=True):
        if not good:
            written = generate(model, encoder, tokenizer, (("user", line.question),))
            print(f"{line.expected}\t{line.question}\t{written}")  # noqa: T201 - asked for


def main() -> None:
    """Prints the scores as one JSON object; with --show the wrong answers before it."""
    asks = argparse.ArgumentParser(description="Score the demo model on questions it never saw.")
    asks.add_argument("--folder", type=Path, default=FOLDER)
    asks.add_argument("--show", action="store_true", help="print the questions that go wrong")
    asks.add_argument("--development", action="store_true", help="ask the set that recipes are chosen on")
    given = asks.parse_args()
    path = DEVELOPMENT if given.development else TEST
    if given.show:
        _show(given.folder, path)
    print(json.encode(evaluate(given.folder, path=path)).decode())  # noqa: T201 - the result


if __name__ == "__main__":
    main()
