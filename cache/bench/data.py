"""Labelled data from files the operator names: streams (text, class_id, tag) and pairs (a, b, label, tag).

Knows tab-separated columns, gzipped or not, and literal repeats. Does not know where data
lives; nothing of it is ever written.
"""

import csv
import gzip
import random
import zlib
from pathlib import Path

from msgspec import Struct


class Unreadable(Exception):
    """The file is not what the command needs; the message says what is missing."""


class Row(Struct, frozen=True):
    """One request. Two rows of one class may share an answer."""

    text: str
    kind: str
    tag: str = ""


class Pair(Struct, frozen=True):
    """Whether the answer to `a` may serve `b`."""

    a: str
    b: str
    same: bool
    tag: str = ""


class Stream(Struct, frozen=True):
    """`repeats`: requests the exact tier answers, taken out."""

    rows: list[Row]
    repeats: int


def read_stream(path: Path, *, seed: int = 0, limit: int | None = None) -> Stream:
    """In an order drawn from `seed`, literal repeats (but for case and outer space) taken out, then cut to `limit`."""
    rows = [Row(line["text"], line["class_id"], line.get("tag") or "") for line in _lines(path, ("text", "class_id"))]
    random.Random(seed).shuffle(rows)  # noqa: S311 - an order, not a secret
    seen: set[str] = set()
    kept: list[Row] = []
    for row in rows:
        plain = row.text.strip().lower()
        if plain not in seen:
            seen.add(plain)
            kept.append(row)
    return Stream(kept[:limit], len(rows) - len(kept))


def read_pairs(path: Path, *, limit: int | None = None) -> list[Pair]:
    lines = _lines(path, ("a", "b", "label"))[:limit]
    return [Pair(line["a"], line["b"], line["label"].strip() == "1", line.get("tag") or "") for line in lines]


def _lines(path: Path, needed: tuple[str, ...]) -> list[dict[str, str]]:
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8")
    except (OSError, UnicodeDecodeError, EOFError, zlib.error) as error:
        raise Unreadable(f"{path}: {error}") from error
    reader = csv.DictReader(text.split("\n"), delimiter="\t", quoting=csv.QUOTE_NONE)
    missing = set(needed) - set(reader.fieldnames or ())
    if missing:
        raise Unreadable(f"{path}: no column {', '.join(sorted(missing))}")
    return [line for line in reader if all(line[name] for name in needed)]
