"""What a request's headers ask for: one pass over them, into `Directives`.

A client may only make things stricter, so a value that cannot be read, and an `x-nearhit-` header that does not
exist, are refused by name: a misspelt cost limit must not be a limit that is not there. Does not know the settings the
directives are held against.
"""

import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from operator import itemgetter
from typing import Any

from msgspec.structs import replace

from gateway.call import Directives
from gateway.errors import InvalidRequest
from gateway.foreign_headers import PROPERTY, helicone_property, ignored
from gateway.foreign_headers import READERS as FOREIGN

NONE = Directives()  # of a request without any: always this very object
_OURS = b"x-nearhit-"
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(ms|s|m|h|d)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DECIMAL = re.compile(r"\d{0,9}(?:\.\d{0,9})?")
_TAG = re.compile(r"([A-Za-z0-9_.:-]{1,64})=([ -+\--~]{0,128})")
_LABEL = re.compile(r"[ -~]{1,255}")
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_TRUE, _FALSE = frozenset(("1", "true", "yes", "on")), frozenset(("0", "false", "no", "off"))
_TIERS = ("off", "exact", "semantic")  # the strictest first
_NANO = Decimal(1_000_000_000)
_MOST_TAGS = 16
_LONGEST_USER = 128

_name_of = itemgetter(0)
_MOST_PLAIN = 1_024
_plain: set[bytes] = set()  # names met that ask for nothing: clients send two dozen of them with every request

Found = dict[str, Any]  # keyword arguments of Directives


def directives(headers: list[tuple[bytes, bytes]]) -> Directives:
    """Names in lower case, as ASGI gives them. Raises InvalidRequest; its `param` is the header's name."""
    return NONE if _plain.issuperset(map(_name_of, headers)) else _asked(headers)


def _asked(headers: list[tuple[bytes, bytes]]) -> Directives:
    """Of headers among which is one that asks for something, or that has not been met before."""
    found: Found = {}
    theirs: Found = {}
    for name, value in headers:
        if name in _plain:
            continue
        read = _READERS.get(name)
        if read is not None:
            read(found, name.decode("ascii"), value.decode("latin-1").strip())
        elif (foreign := FOREIGN.get(name)) is not None:
            foreign(theirs, value.decode("latin-1").strip())
        elif name.startswith(PROPERTY):
            helicone_property(theirs, name, value.decode("latin-1").strip())
        elif ignored(theirs, name):
            continue
        elif name.startswith(_OURS):
            raise _refuse(name.decode("latin-1")[:100], "is not a header of this gateway", code="unknown_header")
        elif len(_plain) < _MOST_PLAIN:
            _plain.add(name)
    if theirs:
        _add(found, theirs)
    return Directives(**found) if found else NONE


def _add(found: Found, theirs: Found) -> None:
    """What other gateways' headers ask for besides: never less strict than what ours do."""
    for name, value in theirs.items():
        if name in ("ttl", "timeout", "max_age"):
            _tighten(found, name, value)
        elif name == "tags":
            ours: tuple[tuple[str, str], ...] = found.get("tags", ())
            named = {key for key, _ in ours}
            found["tags"] = (*ours, *(tag for tag in value if tag[0] not in named))[:_MOST_TAGS]
        elif name == "tier":
            found["tier"] = min(value, found.get("tier", "semantic"), key=_TIERS.index)
        elif name in ("read", "write"):
            found[name] = False
        else:
            found.setdefault(name, value)


def _refuse(name: str, why: str, *, code: str = "invalid_header") -> InvalidRequest:
    return InvalidRequest(f"Header {name} {why}.", param=name, code=code)


def _cache_control(found: Found, name: str, value: str) -> None:
    for item in value.lower().split(","):
        word, _, argument = item.strip().partition("=")
        if word == "no-cache":
            found["read"] = False
        elif word == "no-store":
            found["write"] = False
        elif word == "only-if-cached":
            found["only_if_cached"] = True
        elif word == "max-age":
            argument = argument.strip('" ')
            if not argument.isascii() or not argument.isdigit() or len(argument) > 12:
                raise _refuse(name, "has a max-age that is not a whole number of seconds")
            _tighten(found, "max_age", float(argument))
        # Other directives (no-transform, max-stale …) ask for nothing this cache does: RFC 9111 says to ignore them.


def _tier(found: Found, name: str, value: str) -> None:
    value = value.lower()
    if value not in ("off", "exact", "semantic"):
        raise _refuse(name, "must be off, exact or semantic")
    found["tier"] = value


def _scope(found: Found, name: str, value: str) -> None:
    value = value.lower()
    if value not in ("user", "project"):
        raise _refuse(name, "must be user or project")
    found["per_user"] = value == "user"


