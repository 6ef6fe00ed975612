"""An answer of Anthropic's own on its way to Anthropic's clients: nothing of it is lost, however it is told."""

from typing import Any

import msgspec
import pytest

from gateway.call import Body, Chunk
from gateway.dialects.messages_answer import MessagesVoice
from gateway.dialects.tool_names import ToolNames
from gateway.stream import fold, unfold
from gateway.upstream.anthropic_answers import Events, body_of

encode, decode = msgspec.json.encode, msgspec.json.decode
CITED = {
    "type": "web_search_result_location",
    "url": "https://x/",
    "title": "X",
    "cited_text": "y",
    "encrypted_index": "e",
}
RICH: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "Let me look.", "signature": "sig-1"},
    {"type": "text", "text": "I will search."},
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
    {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": [{"type": "web_search_result", "url": "https://x/", "title": "X", "encrypted_content": "c"}],
    },
    {"type": "thinking", "thinking": "Found.", "signature": "sig-2"},
    {"type": "text", "text": "It is y.", "citations": [CITED]},
    {"type": "compaction", "content": "So far.", "encrypted_content": "z"},
    {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}, "caller": {"type": "direct"}},
    {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}},
]
PLAIN: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
    {"type": "text", "text": "Yes."},
    {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
]
STOP = {
    "stop_reason": "pause_turn",
    "stop_sequence": None,
    "container": {"id": "c", "expires_at": "2026-01-01T00:00:00Z"},
}
USAGE = {"input_tokens": 7, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 9}


def events_of(content: list[dict[str, Any]], stop: dict[str, Any]) -> list[dict[str, Any]]:
    """As Anthropic streams it."""
    head = {"id": "msg_theirs", "type": "message", "role": "assistant", "model": "claude-x-20260101", "content": []}
    told: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**head, "usage": {**USAGE, "output_tokens": 1}}}
    ]
    for index, block in enumerate(content):
        begun, deltas = pieces(block)
        told.append({"type": "content_block_start", "index": index, "content_block": begun})
        told += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        told.append({"type": "content_block_stop", "index": index})
    told.append({"type": "message_delta", "delta": stop, "usage": USAGE, "context_management": {"applied_edits": []}})
    return [*told, {"type": "message_stop"}]


