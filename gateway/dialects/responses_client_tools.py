"""OpenAI's own tools that run at the client: a local shell, a shell, patches of files, a search among tools.

Knows: the function that a model is offered for each, and what a call of it means, also where it was written wrongly:
the client then runs what cannot but fail, and says so to the model. Does not know: items as they grow, turns.
"""

import shlex
from collections.abc import Callable, Sequence
from typing import cast

import msgspec
from msgspec import Struct

from gateway.call import Body
from gateway.dialects.responses_shapes import Environment, ExecAction, PatchOperation, ShellAction, Skill, Tool

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_builtins = msgspec.to_builtins
_LONGEST_WAIT = 1 << 53  # milliseconds; what JSON's readers take for a whole number
_STRING: Body = {"type": "string"}
_STRINGS: Body = {"type": "array", "items": _STRING}
_WAIT: Body = {"type": "integer", "description": "After how many milliseconds it is stopped."}
_DEEPEST = 50  # lists and objects in each other; deeper ones can be read and not written again
_NOWHERE = "."  # the workspace itself, which is no file


class Kind(Struct, frozen=True):
    """`item`: the type of its calls; `prefix`: of their ids; `read`: a call's own fields, of what the model wrote."""

    item: str
    prefix: str
    description: str
    parameters: Body
    read: Callable[[str], Body]


def runs_at_client(tool: Tool) -> bool:
    """Whether a tool is OpenAI's own and the client's to run. A shell in a container is its provider's."""
    if tool.type == "shell" and isinstance(tool.environment, Environment):
        return tool.environment.type == "local"
    return tool.type in KINDS and (tool.type != "tool_search" or tool.execution == "client")


def function_of(tool: Tool, name: str) -> Body:
    """What a model is offered in its place."""
    kind = KINDS[tool.type]
    text, parameters = kind.description, kind.parameters
    if tool.type == "tool_search":  # which every client writes for itself
        text, parameters = tool.description or text, tool.parameters or parameters
    text += "".join(f"\nHow to {told.name} ({told.description}) is written in {told.path}." for told in skills_of(tool))
    return {"type": "function", "function": {"name": name, "description": text, "parameters": parameters}}


def skills_of(tool: Tool) -> Sequence[Skill]:
    """What is written on the client's machine of how things are done."""
    return (tool.environment.skills or ()) if isinstance(tool.environment, Environment) else ()


def written(action: ExecAction | ShellAction | PatchOperation) -> str:
    """A call as the model wrote it, or would have."""
    told = cast("Body", _builtins(action))
    return _encode({name: value for name, value in told.items() if value is not None}).decode()


def _exec(text: str) -> Body:
    """A string is a line of a shell; what is no command at all is run as the name of a program."""
    given = _given(text, "command")
    command = given.get("command")
    if isinstance(command, str) and command:
        command = ["sh", "-c", command]
    words = _words(command)
    if not words or any(isinstance(word, list | dict) for word in cast("list[object]", command)):
        given, words = {}, [text]
    env = given.get("env")
    told = cast("Body", env) if isinstance(env, dict) else {}
    return {
        "action": {
            "type": "exec",
            "command": words,
            "env": {name: _word(value) for name, value in told.items() if value is not None},
            "timeout_ms": _whole(given.get("timeout_ms")),
            "user": _text(given.get("user")),
            "working_directory": _text(given.get("working_directory")),
        }
    }


def _shell(text: str) -> Body:
    """What is no command at all is quoted: a shell would run parts of it."""
    given = _given(text, "commands")
    commands = given.get("commands")
    if isinstance(commands, str) and commands:
        commands = [commands]
    lines = [_line(one) for one in cast("list[object]", commands)] if isinstance(commands, list) else []
    if not lines:
        given, lines = {}, [shlex.quote(text)]
    limits = {name: _whole(given.get(name)) for name in ("timeout_ms", "max_output_length")}
    return {"action": {"commands": lines, **limits}, "environment": None}


