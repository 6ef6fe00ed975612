"""Upper bounds of a call's tokens."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gateway.call import Call, Directives, Native, Operation, Principal
from gateway.dialects.chat import dicts
from gateway.dialects.responses_native import native as responses_native
from gateway.estimate import bound, text_size


def call(operation: Operation, body: dict[str, Any]) -> Call:
    principal = Principal(key_id="k", team="t", project="p")
    return Call(
        id="1",
        operation=operation,
        principal=principal,
        body=body,
        model="m",
        stream=False,
        include_usage=False,
        directives=Directives(),
        received=0.0,
        at=0.0,
        deadline=1.0,
        size=len(msgspec.json.encode(body)),
    )


@given(st.lists(st.text(max_size=200), min_size=1, max_size=8))
def test_the_input_bound_is_never_below_the_bytes_of_the_text(texts: list[str]) -> None:
    """A byte-level tokenizer makes at most one token of a byte: below that, a hold could be overspent."""
    body = {"messages": [{"role": "user", "content": text} for text in texts]}
    assert bound(call("chat", body), 100).input >= sum(len(t.encode()) for t in texts) + 16 * len(texts)


def test_a_missing_cap_is_injected_and_multiplied_by_n() -> None:
    """The worst case of n choices is n times the cap."""
    found = bound(call("chat", {"messages": [], "n": 3}), 100)
    assert (found.output, found.injected) == (300, 100)


def test_a_client_cap_is_kept() -> None:
    """The client's own limit is the bound; nothing is injected over it."""
    found = bound(call("chat", {"messages": [], "max_completion_tokens": 7, "n": 2}), 100)
    assert (found.output, found.injected) == (14, None)


@pytest.mark.parametrize(("prompt", "outputs"), [("a", 16), (["a", "b"], 32), ([1, 2, 3], 16), ([[1], [2], [3]], 48)])
def test_each_prompt_of_a_legacy_completion_counts(prompt: object, outputs: int) -> None:
    """A list of prompts makes a list of answers; a list of token ids is one prompt."""
    assert bound(call("completion", {"prompt": prompt}), 100).output == outputs


def test_embeddings_have_no_output() -> None:
    """They are billed by input alone."""
    found = bound(call("embedding", {"input": ["a", "b"]}), 100)
    assert found.output == 0
    assert found.injected is None


def shown(part: dict[str, Any], model: str = "", window: int | None = 128_000) -> int:
    """The bound of a prompt with one part in it."""
    body = {"messages": [{"role": "user", "content": [part]}]}
    return bound(call("chat", body), 1, model, lambda: window).input


