"""Measured rows, one JSON object per line, on disk the moment they exist.

Knows: a file. Does not know: what was measured.
"""

from pathlib import Path
from typing import Any

import msgspec


class Rows:
    """Appends to `file`; `stage` is written into every row."""

    def __init__(self, file: Path, stage: str) -> None:
        self._file = file
        self._stage = stage

    def add(self, name: str, **figures: Any) -> None:
        """One row. Rates, times and errors carry their unit in their name."""
        line = msgspec.json.encode({"stage": self._stage, "name": name, **figures})
        with self._file.open("ab") as file:
            file.write(line + b"\n")


def read(file: Path) -> list[dict[str, Any]]:
    """All rows so far. A line that was cut off by a crash is left out."""
    rows: list[dict[str, Any]] = []
    for line in file.read_bytes().splitlines() if file.exists() else []:
        try:
            rows.append(msgspec.json.decode(line))
        except msgspec.DecodeError:
            continue
    return rows
