"""What a Messages request becomes: nothing of it is lost on the way, and a fault is named in the client's terms."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.messages_native import apart
from gateway.dialects.messages_request import translate
from gateway.dialects.tool_names import ToolNames
from gateway.errors import InvalidRequest

HI = {"role": "user", "content": "hi"}
TOOL = {"name": "look", "input_schema": {"type": "object"}}
BASE: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [HI]}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def _texts(content: Any) -> list[str]:
    return [content] if isinstance(content, str) else [part["text"] for part in content if part["type"] == "text"]


@given(
    said=st.lists(TEXT, min_size=1, max_size=4),
    arguments=st.dictionaries(TEXT, JSON, max_size=4),
    results=st.lists(TEXT, min_size=1, max_size=3),
)
def test_texts_and_tool_arguments_survive(said: list[str], arguments: dict[str, Any], results: list[str]) -> None:
    """Translation is only worth having when a model reads exactly what the client wrote."""
    blocks = [{"type": "text", "text": text} for text in said]
    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": arguments}
    outcome = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": [{"type": "text", "text": text} for text in results],
    }
    messages = [
        {"role": "user", "content": blocks},
        {"role": "assistant", "content": [*blocks, call]},
        {"role": "user", "content": [outcome, *blocks]},
    ]
    inner = translate({**BASE, "messages": messages, "tools": [TOOL]}).body
    user, assistant, tool, last = inner["messages"]  # pyright: ignore[reportGeneralTypeIssues] - a list of messages
    assert _texts(user["content"]) == _texts(assistant["content"]) == _texts(last["content"]) == said
    assert msgspec.json.decode(assistant["tool_calls"][0]["function"]["arguments"]) == arguments
    assert (tool["tool_call_id"], _texts(tool["content"])) == ("toolu_1", results)


@given(st.lists(st.from_regex(r"\A[a-zA-Z0-9_-]{1,128}\Z"), min_size=1, max_size=20, unique=True))
def test_tool_names_come_back(names: list[str]) -> None:
    """A model may be told a shorter name; the client must get its own, and no two may become one."""
    known = ToolNames()
    told = [known.inner(name) for name in names]
    assert len(set(told)) == len(names)
    assert all(len(name) <= 64 for name in told)
    assert [known.outer(name) for name in told] == [(None, name) for name in names]


def test_a_plain_question_is_written_as_a_chat_client_would() -> None:
    """Only then is an answer kept for one dialect a hit in the other."""
    blocks = [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}]
    expected = {"model": "m", "messages": [HI], "max_completion_tokens": 9}
    assert translate({**BASE, "messages": blocks}).body == expected == translate(BASE).body


def test_images_and_documents_are_passed_on() -> None:
    """What a model cannot see it may refuse; the gateway must not lose it first, nor fetch it."""
    content = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}},
        {"type": "image", "source": {"type": "url", "url": "http://169.254.169.254/"}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a text"}, "title": "T"},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "QUJD"}},
    ]
    inner: Any = translate({**BASE, "messages": [{"role": "user", "content": content}]}).body
    assert inner["messages"][0]["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}},
        {"type": "text", "text": "T"},
        {"type": "text", "text": "a text"},
        {"type": "file", "file": {"filename": "document.pdf", "file_data": "data:application/pdf;base64,QUJD"}},
    ]


def test_an_image_in_a_tools_result_is_shown_after_it() -> None:
    """Chat's tool messages hold text only, and a screenshot is what the model waits for."""
    shot = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
    messages = [
        HI,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [shot]}]},
    ]
    inner: Any = translate({**BASE, "messages": messages, "tools": [TOOL]}).body
    assert [message["role"] for message in inner["messages"]] == ["user", "assistant", "tool", "user"]
    assert inner["messages"][2]["content"] == ""
    assert inner["messages"][3]["content"][0]["type"] == "image_url"


@pytest.mark.parametrize(
    ("choice", "becomes"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "tool", "name": "look"}, {"tool_choice": {"type": "function", "function": {"name": "look"}}}),
        ({"type": "auto", "disable_parallel_tool_use": True}, {"tool_choice": "auto", "parallel_tool_calls": False}),
    ],
)
def test_choices_of_tools(choice: dict[str, Any], becomes: dict[str, Any]) -> None:
    """A forced tool that is not forced any more is a silent change of the request."""
    inner = translate({**BASE, "tools": [TOOL], "tool_choice": choice}).body
    assert {name: inner[name] for name in inner.keys() & {"tool_choice", "parallel_tool_calls"}} == becomes


def test_a_schema_for_the_answer_is_kept() -> None:
    """Structured outputs are asked for here by another name."""
    asked = {"format": {"type": "json_schema", "schema": {"type": "object"}}, "effort": "low"}
    inner = translate({**BASE, "output_config": asked})
    assert inner.body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True},
    }
    assert inner.ignored == ("output_config.effort",)


