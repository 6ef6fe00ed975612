"""The comparison with other people's recordings: it must see what is lost, and read every form they are kept in."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.wire.__main__ import compared

CHAT = "https://api.groq.com/openai/v1/chat/completions"
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sea"}'}}
WHOLE: dict[str, Any] = {
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Yes.", "reasoning": "Hm.", "tool_calls": [CALL]},
            "finish_reason": "tool_calls",
        }
    ],
    "usage": {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}},
}


def exchange(url: str, body: Any, status: int = 200, media: str = "application/json") -> dict[str, Any]:
    return {
        "request": {"uri": url, "method": "POST", "body": "{}"},
        "response": {"status": {"code": status}, "headers": {"Content-Type": [media]}, "body": {"string": body}},
    }


async def found(folder: Path, *exchanges: dict[str, Any]) -> Any:
    (folder / "one.yaml").write_text(yaml.safe_dump({"interactions": list(exchanges), "version": 1}), "utf-8")
    return await compared(folder)


async def test_an_answer_read_alike_differs_in_nothing(tmp_path: Path) -> None:
    """Words, thinking, a call and three counts: what the table says of a service rests on this."""
    tally = await found(tmp_path, exchange(CHAT, json.dumps(WHOLE)))
    assert (dict(tally.counts), tally.wrong) == ({("groq", "whole"): 1}, {})


@pytest.mark.parametrize(
    ("url", "change", "word"),
    [
        # A server that OpenAI's name says nothing of: its own name for thoughts is not known there.
        ("https://api.deepseek.com/chat/completions", {}, "thought"),
        (CHAT, {"type": None}, "a call that clients cannot read"),
    ],
)
async def test_what_a_provider_loses_is_named(tmp_path: Path, url: str, change: dict[str, Any], word: str) -> None:
    """A comparison that never finds anything would be worth nothing."""
    message = {**WHOLE["choices"][0]["message"], "tool_calls": [{**CALL, **change}]}
    body = {**WHOLE, "choices": [{**WHOLE["choices"][0], "message": message}]}
    tally = await found(tmp_path, exchange(url, json.dumps(body)))
    assert [word in line for lines in tally.wrong.values() for line in lines] == [True]


async def test_an_answer_that_is_cut_is_not_read(tmp_path: Path) -> None:
    """It must count as a difference and not as a short answer."""
    event = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "Y"}, "finish_reason": None}]}
    tally = await found(tmp_path, exchange(CHAT, f"data: {json.dumps(event)}\n\n", media="text/event-stream"))
    assert tally.counts["groq", "streamed"] == 1
    assert "not read" in tally.wrong["groq"][0]


async def test_refusals_keep_status_and_words(tmp_path: Path) -> None:
    """Of a failure that the upstream told in the middle of a stream its words are enough."""
    error = {"error": {"message": "Model not found", "code": 404}}
    late = f"data: {json.dumps({'error': {'message': 'It broke'}})}\n\n"
    tally = await found(
        tmp_path,
        exchange(CHAT, json.dumps(error), 404),
        exchange(CHAT, late, media="text/event-stream"),
        exchange("https://api.groq.com/openai/v1/models", "{}"),
    )
    assert (dict(tally.counts), tally.wrong) == ({("groq", "error"): 1, ("groq", "streamed"): 1}, {})
    assert tally.others == 1


async def test_recordings_come_in_several_forms(tmp_path: Path) -> None:
    """Packed files, packed bodies, bodies kept as JSON; what is no recording is told and stops nothing."""
    packed = exchange(CHAT, gzip.compress(json.dumps(WHOLE).encode()))
    parsed = exchange(CHAT, None)
    parsed["response"]["parsed_body"] = WHOLE
    (tmp_path / "two.yaml.gz").write_bytes(gzip.compress(yaml.safe_dump({"interactions": [packed]}).encode()))
    (tmp_path / "three.json").write_text(json.dumps({"interactions": [parsed, {"frame": "of a WebSocket"}]}), "utf-8")
    (tmp_path / "none.yaml").write_text("[", "utf-8")
    tally = await compared(tmp_path)
    assert (dict(tally.counts), tally.wrong, len(tally.unreadable)) == ({("groq", "whole"): 2}, {}, 1)
