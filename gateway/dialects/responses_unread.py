"""What of a Responses request's items and tools the inner request does not hold.

Where Responses are spoken it is sent on and changes answers, so no two requests that differ in it may be taken for
one. Does not know: which fields mean what; whatever is not known to be read counts.
"""

from collections.abc import Iterable
from typing import Any, cast, get_args

from msgspec import Struct

from gateway.call import Body
from gateway.dialects import responses_shapes as shapes
from gateway.dialects.chat import dicts
from gateway.dialects.responses_compaction import is_ours

# Names of an item, and what was measured of it.
_SILENT = ("type", "id", "logprobs")


def _fields(shape: type[Struct]) -> frozenset[str]:
    return frozenset((*shape.__struct_fields__, *_SILENT))


_ITEMS = {str(shape.__struct_config__.tag): _fields(shape) for shape in get_args(shapes.AnyItem)}
# Read, but from there on only: their place is as much of an answer as they are.
_PLACED = frozenset(("tool_search_output", "additional_tools", "configuration_update"))
_SHOWING = frozenset(("function_call_output", "custom_tool_call_output"))  # pictures, which are a user's in chat
_ACTIONS = {
    "local_shell_call": ("action", _fields(shapes.ExecAction)),
    "shell_call": ("action", _fields(shapes.ShellAction)),
    "apply_patch_call": ("operation", _fields(shapes.PatchOperation)),
}
# Of files and pictures by what is read of them: a file that is also named elsewhere is read from the request.
_PARTS = {
    "input_text": _fields(shapes.InputText),
    "output_text": _fields(shapes.OutputText),
    "refusal": _fields(shapes.Refusal),
    "input_image": frozenset((*_SILENT, "image_url", "detail")),
    "input_file": frozenset((*_SILENT, "file_data", "filename")),
}
_TEXTS = frozenset(("input_text", "output_text"))
_CHOICE = frozenset(("type", "name", "namespace", "mode", "tools"))
_PRINTED = _fields(shapes.ShellPrinted)  # a shell's parts have no type
_TEXT = _fields(shapes.Text)
_FORMAT = _fields(shapes.Format)
_FUNCTION = frozenset(("type", "name", "description", "parameters", "strict"))


def of_items(items: Iterable[Body]) -> list[Any]:
    """Each with its place; nothing where the inner request says everything."""
    return [[place, rest] for place, item in enumerate(items) if (rest := _of_item(item))]


def of_tools(tools: object) -> list[Any]:
    """Of those that are offered as functions; the others are told as a whole elsewhere."""
    return [[place, rest] for place, tool in enumerate(dicts(tools)) if (rest := _of_tool(tool))]


def of_settings(body: Body) -> Body:
    """Of the form of the answer and of the choice among tools."""
    text, choice = body.get("text"), body.get("tool_choice")
    found: Body = {}
    if isinstance(text, dict):
        told = cast("Body", text)
        found = _besides(told, _TEXT)
        if isinstance(form := told.get("format"), dict) and (rest := _besides(cast("Body", form), _FORMAT)):
            found["format"] = rest
    if isinstance(choice, dict) and (rest := _besides(cast("Body", choice), _CHOICE)):
        found["tool_choice"] = rest
    return found


def _of_item(item: Body) -> Body:
    kind = str(item.get("type"))
    read = _ITEMS.get(kind)
    if read is None or (kind == "compaction" and not is_ours(str(item.get("encrypted_content")))):
        return {"type": kind}  # it stands there as a text, and anybody may write the same text
    if kind in _PLACED:
        return {name: value for name, value in item.items() if name != "id"}
    rest = _besides(item, read)
    if kind in _ACTIONS:
        name, known = _ACTIONS[kind]
        if inner := _besides(cast("Body", item.get(name) or {}), known):
            rest[name] = inner
    for name in ("content", "output"):
        parts = item.get(name)
        if isinstance(parts, list) and name in read:
            told = dicts(cast("object", parts))
            if inner := _of_parts(told):
                rest[name] = inner
            if kind in _SHOWING and not _TEXTS.issuperset(kinds := [part.get("type") for part in told]):
                rest["shows"] = kinds
    return rest


def _of_parts(parts: Iterable[Body]) -> list[Any]:
    found = ((place, _besides(part, _PARTS.get(str(part.get("type")), _PRINTED))) for place, part in enumerate(parts))
    return [[place, rest] for place, rest in found if rest]


def _of_tool(tool: Body) -> Body:
    kind = tool.get("type")
    if kind == "function":
        return _besides(tool, _FUNCTION)
    return tool if kind in ("custom", "namespace") else {}


def _besides(given: Body, known: frozenset[str]) -> Body:
    """What says nothing, and what is said of everything that is whole, tells nothing apart."""
    return {
        name: value
        for name, value in given.items()
        if name not in known and value not in (None, [], {}) and not (name == "status" and value == "completed")
    }
