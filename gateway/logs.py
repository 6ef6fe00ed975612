"""How the worker's log is written: one line an event, and for a fault the calls that led to it, never their variables.

structlog's own way prints every frame's variables where `rich` is installed: keys, prompts, answers. So whoever imports
this first has a structlog that never saw `rich`, which is 4 MB too.
Knows: structlog. Does not know who logs what.
"""

import logging
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import cast

import msgspec

from gateway.log_lines import Form


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


_SHARED = (
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.StackInfoRenderer(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)


def configure(form: Form = "text") -> None:
    """What is said through structlog, for the whole process; to be called before anything is served."""
    structlog.configure(processors=[*_SHARED, *_rendering(form)])


def configure_plain(form: Form) -> None:
    """What libraries and our lower rooms say through Python's own logging: warnings and worse, in the same form.

    Without it their messages came without time, level or name.
    """
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering(form)],
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *_SHARED],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def _rendering(form: Form) -> list[structlog.typing.Processor]:
    if form == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_encoded)]
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=False, exception_formatter=plain)]


def _encoded(event: Mapping[str, object], **_: object) -> str:
    """What JSON has no word for is written as Python would print it."""
    return msgspec.json.encode(event, enc_hook=repr).decode()
