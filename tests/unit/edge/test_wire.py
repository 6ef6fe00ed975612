"""Each malformed request is refused with the path of its fault; each well-formed one passes unchanged."""

import copy
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.wire import check_chat, check_completion, check_embedding
from tests.proofs import examples

Check = Callable[[dict[str, object]], None]
HELLO: dict[str, Any] = {"role": "user", "content": "hello"}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL: dict[str, Any] = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [HELLO], **fields}


def said(*messages: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages)}


def user(content: Any) -> dict[str, Any]:
    return said({"role": "user", "content": content})


def refused(check: Check, body: dict[str, Any]) -> InvalidRequest:
    before = copy.deepcopy(body)
    with pytest.raises(InvalidRequest) as caught:
        check(body)
    assert body == before, "a check changed the body"
    assert caught.value.http_status == 400
    assert caught.value.message
    assert len(caught.value.body()) < 8_000
    return caught.value


def fault_of(check: Check, body: dict[str, Any]) -> InvalidRequest | None:
    try:
        check(body)
    except InvalidRequest as error:
        return error
    return None


CHAT_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"messages": [HELLO]}, "model"),
    (chat(model=None), "model"),
    (chat(model=["m"]), "model"),
    (chat(model=""), "model"),
    (chat(model="m\r\nx-evil: 1"), "model"),
    (chat(model="m\0"), "model"),
    (chat(model="m" * 100_000), "model"),
    ({"model": "m"}, "messages"),
    (chat(messages=[]), "messages"),
    (chat(messages="hello"), "messages"),
    (chat(messages=None), "messages"),
    (said({}), "messages[0].role"),
    (said(123), "messages[0]"),
    (said({"role": "king", "content": "x"}), "messages[0].role"),
    (said({"role": {}, "content": "x"}), "messages[0].role"),
    (said({"role": None, "content": "x"}), "messages[0].role"),
    (said(HELLO, {"role": "user"}), "messages[1].content"),
    (user(5), "messages[0].content"),
    (user(None), "messages[0].content"),
    (user([]), "messages[0].content"),
    (user([{}]), "messages[0].content[0].type"),
    (user([{"type": "hologram"}]), "messages[0].content[0].type"),
    (user([{"type": "text"}]), "messages[0].content[0].text"),
    (user([{"type": "text", "text": 5}]), "messages[0].content[0].text"),
    (user(["x"]), "messages[0].content[0]"),
    (user([{"type": "image_url", "image_url": {}}]), "messages[0].content[0].image_url.url"),
    (said({"role": "system", "content": None}), "messages[0].content"),
    (
        said({"role": "system", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
        "messages[0].content[0].type",
    ),
    (said(HELLO, {"role": "assistant"}), "messages[1].content"),
    (said(HELLO, {"role": "assistant", "content": None, "tool_calls": []}), "messages[1].content"),
    (said(HELLO, {"role": "assistant", "content": None, "tool_calls": [{}]}), "messages[1].tool_calls[0].id"),
    (
        said(HELLO, {"role": "assistant", "tool_calls": [{"id": "c", "type": "function"}]}),
        "messages[1].tool_calls[0].function",
    ),
    (
        said(HELLO, {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {}}}]}),
        "messages[1].tool_calls[0].function.arguments",
    ),
    (said(HELLO, {"role": "tool", "tool_call_id": "c1", "content": "x"}), "messages[1].tool_call_id"),
    (said(HELLO, {"role": "tool", "content": "x"}), "messages[1].tool_call_id"),
    (
        said({"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c2", "content": "x"}),
        "messages[1].tool_call_id",
    ),
    (said({"role": "function", "content": "x"}), "messages[0].name"),
    (chat(temperature=3), "temperature"),
    (chat(temperature=-1), "temperature"),
    (chat(temperature="hot"), "temperature"),
    (chat(temperature=True), "temperature"),
    (chat(top_p=1.5), "top_p"),
    (chat(top_p=-0.1), "top_p"),
    (chat(n=0), "n"),
    (chat(n=129), "n"),
    (chat(n="two"), "n"),
    (chat(n=1.5), "n"),
    (chat(max_tokens=-1), "max_tokens"),
    (chat(max_tokens=0), "max_tokens"),
    (chat(max_tokens=2**31), "max_tokens"),
    (chat(max_tokens="ten"), "max_tokens"),
    (chat(max_tokens=1.5), "max_tokens"),
    (chat(max_tokens=True), "max_tokens"),
    (chat(max_completion_tokens=0), "max_completion_tokens"),
    (chat(max_tokens=5, max_completion_tokens=5), "max_tokens"),
    (chat(presence_penalty=5), "presence_penalty"),
    (chat(frequency_penalty=-9), "frequency_penalty"),
    (chat(stop=["a", "b", "c", "d", "e"]), "stop"),
    (chat(stop=5), "stop"),
    (chat(stop=[5]), "stop[0]"),
    (chat(stop=[""]), "stop[0]"),
    (chat(logit_bias={"1": 500}), "logit_bias"),
    (chat(logit_bias={"one": 5}), "logit_bias"),
    (chat(logit_bias=[1]), "logit_bias"),
    (chat(stream="yes"), "stream"),
    (chat(stream=1), "stream"),
    (chat(seed="abc"), "seed"),
    (chat(seed=2**63), "seed"),
    (chat(stream_options={"include_usage": True}), "stream_options"),
    (chat(stream=True, stream_options={"include_usage": "yes"}), "stream_options.include_usage"),
    (chat(top_logprobs=3), "top_logprobs"),
    (chat(logprobs=True, top_logprobs=21), "top_logprobs"),
    (chat(logprobs=3), "logprobs"),
    (chat(response_format="json"), "response_format"),
    (chat(response_format={"type": "xml"}), "response_format.type"),
    (chat(response_format={"type": "json_schema"}), "response_format.json_schema"),
    (chat(response_format={"type": "json_schema", "json_schema": {}}), "response_format.json_schema.name"),
    (chat(tools="x"), "tools"),
    (chat(tools=[{}]), "tools[0].type"),
    (chat(tools=[{"type": "function"}]), "tools[0].function"),
    (chat(tools=[TOOL, {"type": "function", "function": {"name": "bad name!"}}]), "tools[1].function.name"),
    (chat(tools=[{"type": "function", "function": {"name": "f\n"}}]), "tools[0].function.name"),
    (chat(tools=[{"type": "function", "function": {"name": "f", "parameters": "x"}}]), "tools[0].function.parameters"),
    (chat(tools=[{"type": "custom"}]), "tools[0].custom"),
    (chat(tool_choice="required"), "tool_choice"),
    (chat(tools=[TOOL], tool_choice="any"), "tool_choice"),
    (chat(tools=[TOOL], tool_choice=5), "tool_choice"),
    (chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "g"}}), "tool_choice"),
    (chat(tools=[TOOL], tool_choice={"type": "function"}), "tool_choice.function.name"),
    (chat(tools=[TOOL], tool_choice={"type": "magic"}), "tool_choice.type"),
    (chat(tool_choice={"type": "allowed_tools", "allowed_tools": {}}), "tool_choice"),
    (chat(functions=[]), "functions"),
    (chat(functions=[{"name": "f"}], function_call={"name": "g"}), "function_call"),
    (chat(functions=[{"name": "f"}], function_call={}), "function_call.name"),
    (chat(function_call="always"), "function_call"),
    (chat(metadata={f"k{i}": "v" for i in range(17)}), "metadata"),
    (chat(metadata={"k": 5}), "metadata"),
    (chat(metadata={"k" * 65: "v"}), "metadata"),
    (chat(user=5), "user"),
    (chat(user="a\0b"), "user"),
    (chat(chat_template="{{ x }}"), "chat_template"),
]


