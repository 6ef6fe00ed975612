"""What was read from pairs of texts, remembered over many runs that read the same texts again.

Knows that `policies.reuse.pairs.wording` depends on texts alone. It is pure, so a verdict cannot tell whether its
numbers were computed or remembered; a test compares whole runs. Does not know what the numbers mean.
"""

from collections.abc import Generator
from contextlib import contextmanager

from policies.reuse import pairs
from policies.reuse.facts import Facts, analyse
from policies.reuse.pairs import Wording, wording

# So many pairs of texts, about 400 bytes each; then everything is forgotten.
_MOST = 1_500_000


class _Memo:
    def __init__(self) -> None:
        self._facts: dict[str, Facts] = {}
        self._wordings: dict[tuple[str, str], Wording] = {}

    def analyse(self, text: str) -> Facts:
        if (found := self._facts.get(text)) is None:
            found = self._facts[text] = analyse(text)
        return found

    def wording(self, text: str, kept_text: str) -> Wording:
        ends = (text, kept_text)
        if (found := self._wordings.get(ends)) is None:
            if len(self._wordings) >= _MOST:
                self._wordings.clear()
            found = self._wordings[ends] = wording(text, kept_text)
        return found


@contextmanager
def remembered() -> Generator[None]:
    """Until it ends, whatever looks at pairs of texts in this process does so once for each pair."""
    memo = _Memo()
    pairs.analyse, pairs.wording = memo.analyse, memo.wording
    try:
        yield
    finally:
        pairs.analyse, pairs.wording = analyse, wording
