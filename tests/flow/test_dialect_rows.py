"""Bad input on the paths of the other dialects: a clear error in the dialect's own shape, never a 5xx, no charge."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.live import live, settings

encode = msgspec.json.encode
HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
MESSAGE = {"model": "up/scripted", "max_tokens": 9, "messages": HI}
RESPONSE = {"model": "up/scripted", "input": "hi"}
ROWS: list[tuple[str, bytes, set[int]]] = [
    ("malformed JSON", b'{"model": ', {400}),
    ("empty body", b"", {400}),
    ("JSON array", b"[1]", {400}),
    ("JSON string", b'"x"', {400}),
    ("null", b"null", {400}),
    ("invalid UTF-8", b'{"model":"\xff"}', {400}),
    ("NaN", encode({**MESSAGE, **RESPONSE, "temperature": 0})[:-2] + b"NaN}", {400}),
    ("200k deep", b'{"a":' + b"[" * 200_000, {400}),
    ("6000 digits", encode({**MESSAGE, **RESPONSE})[:-1] + b',"seed":' + b"9" * 6000 + b"}", {400}),
    ("lone surrogate", encode({**MESSAGE, **RESPONSE}).replace(b'"hi"', rb'"\ud800"'), {200}),
    ("NUL", encode({**MESSAGE, **RESPONSE}).replace(b'"hi"', rb'"a\u0000b"'), {200}),
    ("unknown field", encode({**MESSAGE, **RESPONSE, "zzz": {"a": [1]}}), {200}),
    ("null fields", encode({**MESSAGE, **RESPONSE, "temperature": None, "tools": None, "stream": None}), {200}),
    ("no model", encode({"max_tokens": 9, "messages": HI, "input": "hi"}), {400}),
    ("model is a list", encode({**MESSAGE, **RESPONSE, "model": ["a"]}), {400}),
    ("CRLF in model", encode({**MESSAGE, **RESPONSE, "model": "a\r\nx-evil: 1"}), {400}),
    ("100 KB model name", encode({**MESSAGE, **RESPONSE, "model": "m" * 100_000}), {400}),
    ("unknown model", encode({**MESSAGE, **RESPONSE, "model": "no/where"}), {400, 404}),
    ("stream is a word", encode({**MESSAGE, **RESPONSE, "stream": "yes"}), {400}),
    ("tools is a word", encode({**MESSAGE, **RESPONSE, "tools": "x"}), {400}),
    ("tools without a name", encode({**MESSAGE, **RESPONSE, "tools": [{"type": "custom", "parameters": []}]}), {400}),
    ("stream of a bad request", encode({**MESSAGE, **RESPONSE, "stream": True, "messages": [], "input": []}), {400}),
]  # fmt: skip


@pytest.mark.parametrize(
    "path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/responses", "/v1/responses/input_tokens"]
)
async def test_every_row_is_answered_in_the_paths_own_shape(tmp_path: Path, path: str) -> None:
    """SDKs repeat every 5xx, so a wrong one doubles the cost of the client's own mistake."""
    async with live(settings(tmp_path)) as gateway:
        answered: set[str] = set()
        sent = {"authorization": f"Bearer {gateway.key}", "content-type": "application/json"}
        for name, body, expected in ROWS:
            async with gateway.client.post(gateway.url + path, data=body, headers=sent) as response:
                raw = await response.read()
                assert response.status in expected, (name, raw[:300])
                assert "x-request-id" in response.headers
                assert "x-evil" not in response.headers
                if response.status == 200:
                    answered.add(response.headers["x-request-id"])
                    continue
                told = msgspec.json.decode(raw)
                assert len(raw) < 8_000, name
                if "messages" in path:
                    assert told["type"] == "error"
                    assert {"type", "message"} <= set(told["error"]), name
                else:
                    assert set(told["error"]) == {"message", "type", "param", "code"}, name
        charged = {entry["request_id"] for entry in await gateway.entries()}
        assert charged <= answered
        assert bool(charged) is path.endswith(("messages", "responses"))


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
async def test_a_form_is_refused_and_gzip_is_read(tmp_path: Path, path: str) -> None:
    """HTTP's own rules hold on every path alike, and each tells them in its shape."""
    async with live(settings(tmp_path)) as gateway:
        told = await gateway.post(path, MESSAGE, headers={"content-type": "application/x-www-form-urlencoded"})
        assert told.status == 415
        assert "error" in told.json
        told = await gateway.post(path, {**MESSAGE, **RESPONSE}, headers={"x-nearhit-dry-run": "1"})
        assert told.json["object"] == "nearhit.dry_run"
        told = await gateway.post(path, {**MESSAGE, **RESPONSE}, headers={"x-nearhit-tyop": "1"})
        assert told.status == 400
        assert await gateway.entries() == []
