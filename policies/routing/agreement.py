"""How sure an answer is of itself, and what most of several answers say.

Pure. Does not know: who was asked, what an answer costs.
"""

import re
from collections.abc import Hashable, Sequence
from typing import cast

_SPACE = re.compile(r"\s+")
_EDGES = " \t\r\n.,;:!?\"'`*"


def mean_logprob(body: dict[str, object]) -> float | None:
    """The mean log probability of the tokens of an answer's first choice; None where it tells none."""
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return None
    told = cast("dict[str, object]", choices[0]).get("logprobs")
    rows = cast("dict[str, object]", told).get("content") if isinstance(told, dict) else None
    if not isinstance(rows, list) or not rows:
        return None
    found = [
        cast("dict[str, object]", row).get("logprob") for row in cast("list[object]", rows) if isinstance(row, dict)
    ]
    numbers = [float(value) for value in found if isinstance(value, (int, float))]
    return sum(numbers) / len(numbers) if numbers else None


def said(text: str) -> str:
    """A text as it is compared: case, spacing and what stands around it do not count."""
    return _SPACE.sub(" ", text.strip(_EDGES)).casefold()


def majority(answers: Sequence[Hashable | None]) -> tuple[int, int] | None:
    """The index of the first answer of the largest group, and the group's size; None counts for nobody.

    Between groups of the same size the one whose first answer came earlier in the list wins.
    """
    groups: dict[Hashable, list[int]] = {}
    for number, answer in enumerate(answers):
        if answer is not None:
            groups.setdefault(answer, []).append(number)
    if not groups:
        return None
    best = max(groups.values(), key=lambda members: (len(members), -members[0]))
    return best[0], len(best)
