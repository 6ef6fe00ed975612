"""A refusal by the name the client wrote: what is refused further in is refused as a field of the inner language.

Knows: how a field's path begins. Does not know: any dialect; each hands in its own names.
"""

import re
from collections.abc import Mapping

from gateway.errors import GatewayError

_BEGIN = re.compile(r"[A-Za-z_]+")


def detail_of(error: GatewayError, names: Mapping[str, str]) -> dict[str, str | None]:
    """OpenAI's four fields of a refusal, the field as the client knows it. `names`: theirs by the inner language's.

    Places within a renamed field are left out: a dialect's items are not the inner language's messages, one by one.
    """
    detail = error.detail()
    told, message = detail["param"], detail["message"] or ""
    begin = _BEGIN.match(told) if told is not None else None
    if begin is None or begin[0] not in names:
        return detail
    theirs = names[begin[0]]
    return {**detail, "param": theirs, "message": message.replace(f"'{told}'", f"'{theirs}'")}
