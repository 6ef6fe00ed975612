"""Launches without a device: every kernel that is launched is compiled for sm_90, and what would refuse it is raised.

Knows: Triton's drivers, what sm_90 allows. Does not know: which kernels there are, models.

`Bench` takes the place of Triton's driver. Whatever runs with it on tensors of the device `meta` goes the way it would
go on a GPU, with the very specialisations it would be launched with there, up to the launch itself. So a kernel that
asks for too much shared memory or too wide a grid is found here; and what was compiled lies in Triton's cache
(TRITON_CACHE_DIR), which may be carried to a machine with the same Triton.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

SHARED_BYTES = 232_448  # of a program on sm_90 (227 KB, CUDA C++ programming guide, table of compute capabilities)
_THREADS = 1024
_GRID = (2**31 - 1, 65_535, 65_535)


class GridTooWide(RuntimeError):
    """A launch with more programs than a device takes. The message says which."""


class Launch(Struct, frozen=True):
    """What was launched: `key` names the compiled variant in Triton's cache."""

    kernel: str
    grid: tuple[int, int, int]
    shared: int
    warps: int
    key: str


class Bench:
    """A driver for Triton that compiles and checks and launches nothing. `launches`: all of them, in order."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.utils = self

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_device_properties(self, _device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED_BYTES}

    def load_binary(self, *_: object) -> tuple[int, int, int, int, int]:
        """Module, function, registers, spills, the most threads: all but the last made up."""
        return 1, 1, 0, 0, _THREADS

    def unload_module(self, _module: int) -> None:
        """Newer Tritons do so at the end."""

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        """What launches one compiled variant."""
        name, key = source.fn.__name__, metadata.hash

        def launch(x: int, y: int, z: int, *_: object) -> None:
            grid = (x, y, z)
            if any(not 0 < size <= most for size, most in zip(grid, _GRID, strict=True)):
                raise GridTooWide(f"{name} is launched with a grid of {grid}, a device takes {_GRID}.")
            here = driver.active  # Triton keeps what launches; another bench may have taken this one's place
            assert isinstance(here, Bench)
            here.launches.append(Launch(name, grid, metadata.shared, metadata.num_warps, key))

        return launch


@contextmanager
def no_device() -> Generator[Bench]:
    """Within it kernels are compiled and checked, not launched. Launches raise OutOfResources, GridTooWide."""
    kept: Any = driver  # reading its public name would look for a device
    before = kept._active
    bench = Bench()
    driver.set_active(bench)  # pyright: ignore[reportArgumentType]  (it has what is asked of a driver here)
    try:
        yield bench
    finally:
        kept._active = before
