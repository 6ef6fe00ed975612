"""Nearest vectors by cosine, one index per scope.

Knows the protocol every index obeys and how to find one by name (a file in this folder).
Does not know entries, tenants or time. Not safe for concurrent use, but for searches beside searches: its owner sees
to that.
"""

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import NamedTuple, Protocol

from cache.vectors import Ids, Vector


class Near(NamedTuple):
    """A neighbour: `similarity` is the cosine, higher is closer."""

    entry_id: int
    similarity: float


class Index(Protocol):
    """Vectors are float32 and normalised. Ids are unique and non-negative, below 2**63."""

    @property
    def dimension(self) -> int: ...

    def __len__(self) -> int: ...

    def add(self, ids: Sequence[int] | Ids, vectors: Vector) -> None:
        """`vectors`: `(len(ids), dimension)`. Raises ValueError for another shape, NaN, zero, or another length."""
        ...

    def remove(self, ids: Sequence[int]) -> int:
        """The number really removed; unknown ids are no error."""
        ...

    def search(self, vector: Vector, k: int) -> list[Near]:
        """At most `k` neighbours of `vector` (`(dimension,)`), closest first. Raises ValueError as `add` does."""
        ...

    def blocks(self) -> Iterator[tuple[Ids, Vector]]:
        """All that is held, in pieces that fit the memory. It must not be changed meanwhile."""
        ...

    def save(self, path: Path) -> None:
        """Write it to a file that `restore` of the same kind reads."""
        ...


def known() -> list[str]:
    return sorted(module.name for module in iter_modules(__path__) if not module.name.startswith("_"))


def load(kind: str) -> ModuleType:
    """The module of an index kind: `Index(dimension)` makes an empty one, `restore(path, dimension)` reads a file.

    Raises LookupError naming the known ones.
    """
    if kind not in known():
        raise LookupError(f"Unknown index {kind!r}. Known: {', '.join(known())}.")
    return import_module(f"{__name__}.{kind}")
