"""A refusal by the name the client wrote: what is refused further in is refused as a field of the inner language.

Knows: how a field's path begins, which lists a translation numbers anew. Does not know: any dialect; each hands in its
own names, and reads its requests `as_asked`.
"""

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from gateway.errors import GatewayError, InvalidRequest

_BEGIN = re.compile(r"[A-Za-z_]+")
_NUMBERED_ANEW = frozenset({"messages", "tools"})
T = TypeVar("T")


def as_asked(read: Callable[[], T]) -> T:
    """What `read` refuses stands where it says in the request itself."""
    try:
        return read()
    except InvalidRequest as error:
        error.as_asked = True
        raise


def detail_of(error: GatewayError, names: Mapping[str, str]) -> dict[str, str | None]:
    """OpenAI's four fields of a refusal, the field as the client knows it. `names`: theirs by the inner language's.

    Places within a renamed field are left out: a dialect's items are not the inner language's messages, one by one. So
    they are of messages and tools that were found wrong behind the translation, by ourselves.
    """
    detail = error.detail()
    told, message = detail["param"], detail["message"] or ""
    begin = _BEGIN.match(told) if told is not None else None
    if begin is None:
        return detail
    moved = begin[0] in _NUMBERED_ANEW and isinstance(error, InvalidRequest) and not error.as_asked
    theirs = names.get(begin[0], begin[0] if moved else None)
    if theirs is None:
        return detail
    return {**detail, "param": theirs, "message": message.replace(f"'{told}'", f"'{theirs}'")}