def picture(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_a_picture_counts_by_what_models_make_of_it() -> None:
    """A short URL can name a picture of thousands of tokens, and a megabyte of base64 is not a million tokens."""
    text = shown({"type": "text", "text": "x"})
    named, inline = shown(picture("http://x/y.png")), shown(picture("data:image/png;base64," + "A" * 1_000_000))
    assert 16_384 <= named - text < 17_000
    assert abs(named - inline) < 100
    assert shown(picture("http://x/y.png"), "gpt-4o-mini-2024-07-18") - text > 48_000


def test_a_recording_counts_by_how_long_it_can_be() -> None:
    """A thousand bytes a second is the least that speech takes, 32 tokens a second the most a model makes of it."""
    part = {"type": "input_audio", "input_audio": {"data": "A" * 133_333, "format": "mp3"}}  # of 100 seconds
    assert 3_200 < shown(part) < 3_600
    silent = {"type": "input_audio", "input_audio": {"data": "A" * 100, "format": "flac"}}
    assert shown(silent) == 128_000, "silence takes no bytes there"


FUNCTION = {"type": "function", "function": {"name": "f"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}


@pytest.mark.parametrize("more", [{"tools": [FUNCTION]}, {"functions": [{"name": "f"}]}, {"response_format": SCHEMA}])
def test_what_a_service_tells_of_tools_counts(more: dict[str, Any]) -> None:
    """Anthropic adds some hundred tokens that no client sent: without them a short request is billed above its hold."""
    plain: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
    added = bound(call("chat", plain | more), 1).input - bound(call("chat", plain), 1).input
    assert added >= 735 + len(msgspec.json.encode(more)) - 2


@pytest.mark.parametrize(
    ("apart", "known"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, False),
        ({"mcp_servers": [{"url": "https://x"}]}, False),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, True),
        ({"tools": [{"type": "shell"}, {"type": "shell", "environment": {"type": "local"}}]}, True),
        ({"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]}, False),
        ({"tools": [{"type": "tool_search", "execution": "client"}]}, True),
        ({"tools": [{"type": "tool_search"}]}, False),
        ({"thinking": {"type": "adaptive"}}, True),
    ],
)
def test_a_tool_that_runs_at_the_service_counts_as_the_models_window(apart: dict[str, Any], known: bool) -> None:
    """What a search finds is read by the model and billed as input, and nothing in the request tells how much it is."""
    native = Native(dialect="messages", body={}, headers={}, apart=apart)
    asked = structs.replace(call("chat", {"messages": [{"role": "user", "content": "x"}]}), native=native)
    found = bound(asked, 1, window=lambda: 200_000).input
    assert (found < 5_000) if known else (found == 200_000)


@pytest.mark.parametrize("part", [{"type": "file", "file": {"file_id": "f"}}, {"type": "video_url", "video_url": {}}])
def test_what_nothing_bounds_counts_as_the_models_window(part: dict[str, Any]) -> None:
    """A page of a document is a few bytes and a thousand tokens; no prompt is longer than what the model reads."""
    assert shown(part) == 128_000
    assert shown(part, window=None) >= 1_000_000


@pytest.mark.parametrize(("speed", "tokens"), [(None, 40), (2.0, 40), (0.5, 80), (0.01, 160)])
def test_speech_makes_sound_that_may_be_charged(speed: float | None, tokens: int) -> None:
    """Slow speech is longer; some models are paid for every token of it, which no answer tells."""
    assert bound(call("speech", {"input": "0123456789", "speed": speed}), 1).output == tokens


def test_text_size_counts_text_and_tool_arguments_but_not_roles() -> None:
    """Estimates after a cut must cover what was generated, and only that."""
    delta = {
        "role": "assistant",
        "content": "häh",
        "tool_calls": [{"id": "call_1", "function": {"name": "f", "arguments": "{}"}}],
    }
    assert text_size({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}) == 4 + 1 + 2


@pytest.mark.parametrize(
    ("dialect", "more", "searches"),
    [
        ("messages", {"tools": [{"type": "web_search_20250305", "max_uses": 3}, {"type": "web_search_20250305"}]}, 67),
        ("messages", {"tools": [{"type": "web_search_20250305"}], "max_tool_calls": 0}, 64),
        ("messages", {"tools": [{"type": "tool_search_tool_regex_20251119"}]}, 0),
        ("responses", {"tools": [{"type": "web_search"}], "max_tool_calls": 2}, 2),
        ("responses", {"tools": [{"type": "web_search"}], "max_tool_calls": -2}, 64),
        ("responses", {"tools": [{"type": "tool_search"}]}, 0),
        ("responses", {"input": [{"type": "additional_tools", "tools": [{"type": "web_search"}]}]}, 64),
    ],
)
def test_searches_that_a_request_allows_are_held(dialect: Any, more: dict[str, Any], searches: int) -> None:
    """Too few is a hold below the bill; some for a tool without a fee refuses agents for nothing."""
    asked = call("chat", {"messages": [], "max_tokens": 5})
    native = Native(dialect=dialect, body=more, headers={}, apart={})
    if dialect == "responses":
        native = responses_native(more, dicts(more.get("input")))
    assert bound(structs.replace(asked, native=native), 100).searches == searches
