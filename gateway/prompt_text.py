"""The text of a prompt in the order in which a model reads it: its tools by name and description, then its messages.

Knows: where requests keep their words; pictures stand for themselves by the beginning of their address. For telling
prompts apart quickly, never for what is charged. Does not know: tokens, templates, who is asked.
"""

from collections.abc import Iterator
from itertools import islice
from typing import cast

from gateway.call import Body

_MOST_TOOLS = 128
_MOST_IDS = 4_096  # of a prompt that is a list of tokens
_ADDRESS = 256


def prompt_text(body: Body) -> str:
    """Equal prompts give equal texts; what follows the same beginning changes none of it."""
    tools, messages = body.get("tools"), body.get("messages")
    if isinstance(messages, list):
        parts = [part for message in cast("list[object]", messages) for part in _message(message)]
        if isinstance(tools, list):
            named = islice(cast("list[object]", tools), _MOST_TOOLS)
            parts = [part for tool in named for part in _tool(tool)] + parts
        return "\n".join(parts)
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return str(cast("list[object]", prompt)[:_MOST_IDS])
    return prompt if isinstance(prompt, str) else ""


def _tool(tool: object) -> Iterator[str]:
    if not isinstance(tool, dict):
        return
    function = cast("Body", tool).get("function")
    told = cast("Body", function if isinstance(function, dict) else tool)
    for name in ("name", "description"):
        value = told.get(name)
        if isinstance(value, str):
            yield value


def _message(message: object) -> Iterator[str]:
    if not isinstance(message, dict):
        return
    said = cast("Body", message)
    yield str(said.get("role"))
    content = said.get("content")
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in cast("list[object]", content):
            yield from _part(part)
    if calls := said.get("tool_calls"):
        yield str(calls)


def _part(part: object) -> Iterator[str]:
    if isinstance(part, dict):
        for value in cast("Body", part).values():
            inner = cast("Body", value).get("url") if isinstance(value, dict) else value
            if isinstance(inner, str):
                yield inner if value is inner else inner[:_ADDRESS]
