"""How the worker's log is written: one line an event, and for a fault the calls that led to it, never their variables.

structlog's own way prints every frame's variables where `rich` is installed: keys, prompts, answers. So whoever imports
this first has a structlog that never saw `rich`, which is 4 MB too.
Knows: structlog. Does not know who logs what.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import ModuleType
from typing import cast


@contextmanager
def _as_if_not_installed(name: str) -> Generator[None]:
    """None in the module cache is Python's own word for a module that is not there (reference, 5.3.1)."""
    cache = cast("dict[str, ModuleType | None]", sys.modules)
    before = cache.get(name)
    if before is None:
        cache[name] = None
    try:
        yield
    finally:
        if before is None:
            del cache[name]


with _as_if_not_installed("rich"):
    import structlog


def configure() -> None:
    """For the whole process; to be called before anything is served."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.StackInfoRenderer(),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
        ]
    )
