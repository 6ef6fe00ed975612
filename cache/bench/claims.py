"""What an arm shows: claims with their figures, each kept or not.

Knows shares with their intervals and the three kinds of claims: never, at most a budget, and plain figures that claim
nothing. Does not know arms.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from cache.bench.figures import Rate, share


class Figure(Struct, frozen=True, kw_only=True):
    """`count` of `total`. `most`: the share it may not exceed, None where nothing is claimed.

    Broken where more than `most` is proven (the 95 % interval lies above); with `most` 0 a single case breaks it.
    """

    count: int
    total: int
    most: float | None = None

    @property
    def rate(self) -> Rate:
        return share(self.count, self.total)

    @property
    def kept(self) -> bool | None:
        if self.most is None:
            return None
        return self.count == 0 if self.most == 0.0 else self.rate.low <= self.most

    def told(self) -> dict[str, Any]:
        claim = {} if self.most is None else {"most": self.most, "kept": self.kept}
        return {"count": self.count, "of": self.total, **self.rate.told("rate"), **claim}

    def line(self, name: str) -> str:
        rate = self.rate
        mark = "" if self.kept is None else " kept" if self.kept else " BROKEN"
        limit = "" if self.most is None else f", at most {self.most:.2%}" if self.most else ", never"
        reach = f"{self.count}/{self.total} = {rate.value:.2%} ({rate.low:.2%} to {rate.high:.2%}{limit})"
        return f"{name.replace('_', ' ')} {reach}{mark}"


class Shown(Struct, frozen=True):
    """`facts`: numbers beside the figures, by name."""

    figures: Mapping[str, Figure]
    facts: Mapping[str, float | None] = {}

    @property
    def kept(self) -> bool:
        """Whether no claim is broken."""
        return all(figure.kept is not False for figure in self.figures.values())

    def told(self) -> dict[str, Any]:
        figures = {name: figure.told() for name, figure in self.figures.items()}
        return {"kept": self.kept, "figures": figures, "facts": dict(self.facts)}

    def line(self) -> str:
        return "; ".join(figure.line(name) for name, figure in self.figures.items())
