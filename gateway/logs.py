"""How the worker's log is written: one line an event, and for a fault the calls that led to it, never their variables.

structlog's own way prints every frame's variables where `rich` is installed: keys, prompts, answers.
Knows: structlog. Does not know who logs what.
"""

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
