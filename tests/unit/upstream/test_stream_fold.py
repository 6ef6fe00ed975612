"""Events to a body and back without losing anything, for every shape an answer can have."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import stream_fold
from gateway.call import Body
from gateway.errors import UpstreamFailed
from gateway.stream import fold, in_band_error, parse, read_finish, read_usage, unfold
from policies.money import Usage

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=200)
FINISH = st.sampled_from(["stop", "length", "tool_calls", "content_filter"])


def function_call() -> st.SearchStrategy[Body]:
    inner = st.fixed_dictionaries({"name": st.text("abc_", min_size=1, max_size=5), "arguments": TEXT})
    return st.fixed_dictionaries({"id": st.text("abc", min_size=1), "type": st.just("function"), "function": inner})


@st.composite
def messages(draw: st.DrawFn) -> Body:
    calls = draw(st.lists(function_call(), max_size=2))
    content = draw(st.one_of(st.none(), TEXT.filter(bool)) if calls else TEXT)
    message: Body = {"role": "assistant", "content": content, "refusal": draw(st.none() | TEXT.filter(bool))}
    if calls:
        message["tool_calls"] = calls
    if draw(st.booleans()):
        message["reasoning_content"] = draw(TEXT.filter(bool))
    if draw(st.booleans()):
        message["annotations"] = [{"type": "url_citation", "url": "x"}]
    return message


@st.composite
def logprobs(draw: st.DrawFn, message: Body) -> Body | None:
    content = message["content"]
    if not content or message["refusal"] or not draw(st.booleans()):
        return None
    tokens = [{"token": letter, "logprob": -1.0, "bytes": None, "top_logprobs": []} for letter in str(content)]
    return {"content": tokens, "refusal": None}


@st.composite
def chat_bodies(draw: st.DrawFn) -> Body:
    choices: list[Body] = []
    for index in range(draw(st.integers(1, 3))):
        message = draw(messages())
        said = draw(logprobs(message))
        choices.append({"index": index, "message": message, "logprobs": said, "finish_reason": draw(FINISH)})
    body: Body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 7, "model": "m"}
    if draw(st.booleans()):
        body["system_fingerprint"] = "fp"
    return body | {"choices": choices, "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}}


@given(chat_bodies())
def test_unfolding_and_folding_a_chat_body_is_nothing(body: Body) -> None:
    """An answer kept as a body and replayed as a stream must be the same answer."""
    before = repr(body)
    assert fold(unfold(body, "chat", include_usage=True)) == body
    assert repr(body) == before


@given(chat_bodies(), st.booleans())
def test_replayed_events_follow_the_wire(body: Body, include_usage: bool) -> None:
    """Role first and once, one finish per choice and last, ids of tool calls once, usage only when asked."""
    events: Any = unfold(body, "chat", include_usage=include_usage)
    assert all(("usage" in event) == include_usage for event in events)
    if include_usage:
        assert events[-1]["choices"] == []
        assert events.pop()["usage"] == body["usage"]
        assert all(event["usage"] is None for event in events)
    count = len(body["choices"])  # type: ignore[arg-type]
    for index in range(count):
        deltas = [choice for event in events for choice in event["choices"] if choice["index"] == index]
        assert deltas[0]["delta"]["role"] == "assistant"
        assert sum("role" in one["delta"] for one in deltas) == 1
        assert [one["finish_reason"] is not None for one in deltas] == [False] * (len(deltas) - 1) + [True]
        assert deltas[-1]["delta"] == {}
        calls = [call for one in deltas for call in one["delta"].get("tool_calls") or []]
        assert all(isinstance(call["index"], int) for call in calls)
        named = [call["index"] for call in calls if "id" in call]
        assert len(named) == len(set(named))


@given(st.lists(st.tuples(TEXT, FINISH), min_size=1, max_size=3))
def test_unfolding_and_folding_a_completion_is_nothing(told: list[tuple[str, str]]) -> None:
    """The legacy shape has texts for deltas, and clients fail on a null in the last one."""
    choices = [
        {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
        for index, (text, finish) in enumerate(told)
    ]
    body: Body = {"id": "cmpl-1", "object": "text_completion", "created": 7, "model": "m", "choices": choices}
    events: Any = unfold(body, "completion", include_usage=False)
    assert fold(events) == body
    assert all(isinstance(choice["text"], str) for event in events for choice in event["choices"])


def test_a_legacy_text_with_logprobs_survives_in_pieces() -> None:
    """Four parallel lists per piece must come together in order."""
    pieces: list[Body] = [
        {"index": 0, "text": "a", "logprobs": {"tokens": ["a"], "text_offset": [0]}, "finish_reason": None},
        {"index": 0, "text": "b", "logprobs": {"tokens": ["b"], "text_offset": [1]}, "finish_reason": None},
        {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"},
    ]
    folded: Any = fold({"object": "text_completion", "choices": [piece]} for piece in pieces)
    assert folded["choices"][0]["text"] == "ab"
    assert folded["choices"][0]["logprobs"] == {"tokens": ["a", "b"], "text_offset": [0, 1]}
    assert folded["choices"][0]["finish_reason"] == "stop"


def test_a_repeated_name_of_a_tool_call_is_not_doubled() -> None:
    """Servers that repeat id and name in every delta made clients call `get_weatherget_weather`."""
    call: Body = {"index": 0, "id": "c", "type": "function", "function": {"name": "get", "arguments": "{"}}
    again: Body = {"index": 0, "id": "c", "type": "function", "function": {"name": "get", "arguments": "}"}}
    events = [{"choices": [{"index": 0, "delta": {"tool_calls": [one]}}]} for one in (call, again)]
    folded: Any = fold(events)  # type: ignore[arg-type]
    message = folded["choices"][0]["message"]
    assert message["tool_calls"] == [{"id": "c", "type": "function", "function": {"name": "get", "arguments": "{}"}}]
    assert message["content"] is None


def test_choices_that_interleave_stay_apart_and_in_order() -> None:
    """With n > 1 the deltas of all choices come mixed, the second may begin before the first."""

    def event(index: int, text: str) -> Body:
        return {"object": "chat.completion.chunk", "choices": [{"index": index, "delta": {"content": text}}]}

    folded: Any = fold([event(1, "b"), event(0, "a"), event(1, "d"), event(0, "c")])
    assert [choice["message"]["content"] for choice in folded["choices"]] == ["ac", "bd"]


def test_folding_changes_no_event() -> None:
    """Events are shared by all readers of a flight; one reader's folding must not show in another's stream."""
    events = unfold(
        {"choices": [{"index": 0, "message": {"content": "a b c", "tool_calls": [{"id": "x", "function": {}}]}}]},
        "chat",
        include_usage=False,
    )
    before = repr(events)
    fold(events)
    assert repr(events) == before


def test_a_null_usage_in_every_event_is_not_a_usage() -> None:
    """`usage: null` means "later"; a stream cut before the usage event has none."""
    folded = fold([{"choices": [{"index": 0, "delta": {"content": "a"}}], "usage": None}])
    assert "usage" not in folded


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 2}, Usage(prompt=5, completion=2)),
        ({"prompt_tokens": 5, "total_tokens": 5}, Usage(prompt=5)),
        (
            {
                "prompt_tokens": 5,
                "completion_tokens": 4,
                "prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 2},
                "completion_tokens_details": {"reasoning_tokens": 4},
            },
            Usage(prompt=5, cached=3, cache_write=2, completion=4, reasoning=4),
        ),
        (
            {"prompt_tokens": 5, "completion_tokens": 1, "prompt_cache_hit_tokens": 4},
            Usage(prompt=5, cached=4, completion=1),
        ),
        (
            {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 9}},
            Usage(prompt=5, completion=1),
        ),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 6,
                "prompt_tokens_details": {"audio_tokens": 4, "image_tokens": 10, "cache_write_tokens": 3},
                "cache_creation": {"ephemeral_1h_input_tokens": 2},
                "completion_tokens_details": {"audio_tokens": 5, "image_tokens": 1},
            },
            Usage(prompt=9, completion=6, cache_write=3, cache_write_1h=2, audio_in=4, audio_out=5, image_out=1),
        ),
        ({"prompt_tokens": -1, "completion_tokens": 1}, None),
        ({"prompt_tokens": 1.5, "completion_tokens": 1}, None),
        ({"prompt_tokens": True, "completion_tokens": 1}, None),
        ({"prompt_tokens": 1, "completion_tokens": "1"}, None),
        ({"prompt_tokens": 1 << 60, "completion_tokens": 1}, None),
        ({}, None),
        (None, None),
        ([], None),
    ],
)
def test_usage_is_believed_only_where_it_can_be_true(told: object, expected: Usage | None) -> None:
    """These numbers become money; nonsense must not, and a discount larger than the prompt is no discount."""
    assert read_usage({"usage": told}) == expected


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["choices", "usage", "prompt_tokens", "finish_reason", "x"]), inner, max_size=4
            )
        ),
        max_leaves=12,
    )
)
def test_reading_never_raises(value: object) -> None:
    """Whatever JSON an upstream sends, reading usage and finish from it is safe."""
    body: Body = {"choices": value, "usage": value}
    finish = read_finish(body)
    assert finish is None or isinstance(finish, str)
    read_usage(body)


def test_an_error_in_band_has_all_four_keys() -> None:
    """The official clients raise on a truthy `error` in any event; the event must be one they can read."""
    raw = in_band_error(UpstreamFailed("gone"))
    assert raw.startswith(b"data: ")
    assert raw.endswith(b"\n\n")
    error: Any = parse(raw[6:].strip())["error"]
    assert error == {"message": "gone", "type": "server_error", "param": None, "code": "upstream_error"}


@given(st.lists(chat_bodies(), min_size=1, max_size=2), st.data())
def test_runs_of_text_are_folded_like_single_events(bodies: list[Body], data: st.DataObject) -> None:
    """Runs are taken together for speed; that must never change what an answer amounts to."""
    events = [event for body in bodies for event in unfold(body, "chat", include_usage=True)]
    for event in events:
        if data.draw(st.booleans()):
            event["system_fingerprint"] = data.draw(st.sampled_from(["fp", "other"]))
    together = fold(events)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_fold, "_runs", iter)
        assert fold(events) == together
