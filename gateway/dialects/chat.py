"""The inner language, chat completions, as every dialect reads its answers and writes its contents.

Knows: where an answer keeps its choice, texts and thoughts, and by which names servers say them. Does not know: other
dialects.
"""

from typing import Any, cast

from gateway.call import Body


def first_choice(data: Body) -> Body:
    """Of an answer or of a chunk; empty where there is none."""
    choices = data.get("choices")
    return cast("list[Body]", choices)[0] if isinstance(choices, list) and choices else {}


def dicts(value: object) -> list[Body]:
    return cast("list[Body]", value) if isinstance(value, list) else []


def text_of(value: object) -> str:
    """Content as text; some servers say it in parts."""
    if isinstance(value, str):
        return value
    return "".join([str(part.get("text") or "") for part in dicts(value) if part.get("type") == "text"])


def thought_of(said: Body) -> str:
    """What a model thought, by the two names that servers give it."""
    return text_of(said.get("reasoning_content")) or text_of(said.get("reasoning"))


def content_of(parts: list[Body]) -> Any:
    """As a chat client would write it: one text is a string, so that the same question has one form."""
    if not parts:
        return ""
    if len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]
    return parts
