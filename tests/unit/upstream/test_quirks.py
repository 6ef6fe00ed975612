"""What services make of OpenAI's language, and how it is told to clients in OpenAI's own words."""

from typing import Any

import msgspec
import pytest
from pydantic import SecretStr

from gateway.call import Body
from gateway.errors import InvalidRequest, UpstreamRefused
from gateway.providers import Sending, known, load
from gateway.settings import ProviderSettings
from gateway.stream import StreamGarbage
from gateway.tasks import Tasks
from gateway.transport.direct import DirectTransport
from gateway.transport.refusal import refused
from gateway.upstream.compatible import Builder
from gateway.upstream.quirks import Quirks
from gateway.upstream.ran_tools import counting

COMPATIBLE = [kind for kind in known() if isinstance(load(kind).build, Builder)]


def sending(**body: object) -> Sending:
    full: Body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **body}
    return Sending(id="a", operation="chat", model="m", body=full, stream=False, tenant="t", timeout=1.0, idle=1.0)


@pytest.mark.parametrize("kind", COMPATIBLE)
def test_what_a_service_cannot_honour_is_refused_by_name(kind: str) -> None:
    """Silence where a client asked for something is a wrong answer; the refusal says which field."""
    quirks: Quirks = load(kind).build.service.manner.quirks
    for field in quirks.refused:
        what = sending(**{field: {"a": 1}})
        with pytest.raises(InvalidRequest) as refusal:
            quirks.asked("up", what, what.body)
        assert refusal.value.param == field
    assert not quirks.refused & quirks.dropped
    assert not quirks.refused & set(quirks.renamed)


def test_openrouter_is_not_told_of_models_to_ask_instead() -> None:
    """With `models` a key that may ask for one model got another, at the price of the first one."""
    quirks: Quirks = load("openrouter").build.service.manner.quirks
    what = sending(models=["x-ai/grok-4"])
    with pytest.raises(InvalidRequest, match="stand in the route of a name") as refusal:
        quirks.asked("up", what, what.body)
    assert refusal.value.param == "models"
    assert quirks.cannot("chat", what.body, None) == "models"


@pytest.mark.parametrize("older", [{}, {"max_tokens": None}, {"max_tokens": 9}])
def test_a_limit_is_not_lost_to_its_other_name(older: dict[str, Any]) -> None:
    """Clients that fill in every field send the older name as null: 43 tokens were written where 5 were wanted."""
    quirks: Quirks = load("llamacpp").build.service.manner.quirks
    for body in ({"max_completion_tokens": 5, **older}, {**older, "max_completion_tokens": 5}):
        what = sending(**body)
        assert quirks.asked("up", what, what.body)["max_tokens"] == 5
    what = sending(max_tokens=9, max_completion_tokens=None)
    assert quirks.asked("up", what, what.body)["max_tokens"] == 9


@pytest.mark.parametrize(
    ("prompt", "refused_field"), [(["a", "b"], "prompt"), ([[1], [2]], "prompt"), ([1, 2], ""), (["a"], "")]
)
def test_several_prompts_are_one_too_many_for_who_counts_one(prompt: Any, refused_field: str) -> None:
    """llama.cpp counts the first answer alone: the others would be free, and the books wrong."""
    quirks: Quirks = load("llamacpp").build.service.manner.quirks
    assert quirks.cannot("completion", {"prompt": prompt}, None) == refused_field


def test_a_tool_by_name_is_the_only_one_where_names_are_not_heeded() -> None:
    """llama.cpp logs that `tool_choice` is no text, and answers as if the client had left the choice to it."""
    quirks: Quirks = load("llamacpp").build.service.manner.quirks
    tools = [{"type": "function", "function": {"name": name}} for name in ("look", "buy")]
    named = {"type": "function", "function": {"name": "buy"}}
    what = sending(tools=tools, tool_choice=named)
    told = quirks.asked("up", what, what.body)
    assert (told["tools"], told["tool_choice"]) == (tools[1:], "required")
    assert (what.body["tools"], what.body["tool_choice"]) == (tools, named)
    for choice in ("auto", "required", "none", None):
        what = sending(tools=tools, tool_choice=choice)
        assert quirks.asked("up", what, what.body) == what.body


