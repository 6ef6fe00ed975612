"""Engines that are asked the same: one file each, its name is the engine's.

A peer is a module with `start(folder, threads, workload) -> Peer`, an async context manager. Importing one may fail
where its library is missing: the comparison then says so and goes on without it.
"""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Protocol, cast

from msgspec import Struct

from engine.bench.workloads import Workload


class Peer(Protocol):
    """Greedy continuation of token ids."""

    def generate(self, prompt: list[int], outputs: int) -> AsyncGenerator[list[int], None]:
        """New tokens as they come, `outputs` in all."""
        ...


class Setting(Struct, frozen=True):
    """`threads`: of torch or ggml, nothing else is limited. `weights`: one of WEIGHTS."""

    folder: Path
    threads: int
    workload: Workload
    weights: str = "float32"

    def plain(self) -> None:
        """Raises ImportError unless weights are float32: for peers that are asked with no others."""
        if self.weights != "float32":
            raise ImportError(f"asked with float32 weights only, not {self.weights}")


WEIGHTS = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0, "int4": 0.5}  # bytes, without scales


def known() -> list[str]:
    return sorted(module.name for module in iter_modules(__path__))


def start(name: str, setting: Setting) -> AbstractAsyncContextManager[Peer]:
    """Raises LookupError for an unknown name, ImportError where its library is missing."""
    if name not in known():
        raise LookupError(f"Unknown peer {name!r}. Known: {', '.join(known())}.")
    module = import_module(f"{__name__}.{name}")
    return cast("AbstractAsyncContextManager[Peer]", module.start(setting))
