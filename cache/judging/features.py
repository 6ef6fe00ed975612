"""Two answers and their question as numbers: what the offline judge weighs.

Knows words, numbers, names, negation, refusals and, where it is given one, a cosine. Does not know weights.
"""

import math
import re

import numpy as np
from numpy.typing import NDArray

from cache.judging import MOST_TEXT, Pair
from policies.reuse.english import plainly
from policies.reuse.facts import Facts, analyse
from policies.reuse.guards import GUARDS, unmatched

NAMES = (
    *("bias", "cosine", "near", "core", "core_held", "core_left", "words", "trigrams", "lost", "new", "one_each"),
    *("numbers_agree", "numbers_part", "numbers_clash"),
    *("polar_clash", "refusal_clash", "longer", "short", "codes_clash"),
    *("negation", "antonym", "date", "name", "order", "kind", "logic"),
)
_SPOKEN = ("negation", "antonym", "date", "name", "order", "kind", "logic")
_YES = re.compile(r"^\W*(yes|yep|yeah|sure|of course|certainly|correct|true|absolutely)\b", re.IGNORECASE)
_NO = re.compile(r"^\W*(no|nope|not|never|unfortunately|false|incorrect)\b", re.IGNORECASE)
_REFUSAL = re.compile(
    r"\b(sorry|i (?:can(?:'t|not)|am not able|am unable|do(?:n'?t| not) (?:know|have))|as an ai|please (?:send|provide)"
    r"|nobody can say)\b",
    re.IGNORECASE,
)
_MARKUP = re.compile(r"```\w*|[*_`#>|]+|^\s*(?:[-+]|\d+[.)])\s+", re.MULTILINE)
_SPACES = re.compile(r"\s+")
_GROUPED = re.compile(r"(?<=\d),(?=\d{3}\b)")


def plain(text: str) -> str:
    """Without markup, list marks and grouped digits; one kind of space."""
    text = plainly(text[:MOST_TEXT])
    return _SPACES.sub(" ", _GROUPED.sub("", _MARKUP.sub(" ", text))).strip()


def normal(text: str) -> str:
    """What two spellings of one answer share: case, signs at the ends and spaces apart."""
    return plain(text).casefold().strip(" .,;:!?\"'\u201c\u201d()")


def equal(pair: Pair) -> bool:
    """The same text but for spelling; of long ones only where they are alike to the last letter."""
    if max(len(pair.kept), len(pair.fresh)) > MOST_TEXT:
        return pair.kept == pair.fresh
    return normal(pair.kept) == normal(pair.fresh)


def features(pair: Pair, cosine: float | None) -> NDArray[np.float64]:
    """`cosine` of the answers' embeddings; None where there is no encoder."""
    asked, kept, fresh = (analyse(plain(text)) for text in (pair.question, pair.kept, pair.fresh))
    near = 0.6 if cosine is None else cosine
    core_kept, core_fresh = _core(kept, asked), _core(fresh, asked)
    lost, new = unmatched(kept, fresh), unmatched(fresh, kept)
    both = len(core_kept & core_fresh)
    values = [
        *(1.0, near, max(0.0, near - 0.8)),
        _overlap(core_kept, core_fresh) if core_kept or core_fresh else float(kept.stem_set == fresh.stem_set),
        both / max(1, min(len(core_kept), len(core_fresh))),
        min(max(len(core_kept), len(core_fresh)) - both, 8) / 8,
        _overlap(kept.stem_set, fresh.stem_set),
        _overlap(kept.trigrams, fresh.trigrams),
        *(min(len(lost), len(new), 5) / 5, min(max(len(lost), len(new)), 8) / 8),
        float(len(lost - asked.stem_set) == len(new - asked.stem_set) == 1),
        *_numbers(kept, fresh, asked),
        float(_polarity(pair.kept) * _polarity(pair.fresh) < 0),
        float(bool(_REFUSAL.search(pair.kept)) != bool(_REFUSAL.search(pair.fresh))),
        abs(math.log2((1 + len(kept.words)) / (1 + len(fresh.words)))) / 4,
        float(min(len(kept.words), len(fresh.words)) <= 3),
        float(bool(kept.codes ^ fresh.codes)),
        *(float(GUARDS[name](kept, fresh)) for name in _SPOKEN),
    ]
    return np.asarray(values, np.float64)


def _core(answer: Facts, asked: Facts) -> frozenset[str]:
    """What an answer says beyond its question."""
    return answer.content_set - asked.content_set


def _numbers(kept: Facts, fresh: Facts, asked: Facts) -> tuple[float, float, float]:
    """All numbers alike; those of one among the other's; each has one that the other lacks."""
    told = {number.value for number in asked.numbers}
    a, b = ({number.value for number in facts.numbers} - told for facts in (kept, fresh))
    if not a and not b:
        return 0.0, 0.0, 0.0
    part = bool(a) and bool(b) and a != b and (a <= b or b <= a)
    return float(a == b), float(part), float(bool(a - b) and bool(b - a))


def _polarity(text: str) -> int:
    return 1 if _YES.match(text) else -1 if _NO.match(text) else 0


def _overlap(a: frozenset[str], b: frozenset[str]) -> float:
    return len(a & b) / max(1, len(a | b))
