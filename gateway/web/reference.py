"""The API's description as a page: OpenAPI's document in words.

Knows: OpenAPI's shape. Does not know: routes, where the document comes from (`gateway.web.described`), HTML.
"""

from collections.abc import Mapping
from typing import cast

from msgspec import Struct

Json = dict[str, object]


class Parameter(Struct, frozen=True, kw_only=True):
    """One parameter of an operation. `kind` in words."""

    name: str
    where: str
    kind: str
    needed: bool
    words: str


class Operation(Struct, frozen=True, kw_only=True):
    """One method of one address; `answer` and `body` as field lists in words."""

    verb: str
    path: str
    title: str
    words: str
    role: str
    parameters: list[Parameter]
    body: list[Parameter]
    answer: list[Parameter]


class Section(Struct, frozen=True, kw_only=True):
    """Operations that belong together."""

    name: str
    operations: list[Operation]


_FIRST = ("Data plane", "Keys", "Budgets", "Usage", "Requests", "Cache", "Prices", "Ledger", "Organization", "About")


def sections(schema: Json, roles: Mapping[tuple[str, str], str]) -> list[Section]:
    """Operations by tag, in the order a newcomer needs them. `roles`: what (method, path) needs."""
    found: dict[str, list[Operation]] = {}
    for path, item in cast("dict[str, Json]", schema.get("paths", {})).items():
        for verb, operation in item.items():
            if isinstance(operation, dict):
                read = cast("Json", operation)
                tag = str((cast("list[object]", read.get("tags") or ["Other"]))[0])
                found.setdefault(tag, []).append(_operation(schema, (verb, path), read, roles.get((verb, path), "")))
    order = {name: place for place, name in enumerate(_FIRST)}
    names = sorted(found, key=lambda name: (order.get(name, len(order)), name))
    return [Section(name=name, operations=found[name]) for name in names]


def _operation(schema: Json, place: tuple[str, str], read: Json, role: str) -> Operation:
    verb, path = place
    body = cast("Json", read.get("requestBody") or {})
    return Operation(
        verb=verb,
        path=path,
        title=str(read.get("summary") or path),
        words=str(read.get("description") or ""),
        role=role,
        parameters=[_parameter(schema, one) for one in cast("list[Json]", read.get("parameters") or [])],
        body=_fields(schema, _content(body)),
        answer=_fields(schema, _answered(read)),
    )


def _parameter(schema: Json, read: Json) -> Parameter:
    return Parameter(
        name=str(read.get("name")),
        where=str(read.get("in")),
        kind=_kind(schema, cast("Json", read.get("schema") or {})),
        needed=bool(read.get("required")),
        words=str(read.get("description") or ""),
    )


def _answered(read: Json) -> Json:
    responses = cast("dict[str, Json]", read.get("responses") or {})
    empty: Json = {}
    good = next((found for code, found in responses.items() if code.startswith("2")), empty)
    return _content(good)


def _content(holder: Json) -> Json:
    content = cast("dict[str, Json]", holder.get("content") or {})
    return cast("Json", content.get("application/json", {}).get("schema") or {})


def _fields(schema: Json, shape: Json) -> list[Parameter]:
    """One level of fields of an object, following one reference."""
    found = _resolved(schema, shape)
    needed = set(cast("list[str]", found.get("required") or []))
    return [
        Parameter(name=name, where="", kind=_kind(schema, field), needed=name in needed, words=_words(field))
        for name, field in cast("dict[str, Json]", found.get("properties") or {}).items()
    ]


def _words(field: Json) -> str:
    default = field.get("default")
    return "" if default is None else f"default “{default}”" if isinstance(default, str) else f"default {default}"


def _resolved(schema: Json, shape: Json) -> Json:
    reference = shape.get("$ref")
    if not isinstance(reference, str):
        return shape
    components = cast("dict[str, dict[str, Json]]", schema.get("components") or {})
    return components.get("schemas", {}).get(reference.rpartition("/")[2], {})


def _kind(schema: Json, shape: Json) -> str:
    """A type in words: `text`, `number`, `list of KeyView`, `one of "hard", "soft"`."""
    for name in ("oneOf", "anyOf"):
        if isinstance(options := shape.get(name), list):
            return " or ".join(dict.fromkeys(_kind(schema, option) for option in cast("list[Json]", options)))
    if isinstance(reference := shape.get("$ref"), str):
        found = _resolved(schema, shape)
        return _kind(schema, found) if "enum" in found else reference.rpartition("/")[2].rpartition("_")[2]
    if isinstance(values := shape.get("enum"), list):
        return "one of " + ", ".join(f"“{value}”" for value in cast("list[object]", values))
    kind = shape.get("type")
    if kind == "array":
        return f"list of {_kind(schema, cast('Json', shape.get('items') or {}))}"
    return {"string": "text", "integer": "whole number", "boolean": "yes or no"}.get(str(kind), str(kind or "anything"))
