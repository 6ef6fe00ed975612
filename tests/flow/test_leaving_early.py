"""Who leaves in the midst of a stream: what servers that count along the way are paid, and when they are left alone."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.live import Live, live, settings
from tests.unit.upstream.raw_upstream import Heard, raw_upstream
from tests.waiting import until

decode = msgspec.json.Decoder().decode
WORDS = "word " * 60  # of which a tokenizer makes few tokens and a count of bytes many


def event(text: str, completion: int, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": more.pop("finish", None)}
    usage = {"prompt_tokens": 7, "completion_tokens": completion, "total_tokens": 7 + completion}
    body = {"id": "c", "object": "chat.completion.chunk", "choices": [choice], "usage": usage, **more}
    return b"data: %b\n\n" % msgspec.json.encode(body)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


async def unending(writer: asyncio.StreamWriter, heard: Heard) -> None:
    """Three events, and then nothing until the connection is closed."""
    writer.write(HEAD + b"".join(event(WORDS, 1 + number) for number in range(3)))
    await writer.drain()
    await asyncio.sleep(60)


async def whole(writer: asyncio.StreamWriter, heard: Heard) -> None:
    writer.write(HEAD + event("a", 1) + event("b", 2, finish="stop") + event("", 2, choices=[]) + b"data: [DONE]\n\n")
    await writer.drain()
    writer.close()


async def leave(gateway: Live, **body: Any) -> None:
    """Reads the first event, and is gone."""
    asked = msgspec.json.encode({"messages": [{"role": "user", "content": "x" * 400}], "stream": True, **body})
    reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rsplit(":", 1)[1]))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {gateway.key}\r\n"
    writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(asked)}\r\n\r\n".encode() + asked)
    await reader.readuntil(b"data: ")
    writer.transport.abort()


@pytest.mark.parametrize("kind", ["vllm", "dynamo"])
async def test_who_leaves_pays_what_the_server_has_counted(tmp_path: Path, kind: str) -> None:
    """By bytes 12 tokens of a real server were charged as 882, and the prompt as the most that it can be."""
    async with raw_upstream(unending) as up:
        providers = {"up": {"kind": kind, "base_url": up.url}}
        async with live(settings(tmp_path, providers=providers, cache={"mode": "off"})) as gateway:
            await gateway.services.prices.set("up/m", input_usd="1", output_usd="2", actor="test", effective_from=0.0)
            await leave(gateway, model="up/m", max_tokens=2_000)

            async def booked() -> bool:
                return bool(await gateway.entries())

            await until(booked)
            (entry,) = await gateway.entries()
            assert (entry["prompt"], entry["source"]) == (7, "estimated")
            assert 3 <= entry["completion"] <= 3 + 64  # and a second at the pace it had
        assert decode(up.heard[0].body)["stream_options"] == {"continuous_usage_stats": True, "include_usage": True}


@pytest.mark.parametrize(
    "wanted", [{}, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}]
)
async def test_counts_along_the_way_are_for_those_who_asked(tmp_path: Path, wanted: dict[str, bool]) -> None:
    """Clients take the first usage they meet for the last."""
    async with raw_upstream(whole) as up:
        providers = {"up": {"kind": "vllm", "base_url": up.url}}
        async with live(settings(tmp_path, providers=providers, cache={"mode": "off"})) as gateway:
            await gateway.services.prices.set("up/m", input_usd="1", output_usd="2", actor="test", effective_from=0.0)
            told = await gateway.chat(model="up/m", stream=True, stream_options=wanted)
            found = [event["usage"]["completion_tokens"] for event in told.events[:-1] if event.get("usage")]
            assert found == ([1, 2, 2] if len(wanted) == 2 else [2] if wanted else [])
            (entry,) = await gateway.entries()
            assert (entry["prompt"], entry["completion"], entry["source"]) == (7, 2, "provider")
