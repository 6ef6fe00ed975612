"""The table of answers that clients are picky about, over real sockets: streams, usage, vectors, revoked keys."""

import base64
import struct
from pathlib import Path
from typing import Any

from tests.live import Live, Told, live, settings

HI = [{"role": "user", "content": "Say hello to both of us, please."}]
FRESH = {"store": "memory", "mode": "off"}


async def streamed(gateway: Live, **body: Any) -> list[Any]:
    asked: Any = {"messages": HI, "stream": True, **body}
    told = await gateway.chat(**asked)
    assert told.headers["content-type"].startswith("text/event-stream")
    return told.events


async def test_streams_are_told_as_openai_tells_them(tmp_path: Path) -> None:
    """Rows 82 to 87: choices, usage, roles, ends; clients that fold events break on each of these."""
    async with live(settings(tmp_path, cache=FRESH)) as gateway:
        *two, done = await streamed(gateway, n=2)
        assert done == "[DONE]"
        for index in (0, 1):
            mine = [choice for event in two for choice in event["choices"] if choice["index"] == index]
            assert mine[0]["delta"]["role"] == "assistant"
            assert [choice["finish_reason"] for choice in mine if choice["finish_reason"]] == ["stop"]
            assert mine[-1]["finish_reason"] == "stop"
        assert len({(event["id"], event["created"], event["model"]) for event in two}) == 1
        assert all(event["choices"] and "usage" not in event for event in two)
        *events, last, _ = await streamed(gateway, stream_options={"include_usage": True})
        assert last["choices"] == []
        assert last["usage"]["total_tokens"] > 0
        assert all(event["usage"] is None for event in events)
        refused = await gateway.chat(stream=True, messages=[])
        assert (refused.status, refused.headers["content-type"]) == (400, "application/json")


async def test_a_stream_is_not_held_back_for_compression(tmp_path: Path) -> None:
    """Row 90: a client that accepts gzip still gets its words one by one."""
    async with live(settings(tmp_path, upstream={"tpot_ms": 20})) as gateway:
        headers = {"authorization": f"Bearer {gateway.key}", "accept-encoding": "gzip, deflate, br"}
        body = {"model": "up/scripted", "messages": HI, "stream": True}
        async with gateway.client.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers) as answer:
            assert "content-encoding" not in answer.headers
            assert "content-length" not in answer.headers
            reads = [piece async for piece in answer.content.iter_any()]
        assert len(reads) > 3


async def test_a_hit_is_told_in_the_form_that_was_asked_for(tmp_path: Path) -> None:
    """Rows 148 and 149: written whole, read as a stream with its usage, and the reverse."""
    async with live(settings(tmp_path)) as gateway:
        for first in (True, False):
            messages = [{"role": "user", "content": f"Is this written as a stream? {first}"}]
            await gateway.chat(messages=messages, stream=first)
            await gateway.settled()
            again: Any = {"messages": messages, "stream": not first}
            if not first:
                again["stream_options"] = {"include_usage": True}
            hit = await gateway.chat(**again)
            assert hit.headers["x-nearhit-cache"] == "hit-exact"
            if first:
                assert hit.json["choices"][0]["finish_reason"] == "stop"
            else:
                assert hit.events[-2]["choices"] == []
                assert hit.events[-2]["usage"]["cost"] == 0


async def test_vectors_are_the_same_in_both_forms(tmp_path: Path) -> None:
    """Row 81: OpenAI's clients ask for base64, little-endian float32, and decode it."""
    async with live(settings(tmp_path, cache=FRESH)) as gateway:
        asked = {"model": "up/scripted", "input": ["one", "two"]}
        plain = await gateway.post("/v1/embeddings", asked)
        packed = await gateway.post("/v1/embeddings", {**asked, "encoding_format": "base64"})
        for row, other in zip(plain.json["data"], packed.json["data"], strict=True):
            raw = base64.b64decode(other["embedding"])
            found = struct.unpack(f"<{len(raw) // 4}f", raw)
            assert max(abs(one - two) for one, two in zip(row["embedding"], found, strict=True)) < 1e-6
            assert row["index"] == other["index"]


async def test_a_key_revoked_while_it_streams_ends_with_that_stream(tmp_path: Path) -> None:
    """Row 156: what was admitted is answered and paid for; the next request is refused."""
    async with live(settings(tmp_path, upstream={"tpot_ms": 10})) as gateway:
        key = await gateway.new_key("leavers")
        headers = {"authorization": f"Bearer {key}"}
        body = {"model": "up/scripted", "messages": HI, "stream": True}
        async with gateway.client.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers) as answer:
            await answer.content.readany()
            revoked = await gateway.client.delete(
                f"{gateway.url}/api/v1/keys/{key.split('-')[2]}",
                headers={"authorization": "Bearer sk-test-admin-key-of-some-length"},
            )
            assert revoked.status < 300
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
        refused: Told = await gateway.chat(key=key)
        assert (refused.status, refused.json["error"]["code"]) == (401, "invalid_api_key")
