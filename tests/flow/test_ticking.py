"""A stream that stands still, over a real socket: signs of life between its events, and nothing else changes."""

from pathlib import Path

import pytest

from gateway import ticking
from tests.live import live, settings


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_stream_that_stands_still_shows_that_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Models that think for minutes were cut off by load balancers; comments stand between events, never within one."""
    monkeypatch.setattr(ticking, "EVERY", 0.05)
    async with live(settings(tmp_path, upstream={"tokens": 3, "tpot_ms": 200}, cache={"mode": "off"})) as gateway:
        said = [{"role": "user", "content": "think"}]
        body = {"model": "up/scripted", "messages": said, "max_tokens": 9, "stream": True}
        told = await gateway.post(path, body)
    events = told.raw.decode().split("\n\n")
    comments = [event for event in events if event.startswith(":")]
    assert len(comments) >= 2
    assert {f"{event}\n\n".encode() for event in comments} == {ticking.COMMENT}
    assert all(event.startswith(("data: ", "event: ", ":")) for event in events if event)
    assert not events[-2].startswith(":")  # the end mark is the last word


async def test_a_stream_that_flows_has_none(tmp_path: Path) -> None:
    """They are for silence alone."""
    async with live(settings(tmp_path, upstream={"tokens": 5})) as gateway:
        told = await gateway.chat(stream=True)
    assert told.events[-1] == "[DONE]"
    assert b"\n:" not in told.raw
