"""Varies the wording of a question: synonyms, fillers, dropped words, typing errors, upper and lower case.

Knows: text and a random source. Does not know: facts, tokens or training.
"""

import random
import re

from engine.demo.facts import lines, sections

_KEYS_NEARBY = {
    "a": "sq", "b": "vn", "c": "xv", "d": "sf", "e": "wr", "f": "dg", "g": "fh", "h": "gj", "i": "uo", "j": "hk",
    "k": "jl", "l": "k", "m": "n", "n": "bm", "o": "ip", "p": "o", "q": "wa", "r": "et", "s": "ad", "t": "ry",
    "u": "yi", "v": "cb", "w": "qe", "x": "zc", "y": "tu", "z": "x",
}  # fmt: skip
_SMALL_WORDS = frozenset(["a", "an", "the", "do", "does", "is", "are", "my", "to", "of", "it", "for", "in", "please"])
_LONGEST_SYNONYM = 5


class Wording:
    """Draws variations of a question from `data/synonyms.txt` and `data/fillers.txt` with one random source."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._groups: dict[str, list[str]] = {}
        for line in lines("synonyms"):
            group = line.split("|")
            for word in group:
                self._groups.setdefault(word, []).extend(other for other in group if other != word)
        found = sections("fillers")
        self._before, self._after = found["before"], found["after"]

    def vary(self, question: str) -> str:
        """A new wording of `question`; about one in ten comes back as it was, apart from case and final mark."""
        rng = self._rng
        text = question
        if rng.random() < 0.5:
            text = self.synonyms(text, 0.3)
        if rng.random() < 0.18:
            text = f"{rng.choice(self._before)} {text}"
        if rng.random() < 0.10:
            text = self._append(text)
        if rng.random() < 0.15:
            text = self._drop_small(text)
        if rng.random() < 0.12:
            text = self._drop_one(text)
        if rng.random() < 0.18:
            text = typing_error(rng, text)
            if rng.random() < 0.3:
                text = typing_error(rng, text)
        return self._case(self._mark(text))

    def synonyms(self, text: str, share: float) -> str:
        """Replaces about `share` of the words and phrases that have a synonym."""
        words = text.split(" ")
        out: list[str] = []
        at = 0
        while at < len(words):
            for size in range(min(_LONGEST_SYNONYM, len(words) - at), 0, -1):
                others = self._groups.get(" ".join(words[at : at + size]).lower())
                if others and self._rng.random() < share:
                    out.append(self._rng.choice(others))
                    at += size
                    break
            else:
                out.append(words[at])
                at += 1
        return " ".join(out)

    def _append(self, text: str) -> str:
        tail = self._rng.choice(self._after)
        return text + tail if tail.startswith(",") else f"{text} {tail}"

    def _drop_small(self, text: str) -> str:
        kept = [word for word in text.split(" ") if word.lower() not in _SMALL_WORDS or self._rng.random() < 0.4]
        return " ".join(kept) if kept else text

    def _drop_one(self, text: str) -> str:
        words = text.split(" ")
        if len(words) < 6:
            return text
        del words[self._rng.randrange(len(words))]
        return " ".join(words)

    def _mark(self, text: str) -> str:
        draw = self._rng.random()
        if text[-1:] in "?!.":
            return text
        return text + (
            "?" if draw < 0.5 else "." if draw < 0.58 else "!" if draw < 0.6 else "??" if draw < 0.61 else ""
        )

    def _case(self, text: str) -> str:
        draw = self._rng.random()
        if draw < 0.42:
            return text[:1].upper() + text[1:]
        if draw < 0.62:
            return text.lower()
        if draw < 0.80:
            return text.upper()
        if draw < 0.83:
            return text.title()
        return text


def typing_error(rng: random.Random, text: str) -> str:
    """One letter lost, doubled, swapped with the next or hit beside; texts of fewer than six letters stay."""
    places = [found.start() for found in re.finditer(r"[a-zA-Z]", text)]
    if len(places) < 6:
        return text
    at = rng.choice(places)
    kind = rng.randrange(4)
    if kind == 0:
        return text[:at] + text[at + 1 :]
    if kind == 1:
        return text[: at + 1] + text[at:]
    if kind == 2:
        return text[:at] + text[at + 1 : at + 2] + text[at] + text[at + 2 :]
    return text[:at] + rng.choice(_KEYS_NEARBY[text[at].lower()]) + text[at + 1 :]


def plain_words(text: str) -> list[str]:
    """The words of letters in `text`, in lower case."""
    return re.findall(r"[a-z]{3,}", text.lower())
