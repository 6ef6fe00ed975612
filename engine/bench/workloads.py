"""What every engine is asked in a comparison: token ids, how many at once, when.

Knows: seeded random prompts. Does not know: who answers, clocks. Ids below `_FIRST` are special and never asked.
"""

import random

from msgspec import Struct

_FIRST = 4


class Workload(Struct, frozen=True, kw_only=True):
    """`prompts` come together, except the last `late`: those come when all others have made `after` tokens.

    `outputs`: tokens to write per prompt. `reuse`: prefixes may be cached; `first` is asked alone before, uncounted.
    """

    name: str
    prompts: list[list[int]]
    outputs: list[int]
    late: int = 0
    after: int = 0
    reuse: bool = False
    first: list[int] = []
    one_by_one: bool = False


NAMES = ("one", "sixteen", "prefix", "long")


def make(name: str, vocabulary: int, seed: int, *, long_prompt: int = 8192) -> Workload:
    """A workload by name. Another `seed`, other prompts: repeats must not find each other's prefixes."""
    draw = random.Random(f"{name}/{seed}")  # noqa: S311  (a workload, not a secret)

    def prompt(length: int) -> list[int]:
        return [draw.randrange(_FIRST, vocabulary) for _ in range(length)]

    if name == "one":
        return Workload(name=name, prompts=[prompt(64) for _ in range(4)], outputs=[48] * 4, one_by_one=True)
    if name == "sixteen":
        return Workload(name=name, prompts=[prompt(draw.randint(20, 120)) for _ in range(16)], outputs=[48] * 16)
    if name == "prefix":
        shared = prompt(512)
        prompts = [shared + prompt(32) for _ in range(16)]
        return Workload(name=name, prompts=prompts, outputs=[16] * 16, reuse=True, first=shared + prompt(16))
    prompts = [prompt(32) for _ in range(8)] + [prompt(long_prompt)]
    return Workload(name=name, prompts=prompts, outputs=[192] * 8 + [8], late=1, after=24)
