"""How models write tool calls: which form a chat template means, and the grammar that holds an answer to it.

Knows: Hermes' and Qwen's `<tool_call>`, Llama 3's bare JSON, Mistral's `[TOOL_CALLS]`. Does not know: how calls are
read back (`engine.toolreader`), templates beyond their text, OpenAI's events.
"""

import re
from typing import Literal, cast

import msgspec
from jinja2 import meta
from msgspec import Struct

from engine.api import InvalidRequest, Tools
from engine.grammar import inline_json
from engine.sandbox import Sandbox

FormName = Literal["hermes", "llama3", "mistral"]
MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,128}")
_TEXT = "TEXT: /(.|\\n)*/"
_encode = msgspec.json.Encoder().encode


class Form(Struct, frozen=True):
    """`marks` open a call and are tokens of their own in some vocabularies; `native`: the template knows tools.

    `named`: what it calls them, beside `tools`. `recalls`: it writes earlier calls itself. `system`: it takes a system
    message.
    """

    name: FormName
    begin: str
    arguments: str
    marks: tuple[str, ...]
    native: bool = True
    named: tuple[str, ...] = ()
    recalls: bool = True
    system: bool = True


_HERMES = Form("hermes", "<tool_call>", "arguments", ("<tool_call>", "</tool_call>"))
_LLAMA3 = Form("llama3", "", "parameters", ("<|python_tag|>",))
_MISTRAL = Form("mistral", "[TOOL_CALLS]", "arguments", ("[TOOL_CALLS]",))


def form_of(template: str) -> Form:
    """The form that a chat template's own words describe. One that knows no tools is told Hermes' in words.

    Raises whatever Jinja does for a template that does not parse.
    """
    asked = _asked(template)
    if "[TOOL_CALLS]" in template:
        return _MISTRAL
    if "<tool_call>" in template:
        named = ("xml_tools",) if "xml_tools" in asked else ()  # SmolLM3's
        return msgspec.structs.replace(_HERMES, named=named, recalls="tool_calls" in template)
    if "tools" in asked and '"parameters"' in template:
        return _LLAMA3
    system = "System role not supported" not in template  # Gemma's words
    return msgspec.structs.replace(_HERMES, native="tools" in asked, system=system)


def _asked(template: str) -> set[str]:
    """The variables that a template wants to be given: a word in its prose, or a message's own `tools`, is none."""
    return meta.find_undeclared_variables(Sandbox().parse(template))


def check_tools(tools: Tools) -> None:
    """Raises InvalidRequest. Schemas are checked by who compiles them."""
    if not tools.functions or len(tools.functions) > MAX_TOOLS:
        raise InvalidRequest(f"Give 1 to {MAX_TOOLS} tools.", param="tools")
    for at, function in enumerate(tools.functions):
        name = function.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidRequest("A tool's name must be 1 to 128 letters, digits, _ . or -.", param=f"tools[{at}]")
        if not isinstance(function.get("parameters", {}), dict | None):
            raise InvalidRequest("A tool's parameters must be a JSON schema.", param=f"tools[{at}]")
    if tools.name is not None and tools.name not in names(tools):
        raise InvalidRequest(f"tool_choice names {tools.name:.100}, which is not among the tools.", param="tool_choice")


def names(tools: Tools) -> list[str]:
    return [str(function.get("name")) for function in tools.functions]


def explain(tools: Tools) -> str:
    """A system message for a template that knows no tools, in the words Hermes models were trained with."""
    listed = "\n".join(_encode({"type": "function", "function": function}).decode() for function in tools.functions)
    return (
        "You may call one or more functions to assist with the user query. Here are the function signatures:\n"
        f"<tools>\n{listed}\n</tools>\nFor each function call return a JSON object with the function's name and its "
        'arguments within tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    )


def grammar(tools: Tools, form: Form, *, special: bool) -> str | None:
    """Lark rules that hold an answer to calls: required ones, or, with `auto`, whatever calls it makes of itself.

    `special`: the opening mark is a token of its own. None where nothing can be promised: `auto` for models that write
    bare JSON, and `none`. Raises InvalidRequest for a schema that cannot be used.
    """
    called = [one for one in tools.functions if tools.name in (None, one.get("name"))]
    if tools.choice == "none" or (tools.choice == "auto" and (form.name == "llama3" or not form.native)):
        return None
    bodies = "".join(_body(at, function, form) for at, function in enumerate(called))
    any_body = f"body: {' | '.join(f'body_{at}' for at in range(len(called)))}\n"
    head = _calls(tools, form, special)
    return head + any_body + bodies


def _body(at: int, function: dict[str, object], form: Form) -> str:
    schema = cast("dict[str, object]", function.get("parameters") or {"type": "object"})
    opening = f'{{"name": {_encode(function["name"]).decode()}, "{form.arguments}": '
    held = inline_json(schema, strict=function.get("strict") is True)
    return f"body_{at}: {_quoted(opening)} arguments_{at} {_quoted('}')}\narguments_{at}: {held}\n"


def _calls(tools: Tools, form: Form, special: bool) -> str:
    """The rules around `body`, one call: how calls begin, follow each other and end."""
    more = tools.parallel and tools.name is None
    if form.name == "llama3":
        return _rules("start: " + ('body ("; " body)*' if more else "body"))
    mark = _mark(form.begin) if special else _quoted(form.begin)
    if form.name == "mistral":
        call, again = 'call: "[" {} "]"'.format('body (", " body)*' if more else "body"), ""
    else:
        end = _mark("</tool_call>") if special else _quoted("</tool_call>")
        call, again = f'call: "\\n" body "\\n" {end}', "*"
    if tools.choice == "required":
        repeated = f' ("\\n" {mark} call)*' if more and again else ""
        return _rules(f"start: {mark} call{repeated}", call)
    if special:
        return _rules(f"start: (TEXT {mark} call){again or '?'} TEXT", _TEXT, call)
    return _rules(f"start: (opening call){again or '?'} TEXT", f"opening[lazy]: TEXT {mark}", _TEXT, call)


def _rules(*rules: str) -> str:
    return "\n".join(rules) + "\n"


def _mark(mark: str) -> str:
    """llguidance names special tokens in angle brackets."""
    return mark if mark.startswith("<") else f"<{mark}>"


def _quoted(text: str) -> str:
    return _encode(text).decode()
