"""Whether two answers to one question say the same: the protocol every judge obeys.

Knows pairs, three verdicts and that every judge errs with a rate measured on `gold.jsonl`. Does not know who asks, what
follows from a verdict, or models.
"""

from collections.abc import Sequence
from importlib.resources import files
from typing import Literal, Protocol, cast

import msgspec
from msgspec import Struct

Opinion = Literal["same", "different", "unsure"]
# Longer answers are compared by their beginning; a judge says so by never being sure about more.
MOST_TEXT = 6_000


class Pair(Struct, frozen=True, kw_only=True):
    """`kept` was given to another question; would it have done for `question`, to which the model now says `fresh`?

    `owner`: whose texts these are. Those of two owners are never shown to a judge together.
    """

    question: str
    kept: str
    fresh: str
    owner: bytes = b""


class Judgement(Struct, frozen=True, kw_only=True):
    """`probability` that both say the same; `flip`: how often a sure verdict of this judge is wrong. `by`: its name."""

    verdict: Opinion
    probability: float
    flip: float
    by: str


class Judge(Protocol):
    """Compares in batches. Never raises for what texts hold; one that cannot answer is unsure."""

    @property
    def name(self) -> str: ...

    async def compare(self, pairs: Sequence[Pair]) -> list[Judgement]:
        """One for each pair, in order."""
        ...


class Gold(Struct, frozen=True):
    """A labelled pair: two answers to a question, and whether a person takes them for the same."""

    question: str
    a: str
    b: str
    same: bool
    tag: str

    @property
    def pair(self) -> Pair:
        return Pair(question=self.question, kept=self.a, fresh=self.b)


def gold() -> list[Gold]:
    """The pairs that ship, written by hand for this project."""
    decoder = msgspec.json.Decoder(Gold)
    return [decoder.decode(line) for line in (files(__name__) / "gold.jsonl").read_bytes().splitlines() if line]


def text_of(answer: bytes) -> str | None:
    """What a kept answer says: the text of its choices. None when it holds none, or more than text."""
    try:
        body = _decode(answer)
    except msgspec.DecodeError:
        return None
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(choices, list) or not choices:
        return None
    said = [_said(choice) for choice in cast("list[object]", choices)]
    return None if None in said else "\n\n".join(cast("list[str]", said))


_decode = msgspec.json.Decoder().decode


def _said(choice: object) -> str | None:
    if not isinstance(choice, dict):
        return None
    found = cast("dict[str, object]", choice)
    message = found.get("message")
    text = cast("dict[str, object]", message).get("content") if isinstance(message, dict) else found.get("text")
    return text if isinstance(text, str) else None