def test_a_session_is_not_who_asks() -> None:
    """Some clients write their session into the user's name; budgets per user would then never hold."""
    users = [f'{{"account_uuid": "a", "session_id": "{n}"}}' for n in range(2)]
    told = [translate({**BASE, "metadata": {"user_id": user}}).body["user"] for user in users]
    assert told[0] == told[1] == '{"account_uuid":"a"}'
    assert translate({**BASE, "metadata": {"user_id": "u-1"}}).body["user"] == "u-1"


_USE = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model"),
    ({"model": "a\r\nb"}, "model"),
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{}]}, "messages[0].role"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [_USE]}]}, "messages[0].content[0].type"),
    (
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "zzz"}]}]},
        "messages[0].content[0].tool_use_id",
    ),
    ({"temperature": 1.5}, "temperature"),
    ({"top_k": -1}, "top_k"),
    ({"stop_sequences": ["a"] * 5}, "stop_sequences"),
    ({"stream": "yes"}, "stream"),
    ({"system": 5}, "system"),
    ({"tools": "x"}, "tools"),
    ({"tools": [{"name": "bad name!", "input_schema": {}}]}, "tools[0].name"),
    ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
    ({"tools": [{"name": "look"}]}, "tools[0].input_schema"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "maybe"}}, "tool_choice.type"),
    ({"metadata": {"user_id": "u" * 2_000}}, "metadata.user_id"),
    ({"thinking": {"type": "loudly"}}, "thinking.type"),
]


@pytest.mark.parametrize(("change", "param"), FAULTS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_fault_is_named_by_its_own_path(change: dict[str, Any], param: str) -> None:
    """A client that is told a path of another dialect looks for a field it never wrote."""
    with pytest.raises(InvalidRequest) as raised:
        translate({**BASE, **change})
    assert raised.value.param == param
    assert raised.value.http_status == 400


_SEARCH = {"type": "web_search_20250305", "name": "web_search"}
NEEDS: list[tuple[dict[str, Any], str]] = [
    ({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, "messages[0].content[0].type"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]}]},
        "messages[0].content[0].source.type",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "url", "url": "x"}}]}]},
        "messages[0].content[0].source.type",
    ),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
    ({"tools": [TOOL, _SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}}, "tools[1].type"),
]


@pytest.mark.parametrize(("change", "param"), NEEDS, ids=lambda value: value if isinstance(value, str) else "")
def test_what_only_anthropic_can_do_is_needed_by_its_own_path(change: dict[str, Any], param: str) -> None:
    """It is refused where nobody speaks Messages, and only there; what is named is what the client wrote."""
    found = translate({**BASE, **change})
    assert found.need is not None
    assert found.need.param == param
    if "messages" in change:
        (said,) = found.body["messages"]  # pyright: ignore[reportGeneralTypeIssues] - a list of messages
        assert msgspec.json.decode(said["content"]) == change["messages"][0]["content"][0]


def test_what_the_inner_request_does_not_say_tells_requests_apart() -> None:
    """Two questions that differ in citations, a failed tool or a tool's examples must not get one kept answer."""
    asked = [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}]
    assert apart({**BASE, "messages": asked, "tools": [TOOL]}) == {}
    document = {"type": "document", "source": {"type": "text", "data": "x"}, "citations": {"enabled": True}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [document], "is_error": True}
    content = [document, result, {"type": "tool_result", "tool_use_id": "b", "is_error": False}]
    tools = [{**TOOL, "input_examples": [{"a": 1}]}, _SEARCH]
    found = apart({**BASE, "messages": [{"role": "user", "content": content}], "tools": tools})
    cited, failed = {"citations": {"enabled": True}}, {"at": 1, "is_error": True}
    blocks = [{"at": 0, **cited}, failed, {"at": 2, **cited}, {"at": 0, "input_examples": [{"a": 1}]}]
    assert found == {"blocks": blocks, "tools": [_SEARCH], "tool_choice": None}


def test_which_of_two_tools_failed_tells_requests_apart() -> None:
    """Both may have said the same."""
    results = [{"type": "tool_result", "tool_use_id": name, "content": ""} for name in ("a", "b")]
    first, second = (
        apart({**BASE, "messages": [{"role": "user", "content": content}]})
        for content in ([results[0] | {"is_error": True}, results[1]], [results[0], results[1] | {"is_error": True}])
    )
    assert first != second


def test_a_choice_among_the_services_tools_tells_requests_apart() -> None:
    """Whoever wants a search must not get the answer of one who forbade it; the inner request says neither."""
    asked: list[dict[str, Any]] = [
        {**BASE, "tools": [_SEARCH], "tool_choice": {"type": kind}} for kind in ("none", "any")
    ]
    assert translate(asked[0]).body == translate(asked[1]).body
    assert apart(asked[0]) != apart(asked[1])


def test_an_unknown_kind_of_tool_is_left_out_by_name_beside_known_ones() -> None:
    """Agents offer tools of their maker's services; the others must not be lost for it, and nothing silently."""
    search = {"type": "web_search_20250305", "name": "web_search"}
    inner = translate({**BASE, "tools": [TOOL, search]})
    assert [tool["function"]["name"] for tool in inner.body["tools"]] == ["look"]  # pyright: ignore[reportGeneralTypeIssues] - a list of tools
    assert inner.ignored == ("tools[1].type=web_search_20250305",)
