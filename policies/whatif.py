"""A month once more, under other prices, other models or another cache: what would it have cost.

Knows: attempts with their tokens, the hits of each model, the rule of each change. Does not know: where they come from,
how a price is found. Says what it had to assume. Exact where tokens alone decide, proportional where they do not.
"""

from fractions import Fraction
from math import ceil
from typing import Literal

from msgspec import Struct

from policies.money import Price, Usage, bound_nano, cost_nano

CacheMode = Literal["as-it-was", "off", "exact"]
_MOST_MODELS = 10_000


class CacheWanted(Struct, frozen=True, kw_only=True):
    """`off`: every hit is asked; `exact`: hits by meaning are. `hit_rate`: of each model's requests that share is."""

    mode: CacheMode = "as-it-was"
    hit_rate: Fraction | None = None


class Attempt(Struct, frozen=True, kw_only=True):
    """One entry of the ledger. `bounded`: charged at its reservation. `audit`: asked only to check the cache.

    `fixed`: its amount does not follow from its tokens (a correction).
    """

    provider: str
    model: str
    usage: Usage
    amount: int
    bounded: bool = False
    audit: bool = False
    fixed: bool = False


class Hits(Struct, frozen=True, kw_only=True):
    """Requests of a model that the cache answered in one way, tokens of their answers, what asking had cost."""

    provider: str
    model: str
    source: str
    requests: int
    prompt: int
    completion: int
    saved: int


class Line(Struct, kw_only=True):
    """One model. `target`: what would have been asked instead. Amounts in nano-USD.

    `actual` is what was charged; `priced` the same attempts at the other price, without `audits`, those that checked
    the cache; `hits_asked` what hits would have cost that are no hits any more; `would` the whole.
    """

    provider: str
    model: str
    target: str
    requests: int = 0
    hits: int = 0
    actual: int = 0
    priced: int = 0
    audits: int = 0
    hits_asked: int = 0
    would: int = 0
    unpriced: int = 0


class Verdict(Struct, frozen=True, kw_only=True):
    """`assumed`: in sentences, all that the result rests on beside the ledger."""

    lines: list[Line]
    actual: int
    would: int
    assumed: list[str]


class Replay:
    """Takes attempts and hits one by one; keeps a line per model."""

    def __init__(self, cache: CacheWanted) -> None:
        self._cache = cache
        self._lines: dict[tuple[str, str], Line] = {}
        self._repriced = 0
        self._bounded = 0
        self._fixed = 0

    def attempt(self, found: Attempt, target: str, price: Price | None) -> None:
        """An attempt, the `provider/model` that would have been asked, and its price then.

        Without a price it keeps what it cost: nothing changes, or nobody knows what another model would have cost.
        """
        line = self._line(found.provider, found.model, target)
        line.requests += not (found.fixed or found.audit)
        line.actual += found.amount
        cost = self._cost(found, price, line)
        if found.audit:
            line.audits += cost
        else:
            line.priced += cost

    def _cost(self, found: Attempt, price: Price | None, line: Line) -> int:
        if found.fixed:
            self._fixed += 1
            return found.amount
        if price is None:
            line.unpriced += line.target != f"{found.provider}/{found.model}"
            return found.amount
        self._repriced += 1
        if found.bounded:
            self._bounded += 1
            return bound_nano(found.usage.prompt, found.usage.completion, price)
        return cost_nano(found.usage, price)

    def hits(self, found: Hits, target: str, price: Price | None) -> None:
        """Hits of a model, and the price that asking would have had now; None: what asking had cost then."""
        line = self._line(found.provider, found.model, target)
        line.hits += found.requests
        mode = self._cache.mode
        if self._cache.hit_rate is None and (mode == "off" or (mode == "exact" and found.source == "semantic")):
            line.hits_asked += _asked(found, price)

    def verdict(self) -> Verdict:
        """The whole, dearest difference first."""
        for line in self._lines.values():
            line.would = self._would(line)
        lines = sorted(
            self._lines.values(), key=lambda line: (-abs(line.would - line.actual), line.provider, line.model)
        )
        return Verdict(
            lines=lines,
            actual=sum(line.actual for line in lines),
            would=sum(line.would for line in lines),
            assumed=self._assumed(lines),
        )

    def _would(self, line: Line) -> int:
        kept = line.priced + line.hits_asked
        if self._cache.hit_rate is not None:
            rate, asked = self._cache.hit_rate, line.requests
            if asked:
                kept = ceil(Fraction(line.priced) * (asked + line.hits) * (1 - rate) / asked)
        return kept if self._cache.mode == "off" else kept + line.audits

    def _assumed(self, lines: list[Line]) -> list[str]:
        told: list[str] = []
        if self._repriced:
            told.append("every attempt is of the default service tier")
        if any(line.target != f"{line.provider}/{line.model}" for line in lines):
            told.append("another model reads and writes as many tokens as the one that was asked")
        if self._cache.mode != "as-it-was" and self._cache.hit_rate is None:
            told.append("a hit that is asked costs what its answer cost, or the mean of its tokens at the other price")
        if self._cache.mode == "exact":
            told.append("requests that shared an answer are asked one by one")
        if self._cache.mode == "off":
            told.append(
                "without a cache nothing is asked again to check it; looking prompts up costs nothing in entries"
            )
        if self._cache.hit_rate is not None:
            told.append("of each model any request is as likely to be a hit as any other, and retries stay as frequent")
        if self._bounded:
            told.append(f"{self._bounded} attempts nobody counted are at the most they can have cost")
        if self._fixed:
            told.append(f"{self._fixed} corrections stay as they are")
        unpriced = sum(line.unpriced for line in lines)
        if unpriced:
            told.append(f"{unpriced} attempts had no other price and stay at what they cost")
        return told

    def _line(self, provider: str, model: str, target: str) -> Line:
        line = self._lines.get((provider, model))
        if line is None:
            if len(self._lines) >= _MOST_MODELS:
                raise ValueError(f"more than {_MOST_MODELS} models; replay a shorter time")
            line = self._lines[provider, model] = Line(provider=provider, model=model, target=target)
        return line


def _asked(found: Hits, price: Price | None) -> int:
    if price is None or not found.requests:
        return found.saved
    mean = Usage(prompt=ceil(found.prompt / found.requests), completion=ceil(found.completion / found.requests))
    return found.requests * cost_nano(mean, price)
