"""Ways of saying one thing in several words, or in one: brought to one spelling before texts are compared.

"With no sugar" and "without sugar", "second-hand" and "used", "last night" and "yesterday evening". Word for word these
look like an opposite, an ordinal, another day. Data, and the step that reads it; does not know what is compared.
"""

from collections.abc import Sequence

from policies.reuse.english import Word

_SAID_AS = """
with no: without|second hand: used|secondhand: used|last night: yesterday evening|another one: another|
can not remember: forgot|do not remember: forgot|no longer remember: forgot|do not forget: remember|
how much time: how long|which one of the two: which|which of the two: which|which of these two: which|
which of those two: which|fill out: fill in|fills out: fills in|filled out: filled in|filling out: filling in|
in the fall: in autumn|during the fall: during autumn|this fall: this autumn|next fall: next autumn|
last fall: last autumn|every fall: every autumn|each fall: each autumn|in the spring: in spring|
during the spring: during spring|wi fi: wifi|e mail: email|car park: parking lot|car parks: parking lots|
camper van: campervan|camper vans: campervans|air plane: plane|motor bike: motorbike|face to face: in person|
everyday: daily|coming week: next week|coming weekend: next weekend|coming month: next month
"""
_IDIOMS: dict[tuple[str, ...], tuple[str, ...]] = {
    tuple(said.split()): tuple(meant.split())
    for said, _, meant in (row.partition(":") for row in _SAID_AS.replace("\n", "").split("|"))
}
_BEGINNINGS = frozenset(said[0] for said in _IDIOMS)
_LENGTHS = sorted({len(said) for said in _IDIOMS}, reverse=True)


def plainer(sequence: Sequence[Word]) -> list[Word]:
    """The same words with each idiom, the longest first, said as its other form."""
    found: list[Word] = []
    at = 0
    while at < len(sequence):
        said = _idiom_at(sequence, at) if sequence[at].text in _BEGINNINGS else ()
        if not said:
            found.append(sequence[at])
            at += 1
            continue
        begin = sequence[at]  # it keeps what was written
        found += [Word(text, begin.form if i == 0 else "", begin.start) for i, text in enumerate(_IDIOMS[said])]
        at += len(said)
    return found


def _idiom_at(sequence: Sequence[Word], at: int) -> tuple[str, ...]:
    for length in _LENGTHS:
        said = tuple(word.text for word in sequence[at : at + length])
        if said in _IDIOMS:
            return said
    return ()