@pytest.mark.parametrize(("body", "param"), CHAT_FAULTS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_faulty_chat_request_is_refused_where_its_fault_is(body: dict[str, Any], param: str) -> None:
    """The rows of the edge-case table for chat, and the finer ones beneath them."""
    assert refused(check_chat, body).param == param


GOOD_CHATS: list[dict[str, Any]] = [
    chat(),
    chat(surprise={"deep": [1]}, top_k=5, min_p=0.1, repetition_penalty=1.1, guided_json={}, cache_salt="x"),
    chat(max_tokens=10**9),
    chat(temperature=2, top_p=1, n=128, seed=-(2**63), presence_penalty=-2, frequency_penalty=2.0),
    chat(stop="x"),
    chat(stop=["a", "b", "c", "d"]),
    chat(stop=[]),
    chat(logit_bias={"1": 100, "50256": -100.0}),
    chat(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}),
    chat(stream=False),
    chat(logprobs=True, top_logprobs=20),
    chat(response_format={"type": "text"}),
    chat(response_format={"type": "json_object"}),
    chat(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": True}}),
    chat(tools=[]),
    chat(tools=[TOOL], tool_choice="required", parallel_tool_calls=False),
    chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "f"}}),
    chat(tools=[TOOL], tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}),
    chat(tools=[{"type": "custom", "custom": {"name": "c"}}], tool_choice={"type": "custom", "custom": {"name": "c"}}),
    chat(tools=[{"type": "browser_search"}], tool_choice="required"),
    chat(tool_choice="auto"),
    chat(functions=[{"name": "f"}], function_call={"name": "f"}),
    chat(metadata={"k": "v"}, user="u", store=True, service_tier="flex", verbosity="low", reasoning_effort="max"),
    said({"role": "system", "content": "s"}, {"role": "developer", "content": [{"type": "text", "text": "d"}]}, HELLO),
    user([{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]),
    user([{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, {"type": "file", "file": {}}]),
    user(""),
    user("a\0b"),
    said(HELLO, {"role": "assistant", "content": None, "refusal": "no"}),
    said(
        HELLO, {"role": "assistant", "content": [{"type": "thinking", "thinking": []}, {"type": "text", "text": "x"}]}
    ),
    said(
        HELLO,
        {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "c2"}]},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "2"}]},
        {"role": "assistant", "content": "done", "name": "a"},
    ),
    said(
        HELLO,
        {"role": "assistant", "function_call": {"name": "f", "arguments": ""}},
        {"role": "function", "name": "f", "content": None},
    ),
]


