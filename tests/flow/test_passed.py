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
    return AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.key, max_retries=0, timeout=60)


async def answer(writer: asyncio.StreamWriter, heard: Heard) -> None:
    path = heard.line.split(" ")[1]
    kind, body = "application/json", b"{}"
    if path.endswith("moderations"):
        body = encode(MODERATED)
    elif "/images/" in path:
        body = encode(IMAGE)
    elif path.endswith("speech"):
        kind, body = "audio/mpeg", SOUND
    elif path.endswith("transcriptions"):
        body = encode(SAID)
    elif path.endswith("translations"):
        body = encode({"task": "translate", "duration": 7.1, "text": "hello"})
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


async def test_pictures_and_recordings_that_are_sent_arrive_whole(tmp_path: Path) -> None:
    """Every file under its own name with its bytes, beside the fields; charged by what the answer tells."""
    pictures, mask = [bytes([n]) * 70_000 for n in (1, 2)], b"\x89mask"
    async with raw_upstream(answer) as upstream:
        lab: Any = {"kind": "openai", "base_url": upstream.url, "api_key": "none"}
        async with live(settings(tmp_path, providers={"lab": lab})) as gateway, client_of(gateway) as client:
            for name, made in (("paint", "2.00"), ("whisper", "0")):
                await gateway.services.prices.set(
                    f"lab/{name}", input_usd="1.00", output_usd=made, actor="test", effective_from=0.0
                )
            edited = await client.images.edit(
                model="lab/paint", image=[("a.png", pictures[0]), ("b.png", pictures[1])], mask=("m.png", mask),
                prompt="ä" * 9_000, n=2,
            )  # fmt: skip
            assert edited.data
            sent = upstream.heard[-1]
            assert sent.line.split(" ")[1].endswith("/images/edits")
            assert all(picture in sent.body for picture in (*pictures, mask))
            assert sent.body.count(b'name="image[]"; filename=') == 2
            assert b'name="mask"; filename="m.png"' in sent.body
            assert ("ä" * 9_000).encode() in sent.body
            with pytest.warns(DeprecationWarning, match="deprecated"):  # at OpenAI; others imitate it
                varied = await client.images.create_variation(  # pyright: ignore[reportDeprecated] - see above
                    model="lab/paint", image=("a.png", pictures[0])
                )
            assert varied.data
            assert upstream.heard[-1].line.split(" ")[1].endswith("/images/variations")
            with pytest.warns(DeprecationWarning, match="deprecated"):
                translated = await client.audio.translations.create(  # pyright: ignore[reportDeprecated] - see above
                    model="lab/whisper", file=("a.wav", SOUND), response_format="verbose_json"
                )
            assert translated.text == "hello"
            amounts = [(entry["model"], entry["amount_nano"]) for entry in await gateway.entries()]
            assert amounts == [("paint", 2_050_000), ("paint", 2_050_000), ("whisper", 8_000)]


@pytest.mark.parametrize(
    ("path", "form", "param"),
    [
        ("images/edits", {"prompt": "x", "mask": b"m"}, "image"),
        ("images/edits", {"image": b"i"}, "prompt"),
        ("images/edits", {"image": b"i", "prompt": "x", "n": "11"}, "n"),
        ("images/edits", {"image": b"i", "prompt": "x", "stream": "true"}, "stream"),
        ("images/variations", {"n": "1"}, "image"),
        ("images/variations", {"image": b"i", "file": b"f", "n": "many"}, "n"),
        ("audio/translations", {"prompt": "x"}, "file"),
    ],
)
async def test_forms_that_lack_something_are_refused_by_name(
    tmp_path: Path, path: str, form: dict[str, Any], param: str
) -> None:
    """A form's mistakes must be told as those of JSON are, and cost nothing."""
    async with raw_upstream(answer) as upstream:
        lab: Any = {"kind": "openai", "base_url": upstream.url, "api_key": "none"}
        async with live(settings(tmp_path, providers={"lab": lab})) as gateway, client_of(gateway) as client:
            files = [(name, ("f", value)) for name, value in form.items() if isinstance(value, bytes)]
            fields = {"model": "lab/paint"} | {name: v for name, v in form.items() if not isinstance(v, bytes)}
            with pytest.raises(openai.BadRequestError) as refused:
                await client.post(
                    f"/{path}", body=fields, files=files or [("other", ("f", b"x"))], cast_to=object,
                    options={"headers": {"content-type": "multipart/form-data"}},
                )  # fmt: skip
            assert refused.value.param == param
            assert upstream.heard == []


async def test_a_recording_that_is_too_long_names_no_setting_of_files(tmp_path: Path) -> None:
    """Operators set `kept.max_file` higher, as the refusal said, and it did not help: these have their own bound."""
    async with live(settings(tmp_path)) as gateway, client_of(gateway) as client:
        with pytest.raises(openai.APIStatusError) as refused:
            await client.audio.transcriptions.create(model="up/scripted", file=("a.wav", b"x" * (26 << 20)))
        assert refused.value.status_code == 413
        assert "26,214,400" in refused.value.message
        assert "kept.max_file" not in refused.value.message


async def test_what_is_painted_of_a_picture_is_bound_by_pictures(tmp_path: Path) -> None:
    """Its bytes are no tokens: a budget would refuse an edit of four million bytes that costs two cents."""

    async def silent(writer: asyncio.StreamWriter, _: Heard) -> None:
        body = encode({"created": 1, "data": []})
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)

    async with raw_upstream(silent) as upstream:
        lab: Any = {"kind": "openai", "base_url": upstream.url, "api_key": "none"}
        async with live(settings(tmp_path, providers={"lab": lab})) as gateway, client_of(gateway) as client:
            await gateway.services.prices.set(
                "lab/paint", input_usd="1.00", output_usd="0", actor="test", effective_from=0.0
            )
            await client.images.edit(model="lab/paint", image=("a.png", bytes(4_000_000)), prompt="a cat")
            (entry,) = await gateway.entries()
            assert entry["source"] == "estimated"
            assert 16_384_000 <= entry["amount_nano"] < 20_000_000


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
