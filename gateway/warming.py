"""What to warm the cache with: lines of a file, read and named by number, and which of them are done already.

Knows: the two shapes of a line, the digest that recognises one, the dollar cap shared by requests under way. Does not
know: HTTP, terminals, the gateway.
"""

import codecs
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from policies.money import usd

LARGEST_LINE = 1 << 20


class Line(Struct, kw_only=True, forbid_unknown_fields=True):
    """One line of the file: a question as `prompt` or `messages`, its answer if there is one, a model of its own."""

    prompt: Annotated[str, Meta(min_length=1)] | None = None
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)] | None = None
    answer: Annotated[str, Meta(min_length=1)] | None = None
    model: str | None = None


class Item(Struct, frozen=True, kw_only=True):
    """A question to put, by line number. `answer` None: the model is asked."""

    number: int
    model: str
    messages: list[dict[str, Any]]
    answer: str | None = None

    @property
    def mark(self) -> str:
        """The same for the same question, model and answer."""
        told = msgspec.json.encode([self.model, self.messages, self.answer])
        return hashlib.blake2b(told, digest_size=16).hexdigest()


class Bad(Struct, frozen=True):
    """A line that cannot be used, and why."""

    number: int
    why: str


_decode = msgspec.json.Decoder(Line).decode


def read(path: Path, model: str) -> Iterator[Item | Bad]:
    """Every line but empty ones. Raises OSError."""
    with path.open("rb") as file:
        for number, raw in enumerate(iter(lambda: file.readline(LARGEST_LINE + 1), b""), 1):
            if len(raw) > LARGEST_LINE:
                yield Bad(number, f"longer than {LARGEST_LINE:,} bytes; nothing after it was read")
                return
            if number == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)  # editors and spreadsheets of Windows begin a file with it
            if raw.strip():
                yield _item(number, raw, model)


def _item(number: int, raw: bytes, model: str) -> Item | Bad:
    try:
        line = _decode(raw)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        return Bad(number, str(error))
    if (line.prompt is None) == (line.messages is None):
        return Bad(number, "needs either `prompt` or `messages`")
    messages = line.messages or [{"role": "user", "content": line.prompt}]
    return Item(number=number, model=line.model or model, messages=messages, answer=line.answer)


class Done:
    """The marks of what was warmed, in a file that survives an interruption; it goes when everything is done."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._marks = set(path.read_text("ascii").split()) if path.exists() else set[str]()

    def __contains__(self, mark: str) -> bool:
        return mark in self._marks

    def add(self, mark: str) -> None:
        self._marks.add(mark)
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._path.open("a", encoding="ascii") as file:
            file.write(mark + "\n")

    def forget(self) -> None:
        self._path.unlink(missing_ok=True)
        self._marks.clear()


class Purse:
    """A cap in nano-USD that holds whatever the answers cost: each request is told a limit of its own, and the limits
    of those under way never add up to more than what is left. None: no cap.
    """

    def __init__(self, most: int | None, at_once: int) -> None:
        self._most = most
        self._free = at_once
        self._held = 0
        self.spent = 0

    def take(self, *, rest: bool = False) -> int | None:
        """The limit of the next request, 0 when nothing is left. `rest`: all that is left and not held."""
        if self._most is None:
            return None
        left = max(0, self._most - self.spent - self._held)
        part = left if rest else left // max(1, self._free)
        self._held += part
        self._free -= 1
        return part

    def give_back(self, part: int | None, cost: int) -> None:
        """A request has ended."""
        self.spent += cost
        if part is not None:
            self._held -= part
            self._free += 1


def dollars(nano: int) -> str:
    return f"${usd(nano)}"