@pytest.mark.parametrize("body", GOOD_CHATS)
def test_a_well_formed_chat_request_passes(body: dict[str, Any]) -> None:
    """What real clients send must never be refused here."""
    before = copy.deepcopy(body)
    check_chat(body)
    assert body == before


OPTIONAL = [
    "temperature", "top_p", "n", "seed", "stop", "stream", "stream_options", "presence_penalty", "frequency_penalty",
    "logit_bias", "user", "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "response_format", "tools",
    "tool_choice", "parallel_tool_calls", "functions", "function_call", "reasoning_effort", "verbosity", "service_tier",
    "modalities", "audio", "prediction", "web_search_options", "store", "metadata", "safety_identifier",
    "prompt_cache_key", "prompt_cache_retention", "moderation",
]  # fmt: skip


def test_every_optional_field_may_be_null() -> None:
    """SDKs and UIs send explicit nulls for what is unset."""
    check_chat(chat(**dict.fromkeys(OPTIONAL)))
    check_completion(
        {"model": "m", "prompt": "x", **dict.fromkeys(OPTIONAL), "best_of": None, "suffix": None, "echo": None}
    )
    check_embedding({"model": "m", "input": "x", "dimensions": None, "encoding_format": None, "user": None})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": "x", "logprobs": 21}, "logprobs"),
        ({"prompt": "x", "logprobs": True}, "logprobs"),
        ({"prompt": "x", "best_of": 1, "n": 2}, "best_of"),
        ({"prompt": "x", "best_of": 2, "stream": True}, "best_of"),
        ({"prompt": "x", "echo": "yes"}, "echo"),
        ({"prompt": "x", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "x", "stream_options": {}}, "stream_options"),
        ({"prompt": "x", "prompt_embeds": "AAAA"}, "prompt_embeds"),
    ],
)
def test_a_faulty_completion_request_is_refused_where_its_fault_is(fields: dict[str, Any], param: str) -> None:
    """LiteLLM answered 500 to `prompt: {}` after four seconds of retries."""
    assert refused(check_completion, {"model": "m", **fields}).param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": ""},
        {"prompt": ["a", ""]},
        {"prompt": [1, 2]},
        {"prompt": [[1], [2, 3]]},
        {"prompt": "x", "echo": True, "logprobs": 5, "max_tokens": 0},
        {"prompt": "x", "suffix": "y", "best_of": 2, "n": 2},
    ],
)
def test_a_well_formed_completion_request_passes(fields: dict[str, Any]) -> None:
    """Evaluation harnesses score prompts by echo, log-probabilities and no new tokens."""
    check_completion({"model": "m", **fields})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": {}}, "input"),
        ({"input": None}, "input"),
        ({"input": [1, "a"]}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [[1], []]}, "input[1]"),
        ({"input": [True]}, "input[0]"),
        ({"input": [2**40]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": [[1]] * 2049}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "encoding_format": 5}, "encoding_format"),
    ],
)
def test_a_faulty_embedding_request_is_refused_where_its_fault_is(fields: dict[str, Any], param: str) -> None:
    """The rows of the edge-case table for embeddings."""
    assert refused(check_embedding, {"model": "m", **fields}).param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "a"},
        {"input": ["a"] * 2048, "encoding_format": "base64"},
        {"input": [1, 2], "encoding_format": "float"},
        {"input": list(range(5000))},
        {"input": [[1], [2, 3]], "dimensions": 1, "user": "u"},
    ],
)
def test_a_well_formed_embedding_request_passes(fields: dict[str, Any]) -> None:
    """Texts, tokens, and batches of both; one text may have more tokens than a batch may have texts."""
    check_embedding({"model": "m", **fields})


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"model": "m"}, "missing_required_parameter"),
        (chat(temperature="hot"), "invalid_type"),
        (chat(temperature=3), "invalid_value"),
        (said({"role": "king"}), "invalid_value"),
    ],
)
def test_codes_tell_kinds_of_fault_apart(body: dict[str, Any], code: str) -> None:
    """A client may branch on the code."""
    assert refused(check_chat, body).code == code


