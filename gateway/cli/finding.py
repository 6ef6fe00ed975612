"""What a check of `nearhit doctor` has found. Knows: words. Does not know: any check."""

from typing import NamedTuple


class Finding(NamedTuple):
    """`mend` is empty when all is well or nothing can be done."""

    name: str
    good: bool
    words: str
    mend: str = ""
