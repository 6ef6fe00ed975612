"""A question and a kept answer as numbers: what a learned boundary looks at.

Knows the two texts' facts, which guards speak, and how the answer's keys stand among the other neighbours. Does not
know weights: whether a number is good or bad news is learned. Every feature is bounded, so nobody can shout.
"""

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from policies.reuse import Neighbour
from policies.reuse.facts import Facts, analyse
from policies.reuse.guards import GUARDS, is_same, unmatched

Vector = NDArray[np.float32]

# Features of `Wording` that stand before "novel".
_BEFORE_NOVEL = 5
# How fast a neighbour's say fades with its distance from the nearest.
_REACH = 0.03
# What stands in for "the best other answer" while there is none.
_NOBODY = 0.45
_CLOSE = 0.06
_DENSE = (
    "bias",
    "cosine",
    "above_70",
    "above_80",
    "above_90",
    "above_95",
    "margin",
    "behind",
    "alone",
    "share",
    "keys",
    "second_key",
    "crowd",
    "jaccard",
    "containment",
    "trigrams",
    "missing_here",
    "missing_there",
    "novel",
    "same_content",
    "same_words",
    "one_each",
    "longer",
    "shorter",
    "length",
    "same_question",
    "names_shared",
    "numbers_shared",
    "record",
    "known",
    "read",
    "reading",
    "reading_sure",
    "objections",
)
# The last one is the word of a model that has read both texts.
GUARD_NAMES = (*GUARDS, "reader")
# Guards over what an encoder cannot see: nearness alone must not outvote them.
HARD = frozenset(GUARD_NAMES) - {"substitution"}
NAMES = (*_DENSE, *(f"guard_{name}" for name in GUARD_NAMES))
WIDTH = len(NAMES)
_READ = NAMES.index("read")
# What a reader's log odds must be to count: below the first it forbids, from the second on it explains what no rule
# explains. Chosen on pairs it had not learned from (`docs/decisions.md`).
FORBIDS, EXPLAINS = 3.2, 4.0
# Log odds beyond which a reader is as good as certain, and from where on it is rather sure.
_SURE, _RATHER = 4.5, 2.5


class Candidate(Struct, frozen=True, kw_only=True):
    """One answer near the question, with its nearest key. `read`: a model has read both texts, or need not, since they
    say the very same. `readable`: none has, and if one did and found them alike no guard would be left that must not
    be outvoted."""

    nearest: Neighbour
    features: Vector
    guards: tuple[str, ...]
    read: bool = False
    readable: bool = False


class Wording(Struct, frozen=True):
    """What two texts alone say: `features`, the `guards` that forbid, topic words of the question the kept text does
    not have (`missing`), and whether they are the very `same`."""

    features: tuple[float, ...]
    guards: tuple[str, ...]
    missing: frozenset[str]
    same: bool = False


def candidates(text: str, neighbours: Sequence[Neighbour], limit: int) -> list[Candidate]:
    """The nearest `limit` answers, nearest first; ties in the order of their ids, so that any order gives the same."""
    ordered = sorted(neighbours, key=lambda item: (-item.similarity, item.entry_id))
    groups: dict[int, list[Neighbour]] = {}
    for neighbour in ordered:
        groups.setdefault(neighbour.answer, []).append(neighbour)
    if not groups:
        return []
    weights = {answer: _weight(keys, ordered[0].similarity) for answer, keys in groups.items()}
    total = sum(weights.values())
    found: list[Candidate] = []
    for answer, keys in list(groups.items())[:limit]:
        other = max((held[0].similarity for name, held in groups.items() if name != answer), default=None)
        crowd = sum(held[0].similarity > keys[0].similarity - _CLOSE for held in groups.values()) - 1
        told = wording(text, keys[0].text)
        reading = _SURE if told.same else keys[0].reading
        guards = after_reading(told.guards, reading)
        features = [
            *_nearness(keys, other, weights[answer] / total, crowd),
            *told.features[:_BEFORE_NOVEL],
            _novel(told.missing, keys),
            *told.features[_BEFORE_NOVEL:],
            *_record(keys[0]),
            *_reading(reading),
            *_objections(guards),
        ]
        left = HARD.intersection(guards) - {"unexplained"}
        read = reading is not None
        vector = np.asarray(features, np.float32)
        found.append(
            Candidate(nearest=keys[0], features=vector, guards=guards, read=read, readable=not read and not left)
        )
    return found


