"""What must match to the letter although an encoder hardly sees it: signs that stand alone, sums, letter case.

Knows one text's characters. Does not know words or meanings: what is only typography is left out, and being wrong costs
a hit only.
"""

import re
from typing import NamedTuple

_QUOTES = "\"'`\u201c\u201d\u2018\u2019\u00ab\u00bb"
_STOPS = ".,;:!?"
_DASHES = str.maketrans("\u2013\u2014\u2212", "---")
# Numbers, brackets and what joins them: "(2 + 3) * 4", "2025-03-05", "10 - 5".
_SUM = re.compile(r"[\d(][\d\s.,()+\-*/^\u00d7\u00f7<>=%]{0,80}[\d)]")
_JOINS = re.compile(r"(?<=[\d)])\s*[-+*/^\u00d7\u00f7<>=]+\s*(?=[\d(-])")
_NOTHING = re.compile(r"[\s,]+")
# "-d" and "-D" are two flags, "\d" and "\D" two classes; Mb and MB are bits and bytes, mW and MW a world apart.
_UNIT = r"(?:[KMGTPE]i?[bB]|kB|m[WAV]|M[WV])"
_CASED = re.compile(rf"(?<![\w-])-[A-Za-z]\b|\\[A-Za-z]\b|(?:\b|(?<=\d)){_UNIT}(?:ps|/s)?\b")
_LETTER = re.compile(r"(?<![\w'\u2019-])[A-Za-z](?![\w'\u2019])")


class Marks(NamedTuple):
    """`alone`: signs between spaces, in order. `sums`: arithmetic, ranges and dates in digits. `cased`: letters whose
    case says something, in order; none in a text that is all in capitals."""

    alone: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    cased: tuple[str, ...] = ()


def marks(text: str) -> Marks:
    """Everything of `text` that must match to the letter."""
    return Marks(_alone(text), _sums(text), () if text.isupper() else _cased(text))


def other_signs(a: Marks, b: Marks) -> bool:
    """`#` here and `@` there, or from € to £ and back. Where one has more of them that may be spacing: "Ben & Jerry",
    "how are you ?"."""
    return a.alone != b.alone and len(a.alone) == len(b.alone)


def other_sums(a: Marks, b: Marks) -> bool:
    """3 - 5 against 5 - 3, (2 + 3) * 4 against 2 + (3 * 4), 2025-03-05 against 2025-05-03."""
    return bool(a.sums and b.sums and a.sums != b.sums)


def other_case(a: Marks, b: Marks) -> bool:
    """The same letters in another case, where case tells them apart."""
    if a.cased == b.cased or not a.cased or not b.cased:
        return False
    folded_a, folded_b = ([item.casefold() for item in held.cased] for held in (a, b))
    return sorted(folded_a) == sorted(folded_b)


def _alone(text: str) -> tuple[str, ...]:
    found: list[str] = []
    tokens = text.translate(_DASHES).split()
    if tokens and not tokens[-1].strip(_STOPS):
        tokens.pop()  # "how do I reset it ?" and "how do I reset it !!"
    for token in tokens:
        bare = token.strip(_QUOTES)
        sign = bare.rstrip(_STOPS) or bare
        if sign and not any(letter.isalnum() for letter in sign):
            found.append(sign)
    return tuple(found)


def _sums(text: str) -> tuple[str, ...]:
    runs = (match[0] for match in _SUM.finditer(text))
    return tuple(sorted(_NOTHING.sub("", run).strip("()") for run in runs if _JOINS.search(run)))


def _cased(text: str) -> tuple[str, ...]:
    """Single letters only where one of them is there in both cases: "is X more than x"."""
    letters = _LETTER.findall(text)
    there = frozenset(letters)
    twice = {letter.casefold() for letter in there if letter.swapcase() in there}
    return (*_CASED.findall(text), *(letter for letter in letters if letter.casefold() in twice))
