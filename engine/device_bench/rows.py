"""Measured rows, one JSON object per line, on disk the moment they exist.

Knows: a file. Does not know: what was measured. Needs nothing but Python: it must also tell of what is missing.
"""

import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_LONGEST = 300


class Rows:
    """Appends to `file`; `stage` is written into every row."""

    def __init__(self, file: Path, stage: str) -> None:
        self.file = file
        self._stage = stage

    def add(self, name: str, **figures: Any) -> None:
        """One row. Rates, times and errors carry their unit in their name."""
        line = json.dumps({"stage": self._stage, "name": name, **figures}, default=str)
        with self.file.open("ab") as file:
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    @contextmanager
    def apart(self, name: str) -> Generator[None]:
        """What fails within becomes a row with its reason, and what comes after goes on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  (whatever a library, a compiler or a device may raise)
            self.add(name, fault=f"{type(error).__name__}: {' '.join(str(error).split())}"[:_LONGEST])


def read(file: Path) -> list[dict[str, Any]]:
    """All rows so far. A line that was cut off by a crash is left out."""
    rows: list[dict[str, Any]] = []
    for line in file.read_bytes().splitlines() if file.exists() else []:
        try:
            rows.append(json.loads(line))  # noqa: TID251  (needs nothing but Python)
        except ValueError:
            continue
    return rows
