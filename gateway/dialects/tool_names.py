"""Tool names on their way to a model and back: chat completions allow 64 characters and no name spaces.

Knows only names. A name's inner form is made of the name alone (and of its space), so it is the same in every request
of a conversation.
"""

import hashlib

LONGEST = 64
_KEPT = 55
_JOINT = "__"
OWN = "\0"  # the space of OpenAI's own tools, whose names are written as they are
Outer = tuple[str | None, str]  # name space, name


class ToolNames:
    """The names of one request."""

    def __init__(self) -> None:
        self._inner: dict[Outer, str] = {}
        self._outer: dict[str, Outer] = {}

    def inner(self, name: str, space: str | None = None) -> str:
        """The name the model sees, unique to (`space`, `name`) and at most 64 characters long."""
        outer = (space, name)
        told = self._inner.get(outer)
        if told is None:
            told = name if space is None or space == OWN else f"{space}{'' if space.endswith(_JOINT) else _JOINT}{name}"
            if len(told) > LONGEST or told in self._outer:
                told = f"{told[:_KEPT]}_{hashlib.blake2b(repr(outer).encode(), digest_size=4).hexdigest()}"
            self._inner[outer] = told
            self._outer[told] = outer
        return told

    def outer(self, told: str) -> Outer:
        """The name space, None for none, and the name as the client wrote it."""
        return self._outer.get(told, (None, told))
