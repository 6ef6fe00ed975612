"""Reads the project's own questions and answers from `data/*.txt`.

Knows: the text format (`@key` starts a fact, `=` is its answer, `~` its names, `!` verb phrases, other lines are freely
worded questions) and the lists of what the model must refuse. Does not know: tokens, augmentation or training.
"""

from pathlib import Path
from typing import Final

from msgspec import Struct

FOLDER: Final = Path(__file__).parent
DATA: Final = FOLDER / "data"

REFUSAL: Final = (
    "I am a small demo model that only answers questions about nearhit and LLM inference, and I do not know that."
)


class Fact(Struct, frozen=True):
    """One thing the model knows. `names` fit "What is {}?", `actions` fit "How do I {}?", `questions` stand alone."""

    key: str
    answer: str
    names: tuple[str, ...]
    actions: tuple[str, ...]
    questions: tuple[str, ...]


class Refusals(Struct, frozen=True):
    """What the model does not know, in the same three forms as a fact."""

    names: tuple[str, ...]
    actions: tuple[str, ...]
    questions: tuple[str, ...]


class Frames(Struct, frozen=True):
    """Sentence patterns with `{}` for a name (define) or a verb phrase (howto); the held ones are only ever scored."""

    define: tuple[str, ...]
    howto: tuple[str, ...]
    held_define: tuple[str, ...]
    held_howto: tuple[str, ...]


class Tails(Struct, frozen=True):
    """Endings after a name ("in gardening") or a verb phrase ("in Excel") that lead away, or (`own_`) not.

    `beside` are questions about a name that no fact answers, and `foreign` those where a name must be foreign.
    """

    field: tuple[str, ...]
    place: tuple[str, ...]
    own_field: tuple[str, ...]
    own_place: tuple[str, ...]
    beside: tuple[str, ...]
    foreign: tuple[str, ...]


def lines(name: str) -> list[str]:
    """The lines of `data/<name>.txt` without comments and blanks, in file order."""
    text = (DATA / f"{name}.txt").read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def sections(name: str) -> dict[str, tuple[str, ...]]:
    """`data/<name>.txt` cut at its `%title` lines."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines(name):
        if line.startswith("%"):
            current = found.setdefault(line[1:], [])
        else:
            current.append(line)
    return {title: tuple(body) for title, body in found.items()}


def load_facts() -> list[Fact]:
    """Every fact of `chat.txt`, `inference_*.txt` and `nearhit_*.txt`, sorted by file name so that training repeats."""
    names = sorted(
        path.stem for path in DATA.glob("*.txt") if path.stem.split("_")[0] in {"chat", "inference", "nearhit"}
    )
    facts: dict[str, Fact] = {}
    for name in names:
        for fact in _parse(lines(name)):
            known = facts.get(fact.key)
            facts[fact.key] = _merged(known, fact) if known else fact
    return list(facts.values())


def load_refusals() -> Refusals:
    """The off-topic and near-topic names, tasks and questions of all `refuse*.txt`, by the second word of the name."""
    found: dict[str, list[str]] = {"names": [], "tasks": [], "": []}
    for path in sorted(DATA.glob("refuse*.txt")):
        kind = next((word for word in path.stem.split("_") if word in {"names", "tasks"}), "")
        found[kind] += lines(path.stem)
    return Refusals(*(tuple(dict.fromkeys(found[kind])) for kind in ("names", "tasks", "")))


def load_tails() -> Tails:
    """The endings of `tails.txt`."""
    found = sections("tails")
    return Tails(
        found["field"], found["place"], found["own_field"], found["own_place"], found["beside"], found["foreign"]
    )


def load_frames() -> Frames:
    """The sentence patterns of `frames.txt`."""
    found = sections("frames")
    return Frames(found["define"], found["howto"], found["held_define"], found["held_howto"])


def _parse(body: list[str]) -> list[Fact]:
    facts: list[Fact] = []
    for line in body:
        mark, rest = line[0], line[1:].strip()
        if mark == "@":
            facts.append(Fact(rest, "", (), (), ()))
            continue
        last = facts[-1]
        if mark == "=":
            facts[-1] = Fact(last.key, rest, last.names, last.actions, last.questions)
        elif mark == "~":
            facts[-1] = Fact(last.key, last.answer, last.names + _split(rest), last.actions, last.questions)
        elif mark == "!":
            facts[-1] = Fact(last.key, last.answer, last.names, last.actions + _split(rest), last.questions)
        else:
            facts[-1] = Fact(last.key, last.answer, last.names, last.actions, (*last.questions, line))
    return facts


def _merged(first: Fact, second: Fact) -> Fact:
    """A later file may add wordings to a fact without repeating its answer."""
    return Fact(
        first.key,
        first.answer or second.answer,
        first.names + second.names,
        first.actions + second.actions,
        first.questions + second.questions,
    )


def _split(rest: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in rest.split("|"))
