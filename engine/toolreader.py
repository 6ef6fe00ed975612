"""Tool calls out of an answer's text, as it comes.

Knows: the three forms of `engine.toolforms`, JSON objects in pieces. Does not know: tokens, grammars, OpenAI's events.

What begins like a call and turns out to be none is text again: nothing a model said is lost.
"""

from typing import NamedTuple

import msgspec

from engine.api import ToolCallDelta, Tools
from engine.toolforms import Form, names

_decode = msgspec.json.Decoder().decode
_SPACE = " \t\r\n"
_MOST_UNSURE = 4_096  # characters before a call's name is known; more than that is no call


class _Object:
    """One JSON object `{"name": …, "arguments": {…}}`, character by character."""

    def __init__(self) -> None:
        self.text = ""
        self.closed = False
        self.name: str | None = None
        self.told = 0  # characters of the arguments given out
        self._depth = 0
        self._quoted = self._escaped = False
        self._start = 0  # of the current key or value at depth 1
        self._key: str | None = None
        self._arguments: tuple[int, int] | None = None  # where they begin, and where they end or -1

    @property
    def broken(self) -> bool:
        """Whether this can no longer be a call."""
        return self.name is None and (len(self.text) > _MOST_UNSURE or self.closed)

    def look_for(self, mark: str) -> None:
        """End where the mark that ends a call came before the last bracket, which some models leave out.

        If the arguments are not whole by then this is no call.
        """
        if self._depth > 0 and not self._quoted and self.text.endswith(mark):
            self.closed = True
            if self._arguments is None or self._arguments[1] < 0:
                self.name = None

    def feed(self, character: str) -> None:
        self.text += character
        if self._quoted:
            self._quoted = self._escaped or character != '"'
            self._escaped = not self._escaped and character == "\\"
        elif character == '"':
            self._quoted = True
        elif character in "{[":
            self._depth += 1
            if self._depth == 1:
                self._start = len(self.text)
        elif character in "}]":
            self._closes()
        elif self._depth == 1 and character in ":,":
            self._separator(character)

    def _closes(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._value_ends()
            self.closed = True
        elif self._depth == 1 and self._arguments is not None and self._arguments[1] < 0:
            self._arguments = (self._arguments[0], len(self.text))

    def arguments(self) -> str:
        """What of the arguments was not given out yet; text in a string comes once the string has ended.

        None at all, or null, are no arguments: an empty object.
        """
        if self.name is None or (self._arguments is None and not self.closed):
            return ""
        if self._arguments is None:
            return "{}"
        begin, end = self._arguments
        whole = self.text[begin : end if end >= 0 else None]
        skipped = len(whole) - len(whole.lstrip())
        whole = whole[skipped:]
        if whole.startswith('"'):
            if end < 0:
                return ""
            whole = str(_value(whole))
        elif end >= 0 and whole == "null":
            whole = "{}"
        elif not whole.startswith(("{", "[")):
            return ""
        piece, self.told = whole[self.told :], len(whole)
        return piece

    def _separator(self, character: str) -> None:
        if character == ":":
            self._key = str(_value(self.text[self._start : -1]))
            if self._key in ("arguments", "parameters") and self._arguments is None:  # the first ones stand too
                self._arguments = (len(self.text), -1)
        else:
            self._value_ends()
        self._start = len(self.text)

    def _value_ends(self) -> None:
        value = self.text[self._start : -1]
        if self._key == "name" and self.name is None and isinstance(found := _value(value), str):
            self.name = found  # the first one stands: it may have been told
        if self._arguments is not None and self._arguments[1] < 0:
            self._arguments = (self._arguments[0], self._start + len(value.rstrip()))
        self._key = None


def _value(text: str) -> object:
    try:
        return _decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        return None


class Said(NamedTuple):
    """Pieces of text for the reader, and pieces of calls."""

    text: list[str]
    calls: list[ToolCallDelta]


_BEFORE = {"hermes": (), "mistral": ("[",), "llama3": ("<|python_tag|>",)}  # may stand before an object
_BETWEEN = {"hermes": "", "mistral": ",", "llama3": ";"}  # another object follows
_AFTER = {"hermes": "</tool_call>", "mistral": "]", "llama3": ""}


class ToolReader:
    """`push` pieces of an answer; `flush` at its end. `called`: how many calls were found."""

    def __init__(self, form: Form, tools: Tools) -> None:
        self._form = form
        self._names = frozenset(names(tools))
        self._turns = {"text": self._text, "opening": self._opening, "object": self._object, "closing": self._closing}
        self._state = "text" if form.begin else "opening"  # bare JSON has no mark
        self._held = ""  # unread
        self._passed = ""  # read, and text again if no call follows
        self._call = _Object()
        self._named = False
        self.called = 0

    def push(self, piece: str) -> Said:
        self._held += piece
        said = Said([], [])
        while self._held and self._turns[self._state](said):
            pass
        return said

    def flush(self) -> str:
        """What was held back: a call that never became one is text."""
        held, self._held = self._held, ""
        if self._state == "object":
            held = "" if self._named else self._passed + self._call.text + held
            self.called += self._named  # what was said of it is a call, if not a whole one
        elif self._state == "opening":
            held = self._passed + held
        return "" if self.called and held.strip(_SPACE + ",;") == "" else held

    def _text(self, said: Said) -> bool:
        """Up to the mark of a call; what may be the beginning of one is held back."""
        mark = self._form.begin
        at = self._held.find(mark) if mark else -1
        if at >= 0:
            self._say(said, self._held[:at])
            self._held, self._passed, self._state = self._held[at + len(mark) :], mark, "opening"
            return True
        keep = next((size for size in range(len(mark) - 1, 0, -1) if self._held.endswith(mark[:size])), 0)
        if self.called and not keep:  # white space between two calls, or after the last, is no text
            keep = len(self._held) - len(self._held.rstrip(_SPACE))
        self._say(said, self._held[: len(self._held) - keep])
        self._held = self._held[len(self._held) - keep :]
        return False

    def _opening(self, said: Said) -> bool:
        """Between a mark and its object, or where a bare object may stand."""
        rest = self._held.lstrip(_SPACE)
        space = self._held[: len(self._held) - len(rest)]
        for mark in _BEFORE[self._form.name]:
            if rest.startswith(mark):
                self._passed += space + mark
                self._held = rest[len(mark) :]
                return True
            if mark.startswith(rest):
                return False
        if not rest:
            return False
        if rest[0] == "{":
            self._passed, self._held = self._passed + space, rest
            self._call, self._named, self._state = _Object(), False, "object"
        else:
            self._give_back(said, self._passed)
        return True

    def _object(self, said: Said) -> bool:
        """Character by character while it is unsure whether this is a call of a known tool, or it has closed."""
        call = self._call
        used = 0
        while used < len(self._held) and not call.closed and not self._no_call:
            call.feed(self._held[used])
            if self._form.name == "hermes":
                call.look_for(_AFTER["hermes"])
            used += 1
        self._held = self._held[used:]
        if self._no_call and not self._named:  # once its name was told there is no way back
            self._give_back(said, self._passed + call.text)
            return True
        self._tell(said)
        if call.closed:
            self.called += 1
            self._state, self._passed = "closing", ""
        return True

    @property
    def _no_call(self) -> bool:
        return self._call.broken or (self._call.name is not None and self._call.name not in self._names)

    def _closing(self, _said: Said) -> bool:
        """After an object: the mark that ends it, or another object."""
        rest = self._held.lstrip(_SPACE)
        between, after = _BETWEEN[self._form.name], _AFTER[self._form.name]
        if not rest or (after.startswith(rest) and rest != after):
            return False
        if between and rest.startswith(between):
            self._held, self._passed, self._state = rest[len(between) :], between, "opening"
        else:
            self._held, self._state = rest.removeprefix(after), "text"
        return True

    def _give_back(self, said: Said, text: str) -> None:
        self._say(said, text if text.strip(_SPACE + ",;") else "")
        self._passed, self._state = "", "text"

    def _say(self, said: Said, text: str) -> None:
        if text and (text.strip(_SPACE) or not self.called):
            said.text.append(text)

    def _tell(self, said: Said) -> None:
        piece = self._call.arguments()
        if self._call.name is not None and not self._named:
            self._named = True
            said.calls.append(ToolCallDelta(self.called, self._call.name, piece))
        elif piece:
            said.calls.append(ToolCallDelta(self.called, None, piece))