def _patch(text: str) -> Body:
    """What is no operation is a change of nothing that could be changed."""
    given = _given(text, "diff")
    kind, path, diff = given.get("type"), _text(given.get("path")), given.get("diff")
    if path and kind == "delete_file":
        return {"operation": {"type": kind, "path": path}}
    if path and kind in ("create_file", "update_file") and isinstance(diff, str):
        return {"operation": {"type": kind, "path": path, "diff": diff}}
    return {"operation": {"type": "update_file", "path": path or _NOWHERE, "diff": text}}


def _search(text: str) -> Body:
    """What is no JSON is told as text."""
    try:
        arguments = _read(text)
    except (msgspec.MsgspecError, RecursionError):
        arguments = text
    return {"arguments": arguments, "execution": "client"}


def _read(text: str) -> object:
    """Raises MsgspecError, RecursionError for what is no JSON or too deep to be told."""
    found: object = _decode(text)
    if _is_deep(found, _DEEPEST):
        raise msgspec.DecodeError("too deep")
    return found


def _is_deep(value: object, left: int) -> bool:
    if isinstance(value, dict):
        value = list(cast("Body", value).values())
    if not isinstance(value, list):
        return False
    return left == 0 or any(_is_deep(one, left - 1) for one in cast("list[object]", value))


def _given(text: str, name: str) -> Body:
    """The arguments, or the one of them that says everything."""
    try:
        found = _read(text)
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return cast("Body", found) if isinstance(found, dict) else {name: found}


def _words(value: object) -> list[str]:
    return [_word(one) for one in cast("list[object]", value)] if isinstance(value, list) else []


def _word(value: object) -> str:
    return value if isinstance(value, str) else _encode(value).decode()


def _line(value: object) -> str:
    """What is no line of a shell is none that it could run."""
    return value if isinstance(value, str) else shlex.quote(_word(value))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _whole(value: object) -> int | None:
    """A number of milliseconds or characters; nothing where it is none."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST_WAIT:
        return None
    return int(value)


KINDS: dict[str, Kind] = {
    "local_shell": Kind(
        "local_shell_call",
        "lsh",
        "Runs one command on the user's machine and answers with what it printed. `command` is the program and its "
        'arguments, one by one; a line for a shell is ["sh", "-c", LINE].',
        {
            "type": "object",
            "properties": {
                "command": _STRINGS,
                "timeout_ms": _WAIT,
                "working_directory": _STRING,
                "env": {"type": "object", "additionalProperties": _STRING},
                "user": {"type": "string", "description": "Whom to run it as."},
            },
            "required": ["command"],
        },
        _exec,
    ),
    "shell": Kind(
        "shell_call",
        "sh",
        "Runs commands in a shell on the user's machine, in their order, and answers with what each of them printed "
        "and how it ended.",
        {
            "type": "object",
            "properties": {
                "commands": {**_STRINGS, "description": "A line for the shell each."},
                "timeout_ms": _WAIT,
                "max_output_length": {"type": "integer", "description": "How many characters to answer at most."},
            },
            "required": ["commands"],
        },
        _shell,
    ),
    "apply_patch": Kind(
        "apply_patch_call",
        "apc",
        "Creates, updates or deletes one file of the user's workspace. In create_file every line of `diff` is a line "
        "of the file behind a `+`. In update_file `diff` is made of sections: a line `@@`, or `@@ ` and the line that "
        "begins the class or function it is about; then about three unchanged lines, each behind a space; the lines "
        "that go, each behind a `-`; the lines that come, each behind a `+`; and about three unchanged lines. There "
        "are no line numbers and no names of files in it. delete_file has no `diff`.",
        {
            "type": "object",
            "properties": {
                "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
                "path": {"type": "string", "description": "Where the file is, from the root of the workspace."},
                "diff": _STRING,
            },
            "required": ["type", "path"],
        },
        _patch,
    ),
    "tool_search": Kind(
        "tool_search_call",
        "tsc",
        "Looks for more tools. Those that are found can be called afterwards.",
        {"type": "object", "properties": {"query": _STRING}, "required": ["query"]},
        _search,
    ),
}
