"""Nearest vectors by cosine, one index per scope.

Knows the protocol every index obeys and how to find one by name (a file in this folder).
Does not know entries, tenants or time. Not safe for concurrent use: its owner serialises calls.
"""

from collections.abc import Sequence
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import NamedTuple, Protocol

from cache.vectors import Vector


class Near(NamedTuple):
    """A neighbour: `similarity` is the cosine, higher is closer."""

    entry_id: int
    similarity: float


class Index(Protocol):
    """Vectors are float32 and normalised. Ids are unique and non-negative, below 2**63."""

    def __len__(self) -> int: ...

    def add(self, ids: Sequence[int], vectors: Vector) -> None:
        """`vectors`: `(len(ids), dimension)`. Raises ValueError for another shape."""
        ...

    def remove(self, ids: Sequence[int]) -> int:
        """The number really removed; unknown ids are no error."""
        ...

    def search(self, vector: Vector, k: int) -> list[Near]:
        """At most `k` neighbours of `vector` (`(dimension,)`), closest first."""
        ...


def known() -> list[str]:
    return sorted(module.name for module in iter_modules(__path__))


def load(kind: str) -> ModuleType:
    """The module of an index kind. Raises LookupError naming the known ones."""
    if kind not in known():
        raise LookupError(f"Unknown index {kind!r}. Known: {', '.join(known())}.")
    return import_module(f"{__name__}.{kind}")
