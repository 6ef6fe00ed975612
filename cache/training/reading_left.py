"""What the rules leave to the reader: which pairs of groups no guard refuses, near enough to be asked about.

Most near misses are refused before anybody reads (`policies.reuse.guards`), and what is read is harder than the rest.
A pass over that alone teaches a reader its own task. Knows groups, nearness, guards. Does not know how it is taught.
"""

import random
from collections.abc import Sequence

from msgspec import Struct

from cache.bench.vectors import Embedder
from policies.reuse.pairs import HARD, wording

Texts = tuple[str, str]
Labelled = tuple[Texts, bool]

# Below, no scope of its own accord serves anything; the encoder's cosine.
_NEAR = 0.86
# Of other pairs, beside each that is left: enough not to forget them.
_BESIDE = 0.25


class Left(Struct, frozen=True):
    """Of one group, or one set of pairs. `others`: far apart, or refused by a rule."""

    alike: list[Labelled]
    unlike: list[Labelled]
    others: list[Labelled]


class Remaining:
    """Draws the pairs of an epoch. `held`: groups of labelled pairs."""

    def __init__(self, held: Sequence[Sequence[Labelled]], embedder: Embedder, seed: int) -> None:
        embedder.embed([text for pairs in held for texts, _ in pairs for text in texts])  # together: it remembers them
        self._groups = [left(pairs, embedder) for pairs in held if pairs]
        self._drawn = random.Random(seed)  # noqa: S311 - which pairs an epoch has

    def epoch(self, alike: int, unlike: int) -> list[Labelled]:
        """In random order, each pair in either direction: at most so many of a group, and some of its others."""
        found: list[Labelled] = []
        for group in self._groups:
            chosen = [*self._some(group.alike, alike), *self._some(group.unlike, unlike)]
            found += chosen
            found += self._some(group.others, int(len(chosen) * _BESIDE + self._drawn.random()))
        self._drawn.shuffle(found)
        return [((b, a) if self._drawn.random() < 0.5 else (a, b), same) for (a, b), same in found]

    def _some(self, pairs: list[Labelled], most: int) -> list[Labelled]:
        return pairs if len(pairs) <= most else self._drawn.sample(pairs, most)


def left(pairs: Sequence[Labelled], embedder: Embedder) -> Left:
    """`pairs` by what the rules say of them; an unread pair counts as left where reading could make it a hit."""
    found = Left([], [], [])
    first, second = (embedder.embed([texts[side] for texts, _ in pairs]) for side in (0, 1))
    for (texts, same), cosine in zip(pairs, (first * second).sum(axis=1).tolist(), strict=True):
        if cosine < _NEAR or not _is_left(*texts):
            found.others.append((texts, same))
        else:
            (found.alike if same else found.unlike).append((texts, same))
    return found


def _is_left(kept: str, asked: str) -> bool:
    """As `policies.reuse.pairs.Candidate.readable`."""
    told = wording(asked, kept)
    return not told.same and not (HARD.intersection(told.guards) - {"unexplained"})
