"""What must match to the letter although an encoder hardly sees it: signs, operators, sums, letter case, quotations.

Knows one text's characters, and which words say the same as a sign. Does not know meanings: what is only typography is
left out, and being wrong costs a hit only.
"""

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from policies.reuse.english import bag

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
_OPERATORS = re.compile(r"(?<=[\w)\s])(\*\*|<=|>=|==|!=|[-+*/^<>=\u00d7\u00f7])(?=\s*[\w(-])")
_WORD_BEFORE, _WORD_AFTER = re.compile(r"[^\W\d_]{2}\s*$"), re.compile(r"\s*[^\W\d_]{2}")
_LETTER_AFTER = re.compile(r"\s*[^\W\d_]")
# Punctuation that changes nothing; every other sign (emoji, arrows, currencies) is part of what is asked. That of
# degrees says nothing that the number beside it does not.
_PLAIN = frozenset(".,;:!?'\"()[]-\u2013\u2014\u2026\u2018\u2019\u201c\u201d`_/\\*&@#\u00bf\u00a1~\u200d\ufe0f\u00b0")
_SPELLED = {
    "$": bag("dollar dollars usd buck bucks"),
    "\u20ac": bag("euro euros eur"),
    "\u00a3": bag("pound pounds gbp quid"),
    "\u00a5": bag("yen yuan"),
    "%": bag("percent percentage"),
}


class Marks(NamedTuple):
    """`alone`: signs between spaces, in order. `sums`: arithmetic, ranges and dates in digits. `cased`: letters whose
    case says something, in order; none in a text that is all in capitals."""

    alone: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    cased: tuple[str, ...] = ()


def marks(text: str) -> Marks:
    """Everything of `text` that must match to the letter."""
    return Marks(_alone(text), _sums(text), () if text.isupper() else _cased(text))


def operators(text: str, plain: Sequence[str]) -> tuple[str, ...]:
    """In order, where there is something to reckon with: digits, or an equation. `plain`: the text's words.

    A hyphen in a word is none ("a 3-day trip", "hand-knitted"), nor a dash beside one, nor the stroke of "km/h".
    """
    if "=" not in text and not any(word[0].isdigit() for word in plain):
        return ()
    return tuple(found[1] for found in _OPERATORS.finditer(text) if not _joins_words(text, found))


def symbols(text: str, plain: Sequence[str]) -> tuple[str, ...]:
    """What is neither letter nor digit nor typography, sorted; "percent" is its sign."""
    found = [letter for letter in text if not (letter.isalnum() or letter.isspace() or letter in _PLAIN)]
    return tuple(sorted([*found, *("%" for word in plain if word == "percent")]))


def other_symbols(one: Sequence[str], units: Collection[str], other: Sequence[str], others: Collection[str]) -> bool:
    """Signs of which one text has another number; of those that words say as well, only whether it stands there at all.

    `units`, `others`: the words behind each text's amounts. "$1000" is "1000 dollars"; "$100 in euros" is not "€100 in
    dollars".
    """
    if [sign for sign in one if sign not in _SPELLED] != [sign for sign in other if sign not in _SPELLED]:
        return True
    here, there = _SPELLED.keys() & one, _SPELLED.keys() & other
    return any(_SPELLED[sign].isdisjoint(others) for sign in here - there) or any(
        _SPELLED[sign].isdisjoint(units) for sign in there - here
    )


def unquoted(items: Collection[str], text: str) -> bool:
    """Whether one of the quoted `items` (casefolded) does not stand in `text`; a stop at its end is typography."""
    folded = text.casefold()
    return any((item.rstrip(_STOPS) or item) not in folded for item in items)


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


def _joins_words(text: str, found: re.Match[str]) -> bool:
    before, after = text[max(0, found.start() - 12) : found.start()], text[found.end() : found.end() + 12]
    loose = before[-1:].isspace()
    if found[1] == "-" and loose and not after[:1].isspace():
        return False  # a number below nothing
    if found[1] == "-":
        return bool(_WORD_AFTER.match(after) or (not loose and _WORD_BEFORE.search(before)))
    return found[1] == "/" and bool(_WORD_BEFORE.search(before) and _LETTER_AFTER.match(after))


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