def test_messages_are_in_words_of_json() -> None:
    """A caller does not write Python."""
    assert refused(check_chat, chat(temperature="hot")).message == (
        "Invalid type for 'temperature': expected number or null, got string."
    )
    assert "system, developer, user" in refused(check_chat, said({"role": "king"})).message


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "type", "name", "function", "id", "text", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
fields = st.sampled_from(
    [*OPTIONAL, "model", "messages", "prompt", "input", "best_of", "dimensions", "encoding_format"]
)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.dictionaries(fields, values, max_size=6),
    st.booleans(),
    st.sampled_from([check_chat, check_completion, check_embedding]),
)
def test_arbitrary_objects_pass_or_are_refused(body: dict[str, Any], complete: bool, check: Check) -> None:
    """Never anything but silence or InvalidRequest with a path; never a change."""
    if complete:
        body = {"model": "m", "messages": [HELLO], "prompt": "x", "input": "x", **body}
    before = msgspec.json.encode(body)
    fault = fault_of(check, body)
    assert fault is None or fault.param
    assert msgspec.json.encode(body) == before


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (chat(metadata={"tags": ["a"]}), "Invalid type for a value of 'metadata': expected string, got array."),
        (chat(logit_bias={"5": "x"}), "Invalid type for a value of 'logit_bias': expected number, got string."),
        (chat(metadata=[]), "Invalid type for 'metadata': expected object or null, got array."),
    ],
)
def test_a_wrong_value_of_a_map_is_told_from_a_wrong_map(body: dict[str, Any], message: str) -> None:
    """Who sent LiteLLM's tags in `metadata` read that it should be a string."""
    with pytest.raises(InvalidRequest) as refusal:
        check_chat(body)
    assert str(refusal.value) == message


def test_a_key_that_is_no_token_id_is_named() -> None:
    """Of three hundred keys nobody finds the one that is a word."""
    with pytest.raises(InvalidRequest) as refusal:
        check_chat(chat(logit_bias={"5": 1, "yes": 2, "no": 3}))
    assert str(refusal.value) == "The keys of 'logit_bias' must be token ids, which these are not: 'yes', 'no'."