def pieces(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    kind = block["type"]
    if kind == "text":
        cited = [{"type": "citations_delta", "citation": note} for note in block.get("citations", [])]
        begun = {**block, "text": ""} | ({"citations": []} if cited else {})
        return begun, [*cited, *({"type": "text_delta", "text": letter} for letter in block["text"])]
    if kind == "thinking":
        thought = {"type": "thinking_delta", "thinking": block["thinking"]}
        return {**block, "thinking": "", "signature": ""}, [
            thought,
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    if kind == "compaction":
        return {"type": kind, "content": None}, [{**block, "type": "compaction_delta"}]
    if "input" in block:
        written = [encode(block["input"]).decode()] if block["input"] else []
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": text} for text in written]
    return block, []


def read(raw: bytes) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The content that a client puts together, and the events."""
    told = [decode(piece.partition("data: ")[2]) for piece in raw.decode().split("\n\n") if piece]
    content: list[dict[str, Any]] = []
    inputs: dict[int, str] = {}
    for event in told:
        if event["type"] == "content_block_start":
            assert event["index"] == len(content)
            content.append(dict(event["content_block"]))
        if event["type"] == "content_block_delta":
            delta, block = event["delta"], content[event["index"]]
            kind = delta.pop("type")
            if kind == "input_json_delta":
                inputs[event["index"]] = inputs.get(event["index"], "") + delta["partial_json"]
            elif kind == "citations_delta":
                block["citations"] = [*block["citations"], delta["citation"]]
            else:
                block |= {name: (block.get(name) or "") + text for name, text in delta.items()}
    for index, text in inputs.items():
        content[index]["input"] = decode(text)
    return content, told


def chunks_of(content: list[dict[str, Any]], stop: dict[str, Any]) -> list[Chunk]:
    events = Events("m", 1.0, native=True)
    return [chunk for event in events_of(content, stop) for chunk in events.feed(encode(event))]


def voice() -> MessagesVoice:
    return MessagesVoice(ToolNames(), thinks=True, stops=())


def told(chunks: list[Chunk]) -> bytes:
    """By a voice that relays, as `gateway.reading` hands it what comes."""
    speaker, raw = voice(), b""
    for chunk in chunks:
        data: Body = {**chunk.data, "id": "chatcmpl-7", "model": "smart"}
        if chunk.usage is not None:
            data["usage"] = {**usage_of(chunk), "cost": 0.5}
        raw += speaker.events(data) if chunk.native is None else speaker.natively(chunk.native.events, data)
    return raw + speaker.end()


def usage_of(chunk: Chunk) -> dict[str, Any]:
    usage: Any = chunk.data["usage"]
    return usage


@pytest.mark.parametrize("content", [RICH, PLAIN], ids=["rich", "plain"])
def test_a_stream_is_relayed_block_by_block(content: list[dict[str, Any]]) -> None:
    """A client that gives back what it got must give back all of it: searches, citations, signatures, their order."""
    found, events = read(told(chunks_of(content, STOP)))
    assert found == content
    assert events[0]["message"]["id"] == "msg_7"
    assert events[0]["message"]["model"] == "smart"
    assert events[-2]["delta"] == STOP
    assert events[-2]["usage"] == {**USAGE, "cost": 0.5}
    assert events[-2]["context_management"] == {"applied_edits": []}
    assert [event["type"] for event in events].count("message_stop") == 1


@pytest.mark.parametrize("content", [RICH, PLAIN], ids=["rich", "plain"])
def test_a_whole_answer_and_one_told_again_hold_the_same_blocks(content: list[dict[str, Any]]) -> None:
    """A kept answer serves streams and whole bodies; neither may be poorer than what came."""
    kept = fold([chunk.data for chunk in chunks_of(content, STOP)])
    message = {
        "type": "message",
        "id": "x",
        "content": content,
        "usage": USAGE,
        "context_management": {"applied_edits": []},
    }
    for body in (kept, body_of({**message, **STOP}, "m", 1.0, native=True).data):
        whole = decode(voice().whole({**body, "id": "chatcmpl-7", "model": "smart"}))
        assert whole["content"] == content
        assert (whole["stop_reason"], whole["container"]) == ("pause_turn", STOP["container"])
        assert {name: whole["usage"][name] for name in USAGE} == USAGE
        speaker = voice()
        again = b"".join([speaker.events(event) for event in unfold(body, "chat", include_usage=True)]) + speaker.end()
        found, events = read(again)
        assert found == content
        assert events[-2]["delta"] == {"stop_details": None, **STOP}


def test_other_readers_see_no_more_than_chat_says() -> None:
    """Who follows the same answer in another dialect gets chat's words for it."""
    kept = fold([chunk.data for chunk in chunks_of(PLAIN, {"stop_reason": "tool_use", "stop_sequence": None})])
    (choice,) = kept["choices"]  # pyright: ignore[reportGeneralTypeIssues] - a list of choices
    assert choice["message"].keys() == {
        "role",
        "content",
        "refusal",
        "tool_calls",
        "reasoning_content",
        "thinking_blocks",
    }
    assert choice["native_stop"] == {
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "context_management": {"applied_edits": []},
    }


def test_nothing_is_told_before_it_may_be_refused() -> None:
    """An overload right after the beginning goes to the next place; a client must not have heard of it."""
    events = Events("m", 1.0, native=True)
    begun = events_of([{"type": "text", "text": "x"}], STOP)
    assert [events.feed(encode(event)) for event in begun[:2]] == [[], []]
    (first, *_) = events.feed(encode(begun[2]))
    assert first.native is not None
    assert [event["type"] for event in first.native.events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
    ]


def test_what_shortening_a_conversation_took_is_paid_for() -> None:
    """It stands in `iterations` alone; the totals leave it out, and the bill does not."""
    shortened = {
        "type": "compaction",
        "input_tokens": 100,
        "output_tokens": 20,
        "cache_read_input_tokens": 5,
        "cache_creation_input_tokens": 4,
        "cache_creation": {"ephemeral_1h_input_tokens": 4, "ephemeral_5m_input_tokens": 0},
    }
    usage = {**USAGE, "iterations": [shortened, {"type": "message", "input_tokens": 7, "output_tokens": 9}]}
    message: Body = {
        "type": "message",
        "id": "x",
        "content": [{"type": "text", "text": "y"}],
        "stop_reason": "end_turn",
        "usage": usage,
    }
    chunk = body_of(message, "m", 1.0, native=True)
    assert chunk.usage is not None
    assert (chunk.usage.prompt, chunk.usage.cached, chunk.usage.completion) == (116, 5, 29)
    assert (chunk.usage.cache_write, chunk.usage.cache_write_1h) == (4, 4)
    whole = decode(voice().whole({**chunk.data, "id": "chatcmpl-7", "model": "smart"}))
    assert {name: whole["usage"][name] for name in USAGE} == USAGE
    assert whole["usage"]["iterations"] == usage["iterations"]
