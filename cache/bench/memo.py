"""What was read from texts, remembered over many runs that read the same texts again.

Knows which functions of `policies.reuse.pairs` depend on texts alone. They are pure, so a verdict cannot tell whether
its numbers were computed or remembered; a test compares whole runs. Does not know what the numbers mean.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from policies.reuse import pairs
from policies.reuse.facts import Facts, analyse
from policies.reuse.guards import GUARDS, Guard, unmatched

# So many pairs of texts, about 300 bytes each; then everything is forgotten.
_MOST = 1_500_000
Ends = tuple[str, str]


class _Memo:
    """Texts to facts, pairs of texts to the guards that speak (one bit each) and to topic words without a match."""

    def __init__(self) -> None:
        self._facts: dict[str, Facts] = {}
        self._masks: dict[Ends, int] = {}
        self._unmatched: dict[Ends, frozenset[str]] = {}

    def analyse(self, text: str) -> Facts:
        if (found := self._facts.get(text)) is None:
            found = self._facts[text] = analyse(text)
        return found

    def unmatched(self, a: Facts, b: Facts) -> frozenset[str]:
        ends = (a.text, b.text)
        if (found := self._unmatched.get(ends)) is None:
            if len(self._unmatched) >= _MOST:
                self._unmatched.clear()
            found = self._unmatched[ends] = unmatched(a, b)
        return found

    def guards(self) -> dict[str, Guard]:
        return {name: self._guard(1 << i) for i, name in enumerate(GUARDS)}

    def _guard(self, bit: int) -> Guard:
        masks = self._masks

        def speaks(a: Facts, b: Facts) -> bool:
            ends = (a.text, b.text)
            if (mask := masks.get(ends)) is None:
                if len(masks) >= _MOST:
                    masks.clear()
                mask = masks[ends] = sum(1 << i for i, guard in enumerate(GUARDS.values()) if guard(a, b))
            return bool(mask & bit)

        return speaks


@contextmanager
def remembered() -> Generator[None]:
    """Until it ends, whatever looks at pairs of texts in this process does so once for each pair."""
    memo = _Memo()
    fast: dict[str, Callable[..., Any] | dict[str, Guard]] = {
        "analyse": memo.analyse,
        "unmatched": memo.unmatched,
        "GUARDS": memo.guards(),
    }
    held = {name: getattr(pairs, name) for name in fast}
    for name, value in fast.items():
        setattr(pairs, name, value)
    try:
        yield
    finally:
        for name, value in held.items():
            setattr(pairs, name, value)
