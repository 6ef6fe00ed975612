"""Near misses and true paraphrases of the project's own writing, from sentence frames (`data/frames.txt`).

Knows the format of that file and which half is for training. The halves share no frame, so what is learned from one
can be tested on the other.
"""

from collections.abc import Iterator
from importlib.resources import files
from typing import Literal

from msgspec import Struct

from cache.bench.data import Pair

Half = Literal["train", "test", "all"]


class Frame(Struct, frozen=True, kw_only=True):
    """`text` with a near miss and a paraphrase, each with places for the parts of a fill."""

    tag: str
    number: int
    text: str
    miss: str
    paraphrase: str
    fills: tuple[tuple[str, ...], ...]


def frames() -> Iterator[Frame]:
    """All frames in the order written. Raises ValueError naming a line that is not one."""
    tag, number = "", 0
    for line in (files("cache.training") / "data" / "frames.txt").read_text("utf-8").splitlines():
        if line.startswith("## "):
            tag, number = line[3:].strip(), 0
        elif line and not line.startswith("#"):
            parts = [part.strip() for part in line.split(" | ")]
            if len(parts) != 4 or not tag:
                raise ValueError(f"not a frame: {line!r}")
            fills = tuple(tuple(item.strip() for item in fill.split(",")) for fill in parts[3].split(";"))
            yield Frame(tag=tag, number=number, text=parts[0], miss=parts[1], paraphrase=parts[2], fills=fills)
            number += 1


def pairs(half: Half) -> list[Pair]:
    """Every text with its near miss (label 0) and its paraphrase (label 1)."""
    found: list[Pair] = []
    for frame in frames():
        if half != "all" and (frame.number % 2 == 0) != (half == "train"):
            continue
        for fill in frame.fills:
            text, miss, paraphrase = (part.format(*fill) for part in (frame.text, frame.miss, frame.paraphrase))
            found.append(Pair(text, miss, same=False, tag=frame.tag))
            found.append(Pair(text, paraphrase, same=True, tag=frame.tag))
    return found
