"""Moderations, images and audio with OpenAI's own client: passed on, charged, refused where nobody has them."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from openai import AsyncOpenAI

from tests.live import Live, live, settings
from tests.unit.upstream.raw_upstream import Heard, raw_upstream

IMAGE = {"created": 1, "data": [{"b64_json": "aGk="}], "usage": {
    "input_tokens": 50, "output_tokens": 1_000, "total_tokens": 1_050,
    "input_tokens_details": {"text_tokens": 50, "image_tokens": 0},
}}  # fmt: skip
MODERATED = {
    "id": "modr-1",
    "model": "theirs",
    "results": [{"flagged": False, "categories": {}, "category_scores": {}}],
}
SAID = {"text": "hello", "usage": {"type": "duration", "seconds": 3.2}}
SOUND = bytes(range(256)) * 40
encode = msgspec.json.encode


def client_of(gateway: Live) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.key, max_retries=0, timeout=20)


async def answer(writer: asyncio.StreamWriter, heard: Heard) -> None:
    path = heard.line.split(" ")[1]
    kind, body = "application/json", b"{}"
    if path.endswith("moderations"):
        body = encode(MODERATED)
    elif path.endswith("generations"):
        body = encode(IMAGE)
    elif path.endswith("speech"):
        kind, body = "audio/mpeg", SOUND
    elif path.endswith("transcriptions"):
        body = encode(SAID)
    writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)


async def test_they_are_passed_on_and_charged(tmp_path: Path) -> None:
    """Each in its own form, at what it says it used: tokens, characters, seconds."""
    async with raw_upstream(answer) as upstream:
        lab: Any = {"kind": "openai", "base_url": upstream.url, "api_key": "none", "billing": "stops-on-close"}
        models: Any = {"omni-moderation-latest": {"route": ["lab/mod"], "free": True}}
        chosen = settings(tmp_path, providers={"lab": lab}, models=models)
        async with live(chosen) as gateway, client_of(gateway) as client:
            with pytest.raises(openai.APIStatusError) as unpriced:
                await client.images.generate(model="lab/image", prompt="a cat")
            assert unpriced.value.status_code == 402
            for name, made in (("image", "2.00"), ("tts", "0"), ("talk", "2.00"), ("whisper", "2.00")):
                await gateway.services.prices.set(
                    f"lab/{name}", input_usd="1.00", output_usd=made, actor="test", effective_from=0.0
                )
            moderated = await client.moderations.create(input="x")
            assert (moderated.results[0].flagged, moderated.model) == (False, "omni-moderation-latest")
            image = await client.images.generate(model="lab/image", prompt="a cat")
            assert image.data is not None
            assert image.data[0].b64_json == "aGk="
            speech = await client.audio.speech.create(model="lab/tts", voice="alloy", input="hello")
            assert (speech.content, speech.response.headers["content-type"]) == (SOUND, "audio/mpeg")
            await client.audio.speech.create(model="lab/talk", voice="alloy", input="hello")
            said = await client.audio.transcriptions.create(
                model="lab/whisper", file=("a.wav", SOUND), timestamp_granularities=["word", "segment"]
            )
            assert said.text == "hello"
            form = upstream.heard[-1].body
            assert SOUND in form
            assert form.count(b'name="timestamp_granularities[]"') == 2
            assert b"whisper" in form
            entries = {entry["model"]: entry for entry in await gateway.entries()}
            talk = entries.pop("talk")  # paid for its sound too, and nobody says how much that was
            assert talk["source"] == "estimated"
            assert talk["amount_nano"] == 1_000 * talk["prompt"] + 2_000 * 20
            amounts = {name: entry["amount_nano"] for name, entry in entries.items()}
            assert amounts == {"mod": 0, "image": 2_050_000, "tts": 5_000, "whisper": 4_000}
            rows = await gateway.rows()
            assert [row["status"] for row in rows] == [402, 200, 200, 200, 200, 200]


async def test_what_tells_no_count_is_charged_at_most(tmp_path: Path) -> None:
    """An answer whose use nobody knows may have cost all that was set aside for it; less would be a gap."""

    async def silent(writer: asyncio.StreamWriter, _: Heard) -> None:
        body = encode({"created": 1, "data": [{"url": "http://x"}, {"url": "http://y"}]})
        writer.write(
            f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        )

    async with raw_upstream(silent) as upstream:
        lab: Any = {"kind": "openai", "base_url": upstream.url, "api_key": "none"}
        async with live(settings(tmp_path, providers={"lab": lab})) as gateway, client_of(gateway) as client:
            await gateway.services.prices.set(
                "lab/image", input_usd="0", output_usd="1.00", actor="test", effective_from=0.0
            )
            await client.images.generate(model="lab/image", prompt="a cat", n=2)
            (entry,) = await gateway.entries()
            assert (entry["source"], entry["amount_nano"]) == ("estimated", 2 * 8_192 * 1_000)


async def test_who_has_none_says_so(tmp_path: Path) -> None:
    """An engine cannot paint; the client learns that it is the model, not the path."""
    async with live(settings(tmp_path)) as gateway, client_of(gateway) as client:
        asked = {
            "/v1/moderations": {"input": "x"},
            "/v1/images/generations": {"prompt": "a cat"},
            "/v1/audio/speech": {"input": "hi", "voice": "alloy"},
        }
        for path, body in asked.items():
            told = await gateway.post(path, {"model": "local/sim", **body})
            assert (told.status, told.json["error"]["code"]) == (400, "unsupported_operation"), path
            wrong = await gateway.post(path, {"model": "local/sim"})
            assert (wrong.status, wrong.json["error"]["code"]) == (400, "missing_required_parameter")
        with pytest.raises(openai.BadRequestError, match="makes no transcriptions"):
            await client.audio.transcriptions.create(model="local/sim", file=("a.wav", SOUND))
        assert (await gateway.post("/v1/audio/transcriptions", {"model": "local/sim"})).status == 415
        assert (await gateway.post("/v1/moderations", {"input": "x"})).status == 404
