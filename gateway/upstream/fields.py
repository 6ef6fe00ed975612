"""What translations of a chat request have in common: reading untyped JSON, and saying no.

Knows: which fields OpenAI defines, so that all others can be passed on. Does not know: any upstream's own fields.
"""

import base64
import binascii
import re
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, NoReturn, cast

import msgspec

from gateway.call import Body
from gateway.errors import InvalidRequest
from gateway.upstream import other_models

Check = Callable[[object], str]

# OpenAI's published chat request; source: openai-openapi v2.3.0, CreateChatCompletionRequest.
_DEFINED = """
model messages stream stream_options max_tokens max_completion_tokens temperature top_p n stop seed presence_penalty
frequency_penalty logit_bias logprobs top_logprobs response_format tools tool_choice parallel_tool_calls functions
function_call reasoning_effort verbosity service_tier modalities audio prediction web_search_options moderation store
metadata user safety_identifier prompt_cache_key prompt_cache_retention prompt_cache_options
"""
DEFINED = frozenset(_DEFINED.split())
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?((?:;[\w.+-]+=[^;,]*)*)(;base64)?,", re.ASCII)
_decode = msgspec.json.Decoder().decode


class Data(NamedTuple):
    """What a data URL holds: base64 text and its media type."""

    media_type: str
    content: str


def refuse(param: str, message: str, code: str = "unsupported_parameter") -> NoReturn:
    raise InvalidRequest(message, param=param, code=code)


def unsupported(body: Body, checks: Mapping[str, Check]) -> tuple[str, str] | None:
    """The first field a target cannot honour, and why; a check says why, or nothing."""
    for name, check in checks.items():
        value = body.get(name)
        if value is not None and (why := check(value)):
            return name, why
    return None


def refuse_unsupported(body: Body, checks: Mapping[str, Check]) -> None:
    """Raises InvalidRequest for the first field a target cannot honour."""
    if found := unsupported(body, checks):
        refuse(*found)


def never(what: str) -> Check:
    """The field asks for something whenever it is neither empty, false nor zero."""
    return lambda value: f"This model does not support {what}." if value else ""


def one_of(known: Collection[str], what: str) -> Check:
    return lambda value: "" if value in known else f"This model knows these values of {what}: {', '.join(known)}."


def at_most_one(value: object) -> str:
    """Of temperatures."""
    return "This model's temperature is at most 1." if isinstance(value, int | float) and value > 1 else ""


def schema_or_text(value: object) -> str:
    """Of response formats, where JSON without a schema cannot be asked for."""
    kind = mapping(value).get("type")
    return "" if kind in ("text", "json_schema") else "This model needs a schema: response_format of type json_schema."


def passed_on(body: Body) -> Body:
    """The fields that OpenAI does not define: they may be the upstream's own.

    Raises InvalidRequest for those that would have another model answer.
    """
    other_models.refuse(body)
    return {name: value for name, value in body.items() if name not in DEFINED and value is not None}


def one_choice(value: object) -> str:
    return "" if value == 1 else "This model gives one answer per request."


def text_only(value: object) -> str:
    return "" if value == ["text"] else "This model answers in text only."


def usual_verbosity(value: object) -> str:
    return "" if value == "medium" else "This model does not support verbosity."


def objects(value: object) -> list[Body]:
    """The objects in a list; nothing where there is none."""
    if not isinstance(value, list):
        return []
    return [cast("Body", item) for item in cast("list[object]", value) if isinstance(item, dict)]


def thoughts(message: Body) -> list[Body]:
    """Signed thinking of an earlier answer; what OpenAI sealed, which has an id, nobody else can read."""
    return [block for block in objects(message.get("thinking_blocks")) if "id" not in block]


def mapping(value: object) -> Body:
    return cast("Body", value) if isinstance(value, dict) else {}


def words(value: object) -> str:
    return value if isinstance(value, str) else ""


def whole_number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def output_limit(body: Body, default: int) -> int:
    limit = whole_number(body.get("max_completion_tokens"))
    if limit is None:
        limit = whole_number(body.get("max_tokens"))
    return default if limit is None else limit


def stops(body: Body) -> list[str]:
    stop = body.get("stop")
    return [stop] if isinstance(stop, str) else cast("list[str]", stop or [])


def arguments(call: Body, path: str) -> msgspec.Raw:
    """The arguments of an earlier call, exactly as written. Raises InvalidRequest unless they are an object."""
    text = words(mapping(call.get("function")).get("arguments")).strip() or "{}"
    try:
        found = _decode(text)
    except (msgspec.DecodeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        refuse(f"{path}.function.arguments", "The arguments of a tool call must be a JSON object.", "invalid_value")
    return msgspec.Raw(text.encode("utf-8", "replace"))


def function_tools(body: Body) -> list[tuple[Body, Body]]:
    """Every tool with its function; `tool_choice: allowed_tools` leaves only those it names. {} for another's tool.

    Raises InvalidRequest for tools that take free text.
    """
    found: list[tuple[Body, Body]] = []
    allowed = _allowed(body.get("tool_choice"))
    for index, tool in enumerate(objects(body.get("tools"))):
        if tool.get("type") == "custom":
            refuse(f"tools[{index}]", "This model's tools take JSON, not free text.")
        function = mapping(tool.get("function")) if tool.get("type", "function") == "function" else {}
        if allowed is None or words(function.get("name")) in allowed:
            found.append((tool, function))
    return found


def choice_of_tools(body: Body) -> tuple[str, str]:
    """`none`, `auto`, `required` or `function` with its name; all of them "" where nothing is said."""
    choice = body.get("tool_choice")
    if isinstance(choice, str):
        return choice, ""
    given = mapping(choice)
    if given.get("type") == "allowed_tools":
        return words(mapping(given.get("allowed_tools")).get("mode")) or "auto", ""
    if given.get("type") == "custom":
        refuse("tool_choice", "This model's tools take JSON, not free text.")
    return ("function", words(mapping(given.get("function")).get("name"))) if given else ("", "")


def _allowed(choice: object) -> set[str] | None:
    given = mapping(choice)
    if given.get("type") != "allowed_tools":
        return None
    return {
        words(mapping(tool.get("function")).get("name"))
        for tool in objects(mapping(given["allowed_tools"]).get("tools"))
    }


def data_of(url: str, path: str) -> Data | None:
    """The content of a data URL, None for any other. Raises InvalidRequest for one that is broken."""
    if not url.startswith("data:"):
        return None
    found = _DATA_URL.match(url)
    if found is None:
        refuse(path, "This is not a data URL with a media type.", "invalid_value")
    content = url[found.end() :]
    media_type = found[1] or "text/plain"
    if not found[3]:
        return Data(media_type, base64.b64encode(content.encode()).decode())
    try:
        binascii.a2b_base64(content, strict_mode=True)
    except (binascii.Error, ValueError):
        refuse(path, "This data URL is not valid base64.", "invalid_value")
    return Data(media_type, content)


def is_web(url: str) -> bool:
    return url.startswith(("https://", "http://"))
