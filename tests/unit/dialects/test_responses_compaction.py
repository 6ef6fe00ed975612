"""A conversation made shorter: asked for, told, and read again where it is sent back."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.call import Body
from gateway.dialects.responses import Compacting, Responses
from gateway.errors import GatewayError, InvalidRequest, UpstreamFailed
from gateway.stream import unfold

LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}}
TALK: list[Any] = [
    {"role": "user", "content": "Launch on Tuesday."},
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "free"},
]
TRIGGER = {"type": "compaction_trigger"}
USAGE = {"prompt_tokens": 10, "completion_tokens": 3}


def answer(note: str, finish: str = "stop") -> Body:
    choice = {"index": 0, "message": {"role": "assistant", "content": note}, "finish_reason": finish}
    return {"id": "chatcmpl-7", "created": 5, "model": "m", "choices": [choice], "usage": USAGE}


def whole(dialect: Responses, note: str, **asked: Any) -> Any:
    voice = dialect.read({"model": "m", **asked}).voice
    assert voice is not None
    return msgspec.json.decode(voice.whole(answer(note)))


def test_a_limit_does_not_cut_the_note() -> None:
    """The operation has none; one that came along made every conversation impossible to shorten."""
    asked = Compacting().read({"model": "m", "input": "hi", "max_output_tokens": 1})
    assert not {"max_tokens", "max_completion_tokens"} & set(asked.body)


@given(note=st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip))
def test_a_note_comes_back_as_it_was_written(note: str) -> None:
    """A word lost here is lost from the conversation for good."""
    made = whole(Compacting(), note, input=TALK)["output"][-1]
    (said,) = Responses().read({"model": "m", "input": [made]}).body["messages"]  # pyright: ignore[reportGeneralTypeIssues] - JSON
    assert said["role"] == "user"
    assert said["content"].endswith(note)


def test_what_users_said_is_kept_word_for_word() -> None:
    """Clients replace their whole conversation by this list: questions stay, and one item stands for the rest."""
    made = whole(Compacting(), "A note.", input=TALK, tools=[LOOK])
    said, note = made["output"]
    assert said["content"] == [{"type": "input_text", "text": "Launch on Tuesday."}]
    assert (said["role"], said["status"], note["type"]) == ("user", "completed", "compaction")
    assert (made["object"], made["created_at"]) == ("response.compaction", 5)
    assert made["usage"]["total_tokens"] == 13


def test_a_model_is_asked_for_words_alone() -> None:
    """A call or a JSON object in place of a note would end the conversation; the tools stay, for prompt caches."""
    form = {"format": {"type": "json_object"}}
    body: Any = (
        Responses()
        .read({"model": "m", "input": [*TALK, TRIGGER], "tools": [LOOK], "tool_choice": "required", "text": form})
        .body
    )
    assert (body["tool_choice"], len(body["tools"])) == ("none", 1)
    assert "response_format" not in body
    assert body["messages"][-1]["role"] == "user"


def test_the_whole_answer_is_one_item() -> None:
    """Codex gives up on an answer that has any other item, or the same one twice."""
    voice = Responses().read({"model": "m", "input": [*TALK, TRIGGER], "stream": True}).voice
    assert voice is not None
    told = b"".join(voice.events(event) for event in unfold(answer("A note."), "chat", include_usage=True))
    events = [msgspec.json.decode(line[6:]) for line in (told + voice.end()).split(b"\n") if line.startswith(b"data: ")]
    done = [event["item"]["type"] for event in events if event["type"] == "response.output_item.done"]
    assert done == ["compaction"]
    assert events[-1]["type"] == "response.completed"
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["compaction"]


def test_a_kept_conversation_goes_on_from_its_last_note() -> None:
    """What the note stands for would be paid for twice, and a trigger in the middle is no turn."""
    note = whole(Compacting(), "A note.", input=TALK)["output"][-1]
    earlier: list[Any] = [*TALK, TRIGGER, note]
    asked = Responses().read({"model": "m", "input": "Go on."}, earlier)
    said: Any = asked.body["messages"]
    assert [one["content"][-7:] for one in said] == ["A note.", "Go on."]


@pytest.mark.parametrize(("note", "finish"), [("", "stop"), (" \n", "stop"), ("Half a no", "length")])
def test_no_note_is_a_failure(note: str, finish: str) -> None:
    """A client throws its conversation away for what it gets: nothing, or half of it, must not look like success."""
    for dialect in (Compacting(), Responses()):
        voice = dialect.read({"model": "m", "input": [*TALK, TRIGGER] if type(dialect) is Responses else TALK}).voice
        assert voice is not None
        with pytest.raises(UpstreamFailed) as caught:
            voice.whole(answer(note, finish))
        failed: GatewayError = caught.value
        assert failed.code == "compaction_failed"
        last = msgspec.json.decode(voice.failed(failed).split(b"data: ")[-1])
        assert (last["response"]["status"], last["response"]["output"]) == ("failed", [])


@pytest.mark.parametrize(
    ("given_", "param"),
    [
        ([TRIGGER], "input"),
        ([TRIGGER, *TALK], "input[0]"),
        ([*TALK, TRIGGER, TRIGGER], "input[3]"),
        ([{"type": "compaction", "encrypted_content": "nearhit-1:?"}], "input[0].encrypted_content"),
        ([{"type": "compaction", "encrypted_content": "nearhit-1:/w=="}], "input[0].encrypted_content"),
    ],
)
def test_what_cannot_be_shortened_or_read_is_refused(given_: list[Any], param: str) -> None:
    """Going on without what an item stands for would be a conversation with a hole."""
    with pytest.raises(InvalidRequest) as caught:
        Responses().read({"model": "m", "input": given_})
    assert caught.value.param == param


def test_nothing_to_shorten_is_refused_by_its_own_name() -> None:
    """The endpoint adds an item of its own; its clients must not be told of that."""
    for body in ({}, {"input": []}, {"input": None}):
        with pytest.raises(InvalidRequest) as caught:
            Compacting().read({"model": "m", **body})
        assert caught.value.param == "input"
