"""What the translation bench measures: one conversation in every language, and a figure for each."""

from typing import Any

import pytest

from gateway.bench import translation
from gateway.dialects.messages import Messages
from gateway.dialects.responses import Responses


@pytest.mark.parametrize("body", [translation.short(), translation.agent()], ids=["short", "agent"])
def test_all_languages_say_the_same(body: dict[str, Any]) -> None:
    """Otherwise one of them would look cheaper for asking less."""
    for read in (
        Messages().read(translation.as_messages(body)).body,
        Responses().read(translation.as_responses(body)).body,
    ):
        assert _told(read) == _told(body)
        assert read["tools"] == [tool | {"function": tool["function"] | _strict(read)} for tool in body["tools"]]


def test_every_language_has_its_figures() -> None:
    """A language that is left out would be taken for one that costs nothing."""
    requests, events = translation.requests(1), translation.events(1)
    names = {"openai", "anthropic", "gemini", "bedrock"}
    dialects = {"/v1/messages", "/v1/responses"}
    assert len(requests) == 2
    for figures in requests.values():
        wanted = {f"to {name}" for name in names} | {f"from {name}" for name in (*dialects, "/v1/chat/completions")}
        assert set(figures) == wanted
        assert min(figures.values()) > 0
    assert set(events) == {f"from {name}" for name in names} | {f"to {name}" for name in dialects}


def _told(body: dict[str, Any]) -> list[tuple[object, object, int]]:
    return [(one["role"], _text(one["content"]), len(one.get("tool_calls", []))) for one in body["messages"]]


def _text(content: Any) -> Any:
    return content[0]["text"] if isinstance(content, list) else content


def _strict(read: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in read["tools"][0]["function"].items() if name == "strict"}
