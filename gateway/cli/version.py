"""`nearhit version`."""

import platform
import sqlite3

from gateway import __version__
from gateway.cli import show


def version(*, json: bool = False) -> None:
    """What is installed."""
    facts = {"nearhit": __version__, "python": platform.python_version(), "platform": platform.platform()}
    if json:
        show.json({**facts, "sqlite": sqlite3.sqlite_version})
    else:
        show.line(f"nearhit {facts['nearhit']} (Python {facts['python']}, {facts['platform']})")