def _error_rate(found: Found, name: str, value: str) -> None:
    rate, before = _share(name, value), found.get("allowed", Directives().allowed)
    found["allowed"] = replace(before, max_error_rate=min(rate, before.max_error_rate))


def _wrong_hit_rate(found: Found, name: str, value: str) -> None:
    rate, before = _share(name, value), found.get("allowed", Directives().allowed)
    found["allowed"] = replace(before, max_wrong_hit_rate=min(rate, before.max_wrong_hit_rate))


def _share(name: str, value: str) -> float:
    if not _DECIMAL.fullmatch(value) or value in ("", ".") or float(value) > 1:
        raise _refuse(name, "must be a number from 0 to 1")
    return float(value)


def _ttl(found: Found, name: str, value: str) -> None:
    _tighten(found, "ttl", _seconds(name, value))


def _timeout(found: Found, name: str, value: str) -> None:
    seconds = _seconds(name, value)
    if seconds <= 0:
        raise _refuse(name, "must be more than 0 s")
    _tighten(found, "timeout", seconds)


def _seconds(name: str, value: str) -> float:
    read = _DURATION.fullmatch(value)
    if read is None:
        raise _refuse(name, 'must be seconds ("30") or a duration such as "500ms", "30s", "5m", "24h", "7d"')
    return float(read[1]) * _SECONDS[read[2] or "s"]


def _max_cost(found: Found, name: str, value: str) -> None:
    try:
        nano = Decimal(value) * _NANO if _DECIMAL.fullmatch(value) else Decimal("nan")
    except InvalidOperation:
        nano = Decimal("nan")
    if nano.is_nan():
        raise _refuse(name, 'must be a plain decimal in USD such as "0.01", at most nine digits after the point')
    _tighten(found, "max_cost_nano", int(nano))


def _tags(found: Found, name: str, value: str) -> None:
    tags: list[tuple[str, str]] = list(found.get("tags", ()))
    for item in value.split(","):
        read = _TAG.fullmatch(item.strip())
        if read is None:
            raise _refuse(name, 'must be "key=value,key=value" (keys of at most 64 letters, digits and _.:-)')
        tags.append((read[1], read[2]))
    if len(tags) > _MOST_TAGS:
        raise _refuse(name, f"holds more than {_MOST_TAGS} tags")
    if len({key for key, _ in tags}) != len(tags):
        raise _refuse(name, "names the same key twice")
    found["tags"] = tuple(tags)


def _user(found: Found, name: str, value: str) -> None:
    if len(value) > _LONGEST_USER or not _LABEL.fullmatch(value):
        raise _refuse(name, f"must be 1 to {_LONGEST_USER} printable ASCII characters")
    found["user"] = value


def _session(found: Found, name: str, value: str) -> None:
    if not _LABEL.fullmatch(value):
        raise _refuse(name, "must be 1 to 255 printable ASCII characters")
    found["session"] = value


def _idempotency_key(found: Found, name: str, value: str) -> None:
    if not _LABEL.fullmatch(value):
        raise _refuse(name, "must be 1 to 255 printable ASCII characters")
    found["idempotency_key"] = value


def _dry_run(found: Found, name: str, value: str) -> None:
    value = value.lower()
    if value not in _TRUE and value not in _FALSE:
        raise _refuse(name, "must be 1 or 0")
    found["dry_run"] = value in _TRUE


def _priority(found: Found, name: str, value: str) -> None:
    del found  # `gateway.gate` has read it by now
    if value.lower() not in ("normal", "batch"):
        raise _refuse(name, "must be normal or batch")


def _traceparent(found: Found, name: str, value: str) -> None:
    del name
    if _TRACEPARENT.fullmatch(value):  # W3C Trace Context: a malformed one is ignored, a trace begins anew
        found["traceparent"] = value


def _tighten(found: Found, field: str, value: float) -> None:
    """A header that comes twice counts at its stricter value; every bound here is stricter when smaller."""
    found[field] = min(value, found.get(field, value))


_READERS: dict[bytes, Callable[[Found, str, str], None]] = {
    b"cache-control": _cache_control,
    b"x-nearhit-cache": _tier,
    b"x-nearhit-max-error-rate": _error_rate,
    b"x-nearhit-max-wrong-hit-rate": _wrong_hit_rate,
    b"x-nearhit-cache-ttl": _ttl,
    b"x-nearhit-cache-scope": _scope,
    b"x-nearhit-tags": _tags,
    b"x-nearhit-user": _user,
    b"x-nearhit-session": _session,
    b"x-nearhit-max-cost-usd": _max_cost,
    b"x-nearhit-timeout": _timeout,
    b"x-nearhit-dry-run": _dry_run,
    b"x-nearhit-priority": _priority,
    b"traceparent": _traceparent,
    b"idempotency-key": _idempotency_key,
}
