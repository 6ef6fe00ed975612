"""LiteLLM's field `cache` of a body, read as what the request's headers ask for here.

Knows: its form. Does not know: what a directive does (`gateway.directives`). It only makes things stricter, and never
travels on: no upstream knows it. What is settled in the configuration here is named to the client as ignored.
"""

import re
from typing import Any, cast

from msgspec.structs import replace

from gateway.call import Body, Directives
from gateway.errors import InvalidRequest

_FIELD = "cache"
_AGES = ("s-maxage", "s-max-age")  # by both names there
_UNTOLD = re.compile(r"[^A-Za-z0-9_.-]")
_MOST_IGNORED, _LONGEST_NAME = 8, 64


def obeyed(body: Body, directives: Directives) -> tuple[Body, Directives]:
    """The request without it, and what is asked for with it. Raises InvalidRequest for values of another type."""
    given = body.get(_FIELD)
    rest = {name: value for name, value in body.items() if name != _FIELD}
    if given is None:
        return rest, directives
    if not isinstance(given, dict):
        raise _wrong(_FIELD, "an object")
    asked, found = cast("Body", given), dict[str, Any]()
    for name, value in asked.items():
        if value is None:
            continue
        if name in ("no-cache", "no-store"):
            if not isinstance(value, bool):
                raise _wrong(f"{_FIELD}.{name}", "true or false")
            if value:
                found["read" if name == "no-cache" else "write"] = False
        elif name in _AGES:
            age = _seconds(name, value)
            before = found.get("max_age", directives.max_age)
            found["max_age"] = age if before is None else min(age, before)
        else:
            _look_at(name, value, found)
            found["ignored"] = (*found.get("ignored", directives.ignored), f"{_FIELD}.{_shown(name)}")
    if "ignored" in found:
        found["ignored"] = found["ignored"][: len(directives.ignored) + _MOST_IGNORED]
    return rest, replace(directives, **found) if found else directives


def _look_at(name: str, value: object, found: dict[str, Any]) -> None:
    """What is not obeyed has a type all the same. A cache of its own is not to be had: then rather none at all."""
    if name == "ttl":
        _seconds(name, value)
    elif name == "namespace":
        if not isinstance(value, str):
            raise _wrong(f"{_FIELD}.{name}", "a text")
        if value:
            found["tier"] = "off"


def _seconds(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise _wrong(f"{_FIELD}.{name}", "a number of seconds")
    return float(value)


def _shown(name: str) -> str:
    """As a header can hold it."""
    return _UNTOLD.sub("_", name)[:_LONGEST_NAME]


def _wrong(param: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid type for '{param}': expected {what}.", param=param, code="invalid_type")
