"""One line of JSON for whatever a process of the gateway says, where `server.log` is `json`.

The supervisor and the processes it starts use this before anything else is imported. Knows Python's own log records.
Does not know structlog, through which a worker says most of what it says (`gateway.logs`).
"""

import datetime as dt
import logging
import sys
from collections.abc import Callable
from typing import Literal

import msgspec

Form = Literal["text", "json"]
LOG_FORM = "NEARHIT_SERVER__LOG"


def line(event: str, *, level: str, at: float, **more: object) -> str:
    """With its end. `at`: seconds since 1970."""
    time = dt.datetime.fromtimestamp(at, dt.UTC).isoformat().replace("+00:00", "Z")
    said = {"timestamp": time, "level": level, "event": event, **more}
    return msgspec.json.encode(said, enc_hook=str).decode() + "\n"


class JsonLines(logging.Formatter):
    """The calls that led to a fault are in `exception`, never their variables."""

    def format(self, record: logging.LogRecord) -> str:
        more = {"exception": self.formatException(record.exc_info)} if record.exc_info else {}
        level = record.levelname.lower()
        return line(record.getMessage(), level=level, at=record.created, logger=record.name, **more).rstrip("\n")


def spoken(form: Form, clock: Callable[[], float]) -> Callable[[str], object]:
    """How the supervisor says a text, on standard output: as it stands, or as one line of JSON."""
    if form == "text":
        return sys.stdout.write

    def say(text: str) -> object:
        return sys.stdout.write(line(text.strip("\n"), level="info", at=clock(), logger="nearhit.serve"))

    return say


def child(form: str | None) -> None:
    """An engine's or the encoder's log, before that sets up its own: Python takes whichever came first."""
    if form == "json":
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonLines())
        logging.basicConfig(level=logging.INFO, handlers=[handler])
