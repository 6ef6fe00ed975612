"""When an answer given to one text may serve another: the protocol every reuse policy obeys, and how to find one.

Knows texts, similarities and verdicts. Does not know tenants (only candidates of the asker's own scope get here),
stores, clocks or chance: the same question and neighbours always get the same verdict.
"""

from collections.abc import Sequence
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Protocol

from msgspec import Struct


class Neighbour(Struct, frozen=True, kw_only=True):
    """A kept text near the question. `similarity`: cosine of the embeddings. `age` in seconds."""

    entry_id: int
    text: str
    similarity: float
    age: float = 0.0


class Budget(Struct, frozen=True, kw_only=True):
    """How much error is allowed: wrong answers over all requests, and over answers served from the cache."""

    max_error_rate: float = 0.01
    max_wrong_hit_rate: float = 0.05


class Note(Struct, frozen=True, kw_only=True):
    """What was thought of one neighbour: the guard that forbade it, if one did."""

    entry_id: int
    guard: str | None = None
    confidence: float | None = None


class Serve(Struct, frozen=True, kw_only=True):
    """Answer with this entry. `confidence`: estimated probability that its answer is right here."""

    entry_id: int
    confidence: float
    notes: tuple[Note, ...] = ()


class Explore(Struct, frozen=True, kw_only=True):
    """Ask the model, then compare its answer with this entry's: that is how boundaries are learned."""

    entry_id: int
    notes: tuple[Note, ...] = ()


class Regenerate(Struct, frozen=True, kw_only=True):
    """Ask the model. `reason` in a word: far, guard, budget …"""

    reason: str
    notes: tuple[Note, ...] = ()


Verdict = Serve | Explore | Regenerate


class ReusePolicy(Protocol):
    """Pure: no memory between calls, no clock, no chance."""

    @property
    def floor(self) -> float:
        """No neighbour below this similarity can ever be served, so it need not be fetched."""
        ...

    def judge(self, text: str, neighbours: Sequence[Neighbour], budget: Budget) -> Verdict:
        """What to do with `text`, given the nearest kept texts in any order."""
        ...


def known() -> list[str]:
    """Policies have a module of their own with a class `Policy`; the others are what they are made of."""
    parts = {"guards", "english", "facts", "lexicon", "roles"}
    return sorted(module.name for module in iter_modules(__path__) if module.name not in parts)


def load(name: str) -> ModuleType:
    """The module of a policy. Raises LookupError naming the known ones."""
    if name not in known():
        raise LookupError(f"Unknown reuse policy {name!r}. Known: {', '.join(known())}.")
    return import_module(f"{__name__}.{name}")
