"""What a Responses request becomes: nothing of it is lost on the way, and a fault is named in the client's terms."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects import responses_compaction as compaction
from gateway.dialects.responses_request import translate
from gateway.dialects.tool_names import ToolNames
from gateway.errors import InvalidRequest

LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}}
BASE: dict[str, Any] = {"model": "m", "input": "hi"}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


def inner(**change: Any) -> Any:
    return translate({**BASE, **change}).body


def _texts(content: Any) -> list[str]:
    return [content] if isinstance(content, str) else [part["text"] for part in content]


@given(said=st.lists(TEXT, min_size=1, max_size=4), arguments=TEXT, free=TEXT, results=st.lists(TEXT, min_size=1))
def test_texts_and_tool_arguments_survive(said: list[str], arguments: str, free: str, results: list[str]) -> None:
    """Translation is only worth having when a model reads exactly what the client wrote."""
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": text} for text in said]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text} for text in said]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": arguments},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": free},
        {"type": "function_call_output", "call_id": "c1", "output": results[0]},
        {
            "type": "custom_tool_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": text} for text in results],
        },
    ]
    user, assistant, first, second = inner(input=items, tools=[LOOK, {"type": "custom", "name": "patch"}])["messages"]
    assert _texts(user["content"]) == _texts(assistant["content"]) == said
    look, patch = assistant["tool_calls"]
    assert look == {"id": "c1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    assert patch["id"] == "c2"
    assert (first["tool_call_id"], first["content"]) == ("c1", results[0])
    assert (second["tool_call_id"], _texts(second["content"])) == ("c2", results)


def test_a_plain_question_is_written_as_a_chat_client_would() -> None:
    """Only then is an answer kept for one dialect a hit in the other."""
    expected = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    assert inner() == inner(input=[{"role": "user", "content": "hi"}]) == expected
    assert inner(input=[{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]) == expected


def test_instructions_come_first_and_in_the_role_every_model_knows() -> None:
    """`developer` is OpenAI's own word; other models' templates fail on it."""
    told = inner(
        instructions="Be brief.", input=[{"role": "developer", "content": "a"}, {"role": "user", "content": "b"}]
    )
    assert [(one["role"], one["content"]) for one in told["messages"]] == [
        ("system", "Be brief."),
        ("system", "a"),
        ("user", "b"),
    ]


def test_settings_by_their_other_names() -> None:
    """Each of these would otherwise be lost without a word."""
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    told = inner(
        max_output_tokens=7,
        reasoning={"effort": "low"},
        text={"format": schema, "verbosity": "low"},
        top_logprobs=2,
        prompt_cache_retention="24h",
        prompt_cache_options={"mode": "explicit"},
        parallel_tool_calls=False,
        tools=[LOOK],
        tool_choice={"type": "function", "name": "look"},
    )
    assert told["max_completion_tokens"] == 7
    assert told["reasoning_effort"] == "low"
    assert told["verbosity"] == "low"
    assert told["response_format"]["json_schema"] == {"name": "n", "schema": {"type": "object"}, "strict": True}
    assert (told["logprobs"], told["top_logprobs"]) == (True, 2)
    assert (told["prompt_cache_retention"], told["prompt_cache_options"]) == ("24h", {"mode": "explicit"})
    assert told["parallel_tool_calls"] is False
    assert told["tool_choice"] == {"type": "function", "function": {"name": "look"}}
    assert told["tools"] == [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def test_only_allowed_tools_are_offered() -> None:
    """Few servers know the choice among some; all know tools that are not there."""
    other = {**LOOK, "name": "other"}
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look"}]}
    told = inner(tools=[LOOK, other], tool_choice=choice)
    assert [tool["function"]["name"] for tool in told["tools"]] == ["look"]
    assert told["tool_choice"] == "required"


def test_images_and_files_are_passed_on() -> None:
    """What a model cannot see it may refuse; the gateway must not lose it first, nor fetch it."""
    content = [
        {"type": "input_image", "image_url": "http://169.254.169.254/", "detail": "low"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,QUJD"},
    ]
    assert inner(input=[{"role": "user", "content": content}])["messages"][0]["content"] == [
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/", "detail": "low"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,QUJD"}},
    ]


@given(
    st.lists(
        st.tuples(st.sampled_from([None, "a", "a__", "a__b"]), st.sampled_from(["b__c", "c", "a__c"])), unique=True
    )
)
def test_names_in_spaces_come_back(outer: list[tuple[str | None, str]]) -> None:
    """Two tools of one name in different spaces must not become one."""
    names = ToolNames()
    told = [names.inner(name, space) for space, name in outer]
    assert len(set(told)) == len(outer)
    assert [names.outer(name) for name in told] == outer
    assert [names.inner(name, space) for space, name in outer] == told


def test_tools_of_services_are_left_out_by_name_beside_others() -> None:
    """Agents offer them with every request; the others must not be lost for it, and nothing silently."""
    space = {"type": "namespace", "name": "mcp__files", "tools": [LOOK]}
    found = translate({**BASE, "tools": [LOOK, space, {"type": "web_search", "external_web_access": True}]})
    assert [tool["function"]["name"] for tool in found.body["tools"]] == ["look", "mcp__files__look"]  # pyright: ignore[reportGeneralTypeIssues] - a list of tools
    assert found.ignored == ("tools[2].type=web_search",)


def test_what_has_no_effect_is_named() -> None:
    """A client must be able to see what of its request did not count."""
    found = translate({**BASE, "store": True, "include": ["reasoning.encrypted_content"], "max_tool_calls": 3})
    assert set(found.ignored) == {"store", "include=reasoning.encrypted_content", "max_tool_calls"}
    options = {"include_obfuscation": True}
    assert translate({**BASE, "stream_options": options}).ignored == ("stream_options.include_obfuscation",)
    assert translate({**BASE, "stream_options": {"include_obfuscation": False}}).ignored == ()
    assert translate({**BASE, "store": False, "client_metadata": {"a": "b"}}).ignored == ()


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model"),
    ({"model": "a\r\nb"}, "model"),
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": [{}]}, "input[0].type"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": []}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "hologram"}]}]}, "input[0].content[0].type"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
        "input[0].content[0].image_url",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
        "input[0].content[0].file_data",
    ),
    ({"input": [{"type": "function_call_output", "call_id": "zzz", "output": "x"}]}, "input[0].call_id"),
    ({"input": [{"type": "local_shell_call_output", "id": "x", "output": "y"}]}, "input[0].id"),
    ({"input": [{"type": "local_shell_call_output", "output": "y"}]}, "input[0].call_id"),
    ({"input": [{"type": "local_shell_call", "action": {"command": ["ls"]}}]}, "input[0].call_id"),
    ({"input": [{"type": "local_shell_call", "call_id": "c", "action": {"command": "ls"}}]}, "input[0].action.command"),
    ({"input": [{"type": "shell_call", "call_id": "c", "action": {}}]}, "input[0].action.commands"),
    ({"input": [{"type": "shell_call_output", "call_id": "c", "output": "x"}]}, "input[0].output"),
    ({"input": [{"type": "apply_patch_call", "call_id": "c", "operation": {"type": "x"}}]}, "input[0].operation.type"),
    (
        {"tools": [{"type": "shell", "environment": {"type": "local", "skills": [{"name": "n", "path": "p"}]}}]},
        "tools[0].environment.skills[0].description",
    ),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"background": True}, "background"),
    ({"temperature": 3}, "temperature"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"stream": "yes"}, "stream"),
    ({"truncation": "maybe"}, "truncation"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format.name"),
    ({"tools": "x"}, "tools"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "bad name!"}]}, "tools[0].name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [LOOK], "tool_choice": "maybe"}, "tool_choice"),
    ({"tools": [LOOK], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    ({"tools": [LOOK], "tool_choice": {"type": "function"}}, "tool_choice.name"),
    ({"tools": [LOOK], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
    ({"metadata": {"a": 5}}, "metadata"),
]


@pytest.mark.parametrize(("change", "param"), FAULTS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_fault_is_named_by_its_own_path(change: dict[str, Any], param: str) -> None:
    """A client that is told a path of another dialect looks for a field it never wrote."""
    with pytest.raises(InvalidRequest) as raised:
        translate({**BASE, **change})
    assert raised.value.param == param
    assert raised.value.http_status == 400


_HOSTED = {"type": "code_interpreter", "container": {"type": "auto"}}
NEEDS: list[tuple[dict[str, Any], str]] = [
    ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "https://x/y.pdf"}]}]},
        "input[0].content[0].file_url",
    ),
    ({"input": [{"type": "compaction", "encrypted_content": "gAAAAABo"}]}, "input[0].encrypted_content"),
    ({"moderation": {"model": "omni-moderation-latest"}}, "moderation"),
    ({"tools": [_HOSTED]}, "tools[0].type"),
    ({"tools": [_HOSTED], "tool_choice": "required"}, "tools[0].type"),
    ({"tools": [LOOK, _HOSTED], "tool_choice": {"type": "code_interpreter"}}, "tool_choice.type"),
]


@pytest.mark.parametrize(("change", "param"), NEEDS, ids=lambda value: value if isinstance(value, str) else "")
def test_what_only_openai_can_do_is_needed_by_its_own_path(change: dict[str, Any], param: str) -> None:
    """It is refused where nobody has Responses, and only there; what is named is what the client wrote."""
    found = translate({**BASE, **change})
    assert found.need is not None
    assert found.need.param == param


def test_the_request_as_openai_takes_it_holds_the_whole_conversation() -> None:
    """What is continued is kept here and unknown there; notes of ours are told, and thoughts go back sealed."""
    note = compaction.item("cmp_1", "We bake.")
    thought: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"}
    earlier: list[dict[str, Any]] = [{"role": "user", "content": "old", "type": "message"}, note, thought]
    found = translate({**BASE, "input": "And now?", "reasoning": {"effort": "low", "summary": "auto"}}, earlier)
    told, kept, asked = found.native.body["input"]  # pyright: ignore[reportGeneralTypeIssues] - a list of items
    assert told["role"] == "user"
    assert told["content"].endswith("We bake.")
    assert (kept, asked["content"]) == (thought, "And now?")
    assert found.native.apart == {
        "reasoning": {"summary": "auto"},
        "items": [[1, {"encrypted_content": "sealed"}]],
    }


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"tools": [{"type": "web_search"}], "tool_choice": "none"}, {"tools": [{"type": "web_search"}]}),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, {"tools": [{"type": "web_search"}]}),
        ({"top_logprobs": 2}, {}),
    ],
)
def test_what_openai_is_told_alone_tells_requests_apart(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Whoever wants a search must not get an answer without one, nor a chat client one without log probabilities."""
    assert translate({**BASE, **one}).native.apart != translate({**BASE, **other}).native.apart


@pytest.mark.parametrize("kind", [{}, [], {"a": 1}, 5, None])
def test_a_type_that_is_no_text_is_refused_or_told_as_it_came(kind: object) -> None:
    """Whatever a client sends is its own fault, and never ours."""
    with pytest.raises(InvalidRequest) as raised:
        translate({**BASE, "tools": [LOOK], "tool_choice": {"type": kind}})
    assert raised.value.param == "tool_choice.type"
    search = {"type": "tool_search_output", "execution": "server", "tools": [{"type": kind}]}
    found = translate({**BASE, "input": [{"role": "user", "content": "hi"}, search]})
    assert found.native.body["input"][1] == search  # pyright: ignore[reportIndexIssue] - a list of items
