"""What form an answer must have, in a bundled engine's words: JSON, schemas, grammars, tools, thinking, predictions.

Knows: OpenAI's `response_format`, `tools`, `tool_choice`, `prediction` and `reasoning_effort`; vLLM's `guided_*`,
`structured_outputs` and `chat_template_kwargs`. Does not know: how sequences are run, what the engine itself refuses.
"""

from typing import Literal, cast

import msgspec

from engine.api import Constraint, Tools
from gateway.call import Body
from gateway.errors import InvalidRequest
from gateway.upstream.fields import choice_of_tools, function_tools

Kind = Literal["json", "schema", "regex", "choice", "grammar"]
_GUIDED: dict[str, Kind] = {
    "guided_json": "schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
_STRUCTURED: dict[str, Kind] = {
    "json": "schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
    "json_object": "json",
}
_encode = msgspec.json.Encoder().encode


def constraint(body: Body) -> Constraint | None:
    """The one form that is asked for. Raises InvalidRequest for two of them, or one that is no form."""
    given = {name: _constraint(kind, body[name], name) for name, kind in _GUIDED.items() if body.get(name) is not None}
    if body.get("structured_outputs") is not None:
        given["structured_outputs"] = _structured(body["structured_outputs"])
    asked = body.get("response_format")
    if isinstance(asked, dict) and (form := cast("Body", asked)).get("type") != "text":
        given["response_format"] = _format(form)
    if len(given) > 1:
        raise InvalidRequest("Ask for one form only.", param=min(given))
    return next(iter(given.values()), None)


def asked_in(body: Body) -> str:
    """The field that asks for a form; an engine, which does not know it, says `response_format`."""
    asked = [name for name in (*_GUIDED, "structured_outputs") if body.get(name) is not None]
    return asked[0] if asked else "response_format"


def _format(asked: Body) -> Constraint:
    # Together, Fireworks and llama.cpp take a schema beside `json_object`, and instructor sends one.
    held = asked if asked.get("type") == "json_object" else cast("Body", asked.get("json_schema") or {})
    schema = held.get("schema")
    return Constraint("json") if schema is None else Constraint("schema", _text(schema), held.get("strict") is True)


def _structured(asked: object) -> Constraint:
    given = {name: value for name, value in cast("Body", asked).items() if value} if isinstance(asked, dict) else {}
    known = [name for name in given if name in _STRUCTURED]
    unknown = sorted(given.keys() - _STRUCTURED.keys() - {"disable_any_whitespace", "whitespace_pattern"})
    if len(known) != 1 or unknown:
        message = f"structured_outputs takes one of {', '.join(_STRUCTURED)}."
        raise InvalidRequest(message, param="structured_outputs")
    return _constraint(_STRUCTURED[known[0]], given[known[0]], f"structured_outputs.{known[0]}")


def _constraint(kind: Kind, value: object, path: str) -> Constraint:
    """`value` as its text; a schema may come as an object or as JSON in a string."""
    if kind == "json":
        return Constraint("json")
    if kind in ("regex", "grammar") and not isinstance(value, str):
        raise InvalidRequest(f"{path} must be a string.", param=path)
    return Constraint(kind, value if isinstance(value, str) else _text(value))


def _text(value: object) -> str:
    try:
        return _encode(value).decode()
    except (RecursionError, UnicodeEncodeError) as error:
        raise InvalidRequest("The schema is nested too deeply or holds what is no text.") from error


def tools(body: Body) -> Tools | None:
    """Raises InvalidRequest for tools that are no functions."""
    offered = [(tool, function) for tool, function in function_tools(body)]
    if not offered:
        return None
    if any(not function for _, function in offered):
        raise InvalidRequest("This model takes tools of type function only.", param="tools")
    mode, name = choice_of_tools(body)
    choice: Literal["auto", "none", "required"] = "auto"
    if mode in ("none", "required"):
        choice = "none" if mode == "none" else "required"
    elif mode == "function":
        choice = "required"
    return Tools(
        functions=[function for _, function in offered],
        choice=choice,
        name=name or None,
        parallel=body.get("parallel_tool_calls") is not False,
    )


def thinking(body: Body) -> bool | None:
    """Whether the model shall think first. None leaves it to its template."""
    options = body.get("chat_template_kwargs")
    asked = cast("Body", options).get("enable_thinking") if isinstance(options, dict) else None
    if isinstance(asked, bool):
        return asked
    return False if body.get("reasoning_effort") == "none" else None


def prediction(body: Body) -> str:
    """The text that `prediction` expects to be repeated. Raises InvalidRequest when it holds no text."""
    given = body.get("prediction")
    if given is None:
        return ""
    content = cast("Body", given).get("content") if isinstance(given, dict) else None
    if isinstance(content, list):
        texts = [cast("Body", part).get("text") for part in cast("list[object]", content) if isinstance(part, dict)]
        content = "".join(text for text in texts if isinstance(text, str))
    if not isinstance(content, str):
        raise InvalidRequest("prediction.content must be text.", param="prediction.content")
    return content


def priority(body: Body) -> int:
    """A client may step back, never ahead: `service_tier: flex`, or vLLM's `priority`, where more means later."""
    asked = body.get("priority")
    if isinstance(asked, int) and not isinstance(asked, bool):
        return -min(max(asked, 0), 1_000)
    return -1 if body.get("service_tier") == "flex" else 0