def after_reading(guards: tuple[str, ...], reading: float | None) -> tuple[str, ...]:
    """The guards that speak once a model has read both texts: one more, or one less."""
    if reading is None:
        return guards
    if reading >= EXPLAINS:
        return tuple(name for name in guards if name != "unexplained")
    return (*guards, "reader") if reading < FORBIDS else guards


def if_alike(candidate: Candidate) -> Candidate:
    """The candidate, had a model read both texts and found them alike beyond doubt."""
    guards = after_reading(candidate.guards, _SURE)
    features = candidate.features.copy()
    features[_READ:] = [*_reading(_SURE), *_objections(guards)]
    return replace(candidate, features=features, guards=guards)


def _reading(odds: float | None) -> list[float]:
    """Whether somebody has read both texts, what was found, and how sure that was."""
    if odds is None:
        return [0.0, 0.0, 0.0]
    cut = min(max(odds, -_SURE), _SURE)
    return [1.0, cut / _SURE, max(0.0, cut - _RATHER)]


def _objections(guards: tuple[str, ...]) -> list[float]:
    return [min(sum(name in HARD for name in guards), 2) / 2, *(float(name in guards) for name in GUARD_NAMES)]


def wording(text: str, kept_text: str) -> Wording:
    """Pure in both texts, and most of the work: whoever asks for the same pair often may remember it."""
    asked, kept = analyse(text), analyse(kept_text)
    missing_here, missing_there = unmatched(asked, kept), unmatched(kept, asked)
    same = is_same(asked, kept)
    guards = () if same else tuple(name for name, guard in GUARDS.items() if guard(asked, kept))
    return Wording(_compared(asked, kept, missing_here, missing_there), guards, missing_here, same)


def _weight(keys: Sequence[Neighbour], best: float) -> float:
    return sum(math.exp((key.similarity - best) / _REACH) for key in keys)


def _nearness(keys: Sequence[Neighbour], other: float | None, share: float, crowd: int) -> list[float]:
    top = min(1.0, max(-1.0, keys[0].similarity))
    lead = top - (_NOBODY if other is None else other)
    second = keys[1].similarity if len(keys) > 1 else 0.0
    return [
        1.0,
        top,
        max(0.0, top - 0.7),
        max(0.0, top - 0.8),
        max(0.0, top - 0.9),
        max(0.0, top - 0.95),
        min(0.3, max(0.0, lead)),
        min(0.3, max(0.0, -lead)),
        float(other is None),
        share,
        math.log2(len(keys)),
        max(0.0, second - top + 0.1) if len(keys) > 1 else 0.0,
        min(crowd, 5) / 5,
    ]


def _compared(
    asked: Facts, kept: Facts, missing_here: frozenset[str], missing_there: frozenset[str]
) -> tuple[float, ...]:
    here, there = asked.content_set, kept.content_set
    both = len(here & there)
    words_a, words_b = len(asked.words), len(kept.words)
    return (
        both / max(1, len(here | there)),
        both / max(1, min(len(here), len(there))),
        len(asked.trigrams & kept.trigrams) / max(1, len(asked.trigrams | kept.trigrams)),
        min(len(missing_here), 4) / 4,
        min(len(missing_there), 4) / 4,
        float(not missing_here and not missing_there),
        float(asked.stem_set == kept.stem_set),
        float(len(missing_here) == 1 and len(missing_there) == 1),
        min(1.0, max(0, words_a - words_b) / max(words_a, 1)),
        min(1.0, max(0, words_b - words_a) / max(words_b, 1)),
        min(1.0, math.log2(1 + min(words_a, words_b)) / 6),
        float(asked.question == kept.question),
        float(bool(asked.names & kept.stem_set)),
        float(bool(asked.numbers) and len(asked.numbers) == len(kept.numbers)),
    )


def _novel(missing: frozenset[str], keys: Sequence[Neighbour]) -> float:
    """How many topic words no key of the answer has."""
    for key in keys if missing else ():
        missing -= analyse(key.text).stem_set
    return min(len(missing), 4) / 4


def _record(key: Neighbour) -> list[float]:
    """What became of this answer before: even is 0, and how much is known."""
    count = key.good + key.bad
    return [math.log((key.good + 1.0) / (key.bad + 1.0)), min(1.0, count / 5)]
