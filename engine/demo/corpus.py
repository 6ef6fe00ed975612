"""Makes training conversations out of facts, frames and refusals, without end and repeatably.

Knows: how often each kind of question is drawn, and the turns around it (system prompt, an earlier exchange).
Does not know: tokens or the model.
"""

import random
import re
import string
from collections.abc import Iterator, Sequence

from msgspec import Struct

from engine.demo.facts import REFUSAL, Fact, Frames, Refusals, lines, load_facts, load_frames, load_refusals, load_tails
from engine.demo.teacher import english_words
from engine.demo.wording import Wording

_COMPARED = ("{first} or {}", "{first} vs {}", "is {first} better than {}", "difference between {first} and {}")
STRANGE_WORDS = 10_000
FURTHER = 0.25  # the share of questions that nobody wrote
REFUSED = 0.42  # the share of questions to refuse
_SYLLABLES = re.findall(
    r"\w+", "ba co di fu ga hel jo ka lum mi no pra qui ro sta tur vel wex yo zin dex tron ify ora lix quo bly sten"
)


class Sample(Struct, frozen=True):
    """One conversation to learn: `turns` are the messages before the answer, as (role, text).

    `answer` is empty where none is known; `source` is the last question before its wording was varied.
    """

    turns: tuple[tuple[str, str], ...]
    answer: str
    source: str = ""


class Material(Struct, frozen=True):
    """Everything a corpus is drawn from; `held_out` removes a share of it to tune on."""

    facts: tuple[Fact, ...]
    refusals: Refusals
    frames: Frames


def load_material() -> Material:
    """All of `data/`."""
    return Material(tuple(load_facts()), load_refusals(), load_frames())


def kept(items: Sequence[str], share: int, *, held: bool) -> tuple[str, ...]:
    """Every `share`-th item when `held`, the others when not; `share` 0 holds nothing out."""
    return tuple(item for at, item in enumerate(items) if (share > 0 and at % share == share - 1) == held)


def part(material: Material, share: int, *, held: bool) -> Material:
    """The training part or the held-out part of the freely worded questions and of everything refused."""
    facts = tuple(
        Fact(f.key, f.answer, f.names, f.actions, kept(f.questions, share, held=held)) for f in material.facts
    )
    old = material.refusals
    refusals = Refusals(
        kept(old.names, share, held=held), kept(old.actions, share, held=held), kept(old.questions, share, held=held)
    )
    return Material(facts, refusals, material.frames)


class Corpus:
    """An endless, repeatable stream of samples for one seed.

    `further`: questions made by a program, each with its answer or an empty text; `strange`: see `Stage`.
    """

    def __init__(
        self, material: Material, seed: int, further: Sequence[tuple[str, str]] = (), strange: float = 0.0
    ) -> None:
        self._further = further
        self._strange, self._words = strange, english_words(STRANGE_WORDS) if strange else []
        self._rng = random.Random(seed)  # noqa: S311 - variety of wording, not security
        self._material = material
        self._wording = Wording(self._rng)
        self._systems = lines("system_prompts")
        self._tails = load_tails()
        self._fillings = [
            (name, self._tails.field, material.frames.define) for fact in material.facts for name in fact.names
        ] + [(task, self._tails.place, material.frames.howto) for fact in material.facts for task in fact.actions]

    def __iter__(self) -> Iterator[Sample]:
        while True:
            yield self.draw()

    def draw(self) -> Sample:
        """One sample: a question with its answer, 12 % after a system prompt, 6 % after an earlier exchange."""
        rng = self._rng
        question, answer, source = self.exchange()
        turns: list[tuple[str, str]] = []
        if rng.random() < 0.12:
            turns.append(("system", rng.choice(self._systems)))
        if rng.random() < 0.06:
            before, reply, _ = self.exchange()
            reply = reply or REFUSAL
            turns += [("user", before), ("assistant", reply)]
        return Sample((*turns, ("user", question)), answer, source)

    def exchange(self) -> tuple[str, str, str]:
        """A question in a varied wording, the one right answer to it, and the question as it was written."""
        if self._further and self._rng.random() < FURTHER:
            source, answer = self._rng.choice(self._further)
        elif self._rng.random() < REFUSED:
            source, answer = self._foreign(), REFUSAL
        else:
            fact = self._rng.choice(self._material.facts)
            source, answer = self._about(fact), fact.answer
        return self._wording.vary(source), answer, source

    def _about(self, fact: Fact) -> str:
        """A question about `fact`: mostly a freely worded one, else a frame filled with a name or a task of it."""
        rng, frames, tails = self._rng, self._material.frames, self._tails
        framed = 0.42 if fact.names or fact.actions else 0.0
        if rng.random() >= framed:
            return rng.choice(fact.questions)
        pool = [(frames.define, name, tails.own_field) for name in fact.names]
        pool += [(frames.howto, task, tails.own_place) for task in fact.actions]
        patterns, filling, endings = rng.choice(pool)
        if rng.random() < 0.07 and "nearhit" not in filling:
            filling = f"{filling} {rng.choice(endings)}"
        return self._filled(rng.choice(patterns), filling)

    def _filled(self, pattern: str, filling: str) -> str:
        """The pattern around its filling; a share of them with one or two of the pattern's words replaced at random.

        A pattern may hold words that were never seen; what is asked about is in the filling alone.
        """
        rng = self._rng
        if self._strange and rng.random() < self._strange:
            parts = pattern.split(" ")
            places = [place for place, word in enumerate(parts) if word.isalpha()]
            for place in rng.sample(places, min(len(places), rng.randint(1, 2))):
                parts[place] = rng.choice(self._words)
            pattern = " ".join(parts)
        return pattern.replace("{}", filling)

    def _foreign(self) -> str:
        """A question to refuse; half of them fill the same frames as the facts do, so a frame alone says nothing."""
        rng, frames, refusals, tails = self._rng, self._material.frames, self._material.refusals, self._tails
        draw = rng.random()
        if draw < 0.39:
            return rng.choice(refusals.questions)
        if draw < 0.67:
            return self._filled(rng.choice(frames.define), rng.choice(refusals.names))
        if draw < 0.79:
            return self._filled(rng.choice(frames.howto), rng.choice(refusals.actions))
        if draw < 0.83:
            pattern, filling = rng.choice(frames.define), self._invented()
        elif draw < 0.88:
            known, endings, patterns = rng.choice(self._fillings)
            pattern, filling = rng.choice(patterns), f"{known} {rng.choice(endings)}"
        elif draw < 0.92:
            pattern, filling = rng.choice(tails.beside), rng.choice((rng.choice(refusals.names), self._name()))
        elif draw < 0.97:
            pattern, filling = rng.choice(tails.foreign), rng.choice(refusals.names)
        else:
            first, filling = rng.choice(refusals.names), rng.choice(refusals.names)
            pattern = rng.choice(_COMPARED).replace("{first}", first)
        return pattern.replace("{}", filling)

    def _name(self) -> str:
        """The name of some fact."""
        return self._rng.choice([name for fact in self._material.facts for name in fact.names])

    def _invented(self) -> str:
        """A word that means nothing, so that unknown names are refused rather than guessed at."""
        rng = self._rng
        if rng.random() < 0.2:
            return "".join(rng.choice(string.ascii_uppercase) for _ in range(rng.randint(4, 6)))
        word = "".join(rng.choice(_SYLLABLES) for _ in range(rng.randint(2, 3)))
        return word.capitalize() if rng.random() < 0.5 else word
