"""Headers of other gateways and of coding agents, read as what they ask for here: LiteLLM, Helicone, Codex and others.

Knows: their names and forms. Does not know: what a directive does. Like ours they only make things stricter; one that
cannot be read is left alone, and one that asks for what is settled in the configuration here (providers, retries,
limits, prices) is named to the client as ignored: those who change a base URL should not have to change anything else.
"""

import re
from collections.abc import Callable
from typing import Any, cast

import msgspec

Found = dict[str, Any]  # keyword arguments of Directives
_MOST_TAGS = 16
_LONGEST = 128
_LARGEST = 4_096
_KEY = re.compile(r"[^A-Za-z0-9_.:-]")
_VALUE = re.compile(r"[^ -+\--~]")  # printable ASCII without a comma
_TRUE = frozenset(("1", "true", "yes", "on"))
_FALSE = frozenset(("0", "false", "no", "off"))
PROPERTY = b"helicone-property-"


def _tag(found: Found, key: str, value: str) -> None:
    """Ours win: they come with `x-nearhit-tags`, whatever the order of headers is."""
    tags: tuple[tuple[str, str], ...] = found.get("tags", ())
    name, text = _KEY.sub("_", key)[:64], _VALUE.sub("_", value)[:_LONGEST]
    if name and len(tags) < _MOST_TAGS and all(name != other for other, _ in tags):
        found["tags"] = (*tags, (name, text))


def _person(found: Found, value: str) -> None:
    if value and len(value) <= _LONGEST and value.isascii() and value.isprintable():
        found.setdefault("user", value)


def _json(value: str) -> dict[str, object]:
    try:
        read = msgspec.json.decode(value) if len(value) <= _LARGEST else None
    except (msgspec.DecodeError, RecursionError):
        return {}
    return cast("dict[str, object]", read) if isinstance(read, dict) else {}


def _least(found: Found, field: str, value: float) -> None:
    if value >= 0:
        found[field] = min(value, found.get(field, value))


def _number(value: str) -> float:
    """Negative where it is none."""
    try:
        read = float(value)
    except ValueError:
        return -1.0
    return read if read < 1e12 else -1.0


def _session(found: Found, value: str) -> None:
    if 0 < len(value) < 256 and value.isascii() and value.isprintable():
        found.setdefault("session", value)


def _tag_list(found: Found, value: str) -> None:
    """LiteLLM's tags have no value; one written as `key:value` is taken for a pair."""
    for item in value.split(",")[:_MOST_TAGS]:
        key, _, given = item.strip().partition(":")
        _tag(found, key, given or "1")


def _metadata(found: Found, value: str) -> None:
    for key, given in _json(value).items():
        if key in ("_user", "user", "user_id"):
            _person(found, str(given))
        elif isinstance(given, str | int | float | bool):
            _tag(found, key, str(given))


def _seconds(found: Found, value: str) -> None:
    if (seconds := _number(value)) > 0:
        _least(found, "timeout", seconds)


def _milliseconds(found: Found, value: str) -> None:
    if (ms := _number(value)) > 0:
        _least(found, "timeout", ms / 1e3)


def _refresh(found: Found, value: str) -> None:
    if value.lower() in _TRUE:
        found["read"] = False


def _skip(found: Found, value: str) -> None:
    if value.lower() in _TRUE:
        found["read"] = found["write"] = False


def _enabled(found: Found, value: str) -> None:
    if value.lower() in _FALSE:
        found["tier"] = "off"


def _ttl(found: Found, value: str) -> None:
    _least(found, "ttl", _number(value))


def _apart(found: Found, value: str) -> None:
    """A cache of its own cannot be had by a header here: then rather none than somebody else's answer."""
    if value:
        found["tier"] = "off"


def _portkey_config(found: Found, value: str) -> None:
    """An inline configuration: what it says of the cache. Everything else of it is settled in nearhit.yaml."""
    config = _json(value)
    cache = config.get("cache")
    if config.keys() != {"cache"}:
        _say_ignored(found, "x-portkey-config")
    if isinstance(cache, dict):
        told = cast("dict[str, object]", cache)
        if told.get("mode") == "simple" and found.get("tier") != "off":
            found["tier"] = "exact"
        age = told.get("max_age")
        if isinstance(age, int | float) and not isinstance(age, bool):
            _least(found, "max_age", float(age))


READERS: dict[bytes, Callable[[Found, str], None]] = {
    b"x-litellm-tags": _tag_list,
    b"x-litellm-customer-id": _person,
    b"x-litellm-end-user-id": _person,
    b"x-litellm-session-id": _session,
    b"x-litellm-spend-logs-metadata": _metadata,
    b"x-litellm-timeout": _seconds,
    b"helicone-cache-enabled": _enabled,
    b"helicone-cache-seed": _apart,
    b"helicone-user-id": _person,
    b"helicone-session-id": _session,
    b"x-portkey-metadata": _metadata,
    b"x-portkey-cache-force-refresh": _refresh,
    b"x-portkey-cache-namespace": _apart,
    b"x-portkey-config": _portkey_config,
    b"x-portkey-request-timeout": _milliseconds,
    b"cf-aig-skip-cache": _skip,
    b"cf-aig-cache-ttl": _ttl,
    b"cf-aig-cache-key": _apart,
    b"cf-aig-metadata": _metadata,
    b"cf-aig-request-timeout": _milliseconds,
    # Coding agents say which conversation a request belongs to: Codex, Claude Code, opencode.
    b"session-id": _session,
    b"x-claude-code-session-id": _session,
    b"x-session-affinity": _session,
}


# Whose headers these are. What of them is not read above is settled in nearhit.yaml, or has no counterpart here.
_THEIRS = (b"x-litellm-", b"helicone-", b"x-portkey-", b"cf-aig-")
_CREDENTIALS = frozenset((b"x-litellm-api-key", b"helicone-auth", b"x-portkey-api-key", b"cf-aig-authorization"))
_MOST_IGNORED = 32


def ignored(found: Found, name: bytes) -> bool:
    """Whether it is one of theirs, which is then named to the client. Keys say who asks, and for nothing else."""
    if not name.startswith(_THEIRS) or name in _CREDENTIALS:
        return False
    _say_ignored(found, name.decode("latin-1")[:_LONGEST])
    return True


def _say_ignored(found: Found, name: str) -> None:
    before: tuple[str, ...] = found.get("ignored", ())
    if name not in before and len(before) < _MOST_IGNORED:
        found["ignored"] = (*before, name)


def helicone_property(found: Found, name: bytes, value: str) -> None:
    """`Helicone-Property-Feature: faq` is the tag `feature=faq`."""
    _tag(found, name.removeprefix(PROPERTY).decode("latin-1"), value)