@pytest.mark.parametrize("kind", COMPATIBLE)
def test_a_plain_request_goes_out_and_is_not_changed_for_others(kind: str) -> None:
    """The same body may be sent to the next candidate: quirks work on a copy."""
    quirks: Quirks = load(kind).build.service.manner.quirks
    what = sending(
        max_completion_tokens=5,
        user="u",
        messages=[
            {"role": "developer", "content": "x", "name": "n"},
            {"role": "tool", "tool_call_id": "call_long_id_1"},
        ],
    )
    before = msgspec.json.encode(what.body)
    told: Any = quirks.asked("up", what, what.body)
    assert msgspec.json.encode(what.body) == before
    assert 5 in (told.get("max_tokens"), told.get("max_completion_tokens"))
    assert "user" not in told or "user" not in quirks.dropped


@pytest.mark.parametrize("kind", ["groq", "mistral"])
def test_a_conversation_comes_back_without_what_only_answers_hold(kind: str) -> None:
    """Both answer 400 or 422 to `reasoning_content`, `refusal`, `annotations` and names; agents send all of it back."""
    quirks: Quirks = load(kind).build.service.manner.quirks
    function = {"name": "f", "arguments": "{}"}
    call = {"id": "abcdefgh1", "type": "function", "function": function, "extra_content": {"google": {}}, "index": 0}
    said = {"role": "assistant", "content": "x", "reasoning_content": "hm", "refusal": None, "annotations": []}
    what = sending(
        messages=[
            {"role": "user", "content": "x", "name": "n"},
            {**said, "thinking_blocks": [], "tool_calls": None},
            {**said, "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "abcdefgh1", "content": "y", "name": "f"},
        ]
    )
    assert quirks.asked("up", what, what.body)["messages"] == [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "x"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "abcdefgh1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "abcdefgh1", "content": "y"},
    ]


def test_ids_of_calls_are_shortened_alike_on_both_sides() -> None:
    """Mistral wants nine letters and digits; a conversation begun elsewhere must go on there."""
    quirks: Quirks = load("mistral").build.service.manner.quirks
    calls = [{"id": "call_abcdef0123", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    what = sending(
        messages=[{"role": "assistant", "tool_calls": calls}, {"role": "tool", "tool_call_id": "call_abcdef0123"}]
    )
    told: Any = quirks.asked("up", what, what.body)["messages"]
    short = told[0]["tool_calls"][0]["id"]
    assert told[1]["tool_call_id"] == short
    assert len(short) == 9
    assert short.isalnum()


def test_an_answer_that_says_it_broke_off_is_none() -> None:
    """`abort` as a finish reason would be kept as a whole answer."""
    quirks: Quirks = load("vllm").build.service.manner.quirks
    with pytest.raises(StreamGarbage, match="abort"):
        quirks.tell({"choices": [{"index": 0, "delta": {}, "finish_reason": "abort"}]})


def test_counts_that_hold_reasoning_already_are_left_alone() -> None:
    """Adding twice would bill twice."""
    quirks = Quirks(counts_apart=True)
    details = {"reasoning_tokens": 4}
    inside: Any = {"usage": {"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12}}
    inside["usage"]["completion_tokens_details"] = details
    quirks.tell(inside)
    assert inside["usage"]["completion_tokens"] == 9


LONG = "context_length_exceeded"
ERRORS: dict[str, tuple[int, str, str, str | None]] = {
    "mistral validation": (
        422,
        '{"object":"error","message":{"detail":[{"loc":["body","n"],"msg":"Extra inputs"}]},"type":"invalid"}',
        "body.n: Extra inputs",
        None,
    ),
    "mistral length": (
        400,
        '{"object":"error","message":"Prompt contains 66385 tokens, too large for model with 32768","code":"3051"}',
        "Prompt contains",
        LONG,
    ),
    "fastapi": (422, '{"detail":[{"loc":["body"],"msg":"Field required","type":"missing"}]}', "Field required", None),
    "xai": (400, '{"code":"invalid-argument","error":"Model not found"}', "Model not found", "invalid-argument"),
    "tgi": (
        422,
        '{"error":"`inputs` tokens + `max_new_tokens` must be <= 2048. Given: 3000","error_type":"validation"}',
        "`inputs` tokens",
        LONG,
    ),
    "ollama": (
        404,
        '{"error":{"message":"model \'x\' not found","type":"not_found_error"}}',
        "model 'x'",
        "model_not_found",
    ),
    "lmstudio": (400, '{"error":"No models loaded."}', "No models loaded.", None),
    "llamacpp": (
        400,
        '{"error":{"code":400,"message":"the request is too big","type":"exceed_context_size_error"}}',
        "the request is",
        LONG,
    ),
    "dynamo": (
        400,
        '{"message":"Invalid request","code":400,"details":{"type":"context_length","limit":2048,"actual":6010}}',
        "limit: 2048, actual: 6010",
        LONG,
    ),
    "vllm": (
        400,
        '{"error":{"message":"This model\'s maximum context length is 4096.","type":"BadRequestError","code":400}}',
        "This model's",
        LONG,
    ),
    "openrouter": (402, '{"error":{"message":"Insufficient credits","code":402}}', "Insufficient credits", None),
}


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_errors_keep_their_words_in_openais_shape(name: str) -> None:
    """A client must read why, whichever service said it; a prompt that is too long has one code everywhere."""
    status, body, words, code = ERRORS[name]
    problem = refused("up", status, {}, body.encode())
    assert isinstance(problem, UpstreamRefused)
    assert problem.http_status == status
    assert words in str(problem.detail()["message"])
    assert problem.detail()["code"] == code


@pytest.mark.parametrize(
    ("streamed", "tools", "searches"),
    [
        (False, [{"index": [1], "type": "search"}], 1),  # no number is hashed as it came
        (False, [{"index": 0, "type": "search"}, {"index": 0, "type": "search"}], 2),
        (False, [{"type": "search"}, {"type": "search"}], 2),
        (True, [{"index": 0, "type": "search"}, {"index": 0, "type": "search"}], 1),  # begun, and again with its result
        (True, [{"index": {}, "type": "search"}], 1),
    ],
)
def test_tools_are_counted_whatever_their_numbers_are(streamed: bool, tools: list[Body], searches: int) -> None:
    """An answer that is paid for must not be lost over an odd number, nor a search be had for nothing."""
    tell = counting(None)
    body: Body = {}
    for each in [[tool] for tool in tools] if streamed else [tools]:
        said = "delta" if streamed else "message"
        body = {"choices": [{"index": 0, said: {"executed_tools": each}}], "usage": {"prompt_tokens": 1}}
        tell(body)
    assert body["usage"] == {"prompt_tokens": 1, "server_tool_use": {"web_search_requests": searches}}


ALLOWING: list[dict[str, Any]] = [{"type": "function", "function": {"name": name}} for name in ("look", "buy")]


def choice_among(mode: str, *names: str) -> Body:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize("kind", COMPATIBLE)
def test_tools_that_are_not_allowed_are_not_offered_where_only_openai_would_know(kind: str) -> None:
    """Servers that imitate it refuse such a choice, or pass it over and let the model call what it must not."""
    quirks: Quirks = load(kind).build.service.manner.quirks
    what = sending(tools=ALLOWING, tool_choice=choice_among("auto", "buy"))
    told = quirks.asked("up", what, what.body)
    assert (told["tools"], told["tool_choice"]) == (ALLOWING[1:], "auto")
    what = sending(tools=ALLOWING, tool_choice=choice_among("auto", "gone"))
    assert not {"tools", "tool_choice"} & quirks.asked("up", what, what.body).keys()
    what = sending(tools=ALLOWING, tool_choice=choice_among("required", "gone"))
    with pytest.raises(InvalidRequest) as refusal:
        quirks.asked("up", what, what.body)
    assert refusal.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("kind", "base"), [("openai", "https://api.openai.com/v1"), ("azure", "https://east.openai.azure.com")]
)
def test_openai_is_told_of_all_tools_and_the_choice_among_them(kind: str, base: str) -> None:
    """There the list stays the same from turn to turn, and with it what is cached of the prompt."""
    provider = load(kind).build(
        "up",
        ProviderSettings(kind=kind, base_url=base, api_key=SecretStr("k")),
        transport=DirectTransport(),
        tasks=Tasks(),
    )
    what = sending(tools=ALLOWING, tool_choice=choice_among("auto", "buy"))
    assert provider.manner.quirks.asked("up", what, what.body)["tool_choice"] == what.body["tool_choice"]
