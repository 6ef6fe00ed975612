"""Tools and the choice among them, from OpenAI's Responses to chat completions.

Knows: functions, functions in name spaces, tools that take free text, OpenAI's own that clients run, and that all
others are somebody's service. Does not know: turns, answers.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, cast

from msgspec import Struct, field

from gateway.call import Body, Need
from gateway.dialects.responses_client_tools import KINDS, Kind, function_of, runs_at_client, skills_of
from gateway.dialects.responses_shapes import AnyItem, MoreTools, Responses, SearchOutput, Tool
from gateway.dialects.tool_names import OWN, ToolNames
from gateway.errors import InvalidRequest

# A tool that takes free text is a function of one text: that way it works with every model.
INPUT = "input"
_FREE: Body = {"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT]}
_WORDS = frozenset(("none", "auto", "required"))
Placed = tuple[int, AnyItem]  # an item with its place
INSTEAD = "Ask for a model whose upstream speaks the Responses API itself"


class Tools(Struct):
    """`custom`: inner names of the tools that take free text. `left_out`: what has no counterpart, by path.

    `own`: OpenAI's own tools that clients run, by inner name. `loaded`: what the items bring, by their place.
    """

    names: ToolNames
    custom: set[str] = field(default_factory=set[str])
    own: dict[str, Kind] = field(default_factory=dict[str, Kind])
    loaded: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    left_out: list[str] = field(default_factory=list[str])
    inner: list[Body] = field(default_factory=list[Body])
    need: Need | None = None

    def offer(self, asked: Responses, rare: Sequence[Placed]) -> Body:
        """The fields of the chat completion. Where nothing that was offered can be offered, `need` says what.

        `rare`: those of its items that may bring tools.
        """
        for index, tool in enumerate(asked.tools or ()):
            if tool.type == "function":
                self.inner.append(self._function(tool, f"tools[{index}]", None))
            else:
                for one in self._offered(tool, f"tools[{index}]"):
                    if not self._is_there(one):
                        self.inner.append(one)
        for index, item in rare:
            if isinstance(item, (SearchOutput, MoreTools)):
                self._load(item.tools, index)
        if self.left_out and not self.inner:
            where, _, kind = self.left_out[0].partition("=")
            self.need = _needed(where, kind)
        found: Body = {"tools": self.inner} if self.inner else {}
        if asked.tool_choice is not None and (self.inner or not self._is_idle(asked.tool_choice)):
            found |= self._chosen(asked.tool_choice)
        if self.inner and asked.parallel_tool_calls is not None:
            found["parallel_tool_calls"] = asked.parallel_tool_calls
        return found

    def _load(self, tools: list[Tool], place: int) -> None:
        """Tools that an item brings; what they say holds from then on, whatever was said of the same before."""
        known = {_name(tool): index for index, tool in enumerate(self.inner)}
        found = self.loaded[place] = list[str]()
        for index, tool in enumerate(tools):
            for one in self._offered(tool, f"input[{place}].tools[{index}]"):
                found.append(name := _name(one))
                if name in known:
                    self.inner[known[name]] = one
                else:
                    known[name] = len(self.inner)
                    self.inner.append(one)

    def _offered(self, tool: Tool, path: str, space: str | None = None) -> Iterator[Body]:
        if tool.type == "namespace" and space is None:
            for index, inner in enumerate(tool.tools or ()):
                yield from self._offered(inner, f"{path}.tools[{index}]", tool.name)
        elif tool.type in ("function", "custom"):
            yield self._function(tool, path, space)
        elif runs_at_client(tool):
            _check_skills(tool, path)
            name = self.names.inner(tool.type, OWN)
            self.own[name] = KINDS[tool.type]
            yield function_of(tool, name)
        else:
            self.left_out.append(f"{path}.type={tool.type}")

    def _function(self, tool: Tool, path: str, space: str | None) -> Body:
        if tool.name is None:
            missing(f"{path}.name")
        function: Body = {"name": self.names.inner(tool.name, space)}
        if tool.type == "custom":
            self.custom.add(str(function["name"]))
            return {"type": "function", "function": {**function, "description": _described(tool), "parameters": _FREE}}
        self.custom.discard(str(function["name"]))
        if tool.description is not None:
            function["description"] = tool.description
        if tool.parameters is not None:
            function["parameters"] = tool.parameters
        if tool.strict is not None:
            function["strict"] = tool.strict
        return {"type": "function", "function": function}

    def _is_there(self, tool: Body) -> bool:
        """Whether one of OpenAI's own is offered already: it may be named twice."""
        return (name := _name(tool)) in self.own and any(_name(one) == name for one in self.inner)

    @staticmethod
    def _is_idle(choice: str | Body) -> bool:
        return choice in ("none", "auto")

    def _chosen(self, choice: str | dict[str, Any]) -> Body:
        if isinstance(choice, str):
            if choice not in _WORDS:
                refuse("tool_choice", "'tool_choice' must be none, auto, required or an object that names a tool.")
            if choice == "required" and not self.inner:
                if self.need is not None:
                    return {}
                refuse("tool_choice", "'tool_choice' is 'required' but the request has no 'tools'.")
            return {"tool_choice": choice}
        kind = choice.get("type")
        if kind == "allowed_tools":
            return self._allowed(choice)
        if self._is_left_out(kind):
            self.need = _needed("tool_choice.type", str(kind))
            return {}
        if not isinstance(kind, str) or (kind not in ("function", "custom") and kind not in KINDS):
            refuse("tool_choice.type", f"A tool of the type {str(kind)[:64]!r} cannot be chosen here.")
        return {"tool_choice": {"type": "function", "function": {"name": self._known(choice, "tool_choice")}}}

    def _allowed(self, choice: dict[str, Any]) -> Body:
        """Only some of the tools: the others are not offered, which every model understands."""
        allowed: Any = choice.get("tools")
        mode = choice.get("mode", "auto")
        if not isinstance(allowed, list) or not allowed:
            refuse("tool_choice.tools", "'tool_choice.tools' must be a list of tools.")
        if mode not in ("auto", "required"):
            refuse("tool_choice.mode", "'tool_choice.mode' must be auto or required.")
        wanted: set[str] = set()
        for index, tool in enumerate(cast("list[object]", allowed)):
            kind: object = cast("Body", tool).get("type") if isinstance(tool, dict) else None
            if self._is_left_out(kind):
                self.need = self.need or _needed(f"tool_choice.tools[{index}].type", str(kind))
            else:
                wanted.add(self._known(cast("object", tool), f"tool_choice.tools[{index}]"))
        if not wanted:
            return {}
        self.need = None  # the others do without it, as where nothing is chosen
        kept = [tool for tool in self.inner if _name(tool) in wanted]
        return {"tools": kept, "tool_choice": mode}

    def _is_left_out(self, kind: object) -> bool:
        """Whether there is a tool of that type, and none that can be offered."""
        offered = any(KINDS.get(str(kind)) is own for own in self.own.values())
        return not offered and any(path.endswith(f".type={kind}") for path in self.left_out)

    def _known(self, tool: object, path: str) -> str:
        given = cast("Body", tool) if isinstance(tool, dict) else {}
        name, space = given.get("name"), given.get("namespace")
        if isinstance(kind := given.get("type"), str) and kind in KINDS:
            name, space = kind, OWN
        if not isinstance(name, str):
            refuse(f"{path}.name", f"'{path}.name' must be a string.", "invalid_type")
        inner = self.names.inner(name, space if isinstance(space, str) else None)
        if all(_name(tool) != inner for tool in self.inner):
            refuse("tool_choice", f"'tool_choice' names the tool {name[:64]!r}, which is not among 'tools'.")
        return inner


def _name(tool: Body) -> str:
    return str(cast("Body", tool["function"])["name"])


def _needed(param: str, kind: str) -> Need:
    message = f"'{param}': tools of the type {kind[:64]!r} run at their service. {INSTEAD}, or offer functions."
    return Need(param=param, message=message, code="unsupported_tool")


def _check_skills(tool: Tool, path: str) -> None:
    for index, skill in enumerate(skills_of(tool)):
        for name in skill.__struct_fields__:
            if getattr(skill, name) is None:
                missing(f"{path}.environment.skills[{index}].{name}")


def _described(tool: Tool) -> str:
    text = tool.description or ""
    rules = tool.format or {}
    if isinstance(definition := rules.get("definition"), str):
        text += f"\n\nThe input must follow this {rules.get('syntax', '')} grammar:\n{definition}"
    return text.strip()


def refuse(param: str, message: str, code: str = "invalid_value") -> NoReturn:
    """Raises InvalidRequest."""
    raise InvalidRequest(message, param=param, code=code)


def missing(path: str) -> NoReturn:
    """Raises InvalidRequest."""
    refuse(path, f"Missing required parameter: '{path}'.", "missing_required_parameter")
