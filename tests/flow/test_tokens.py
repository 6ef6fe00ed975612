"""`/tokenize` and `/detokenize`: vLLM's shape over a real socket, for models that run here or where a server tells."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.api import GenerateRequest, Spelled
from engine.sim import SimEngine
from tests.live import Live, decode, live, settings
from tests.unit.upstream.raw_upstream import Heard, raw_upstream

HI = [{"role": "user", "content": "hi"}]
CHAT: dict[str, Any] = {"model": "local/sim", "messages": HI}


async def asked(gateway: Live, path: str, body: Any, key: str | None = None) -> tuple[int, Any]:
    headers = {"authorization": f"Bearer {key or gateway.key}"}
    async with gateway.client.post(gateway.url + path, json=body, headers=headers) as answer:
        return answer.status, decode(await answer.read())


async def test_tokens_are_told_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluation harnesses cut prompts by a server's own tokenizer; there was none to ask, and nothing is charged."""
    seen: list[tuple[bool, bool | None]] = []

    async def tokens(_: SimEngine, request: GenerateRequest, *, specials: bool | None = None) -> list[int]:
        seen.append((request.messages is not None, specials))
        return [7, 8]

    async def spelled(_: SimEngine, ids: list[int]) -> Spelled:
        return Spelled("a b", ["a", " b"][: len(ids)])

    monkeypatch.setattr(SimEngine, "tokens", tokens)
    monkeypatch.setattr(SimEngine, "spelled", spelled)
    async with live(settings(tmp_path)) as gateway:
        plain = {"model": "local/sim", "prompt": "a b", "add_special_tokens": False}
        status, told = await asked(gateway, "/tokenize", plain)
        assert (status, told["count"], told["tokens"], told["token_strs"]) == (200, 2, [7, 8], None)
        assert told["max_model_len"] > 0
        chat = {**CHAT, "return_token_strs": True}
        assert (await asked(gateway, "/v1/tokenize", chat))[1]["token_strs"] == ["a", " b"]
        assert seen == [(False, False), (True, None)]
        assert await asked(gateway, "/detokenize", {"model": "local/sim", "tokens": [7, 8]}) == (200, {"prompt": "a b"})
        assert await gateway.entries() == []


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {"model": "local/sim", "prompt": "a"}, 400, "model"),
        ("/tokenize", {"model": "up/scripted", "prompt": "a"}, 400, "model"),
        ("/tokenize", {"model": "no/where", "prompt": "a"}, 404, None),
        ("/tokenize", {"model": "local/sim"}, 400, "prompt"),
        ("/tokenize", {"model": "local/sim", "prompt": "a", "messages": HI}, 400, "prompt"),
        ("/tokenize", {"model": "local/sim", "prompt": 5}, 400, "prompt"),
        ("/tokenize", {"model": "local/sim", "messages": [{"role": "robot"}]}, 400, "messages[0].role"),
        ("/tokenize", {**CHAT, "chat_template": "x"}, 400, "chat_template"),
        ("/tokenize", {**CHAT, "continue_final_message": True}, 400, "continue_final_message"),
        ("/detokenize", {"model": "local/sim", "tokens": ["a"]}, 400, "tokens[0]"),
        ("/detokenize", {"model": "local/sim"}, 400, "tokens"),
    ],
)  # fmt: skip
async def test_what_cannot_be_told_is_refused_by_name(
    tmp_path: Path, path: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    """Tokens of another chat than the one that would be read are worse than none, and a guess is no tokenizer."""
    async with live(settings(tmp_path)) as gateway:
        found, told = await asked(gateway, path, body)
        assert (found, told["error"]["param"]) == (status, param)
        assert (await asked(gateway, path, body, "sk-wrong"))[0] == 401


@pytest.mark.parametrize(
    ("kind", "more", "text"),
    [("vllm", {}, "prompt"), ("sglang", {}, "text"), ("vllm", {"api_keys": ["one", "two"]}, "prompt")],
)
async def test_a_remote_servers_own_tokenizer_is_asked(
    tmp_path: Path, kind: str, more: dict[str, Any], text: str
) -> None:
    """Prompts are cut for the model that reads them; that of a server in the fleet was refused though it would tell."""
    heard: list[tuple[str, dict[str, Any]]] = []

    async def answer(writer: asyncio.StreamWriter, said: Heard) -> None:
        path = said.line.split()[1]
        heard.append((path, decode(said.body)))
        tokens = {"count": 2, "max_model_len": 4_096, "tokens": [7, 8], "own": 1}
        raw = msgspec.json.encode(tokens if path == "/tokenize" else {text: "a b"})
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(raw)}\r\n\r\n".encode() + raw)

    async with raw_upstream(answer) as upstream:
        server = {"kind": kind, "base_url": f"http://127.0.0.1:{upstream.port}/v1", **more}
        async with live(settings(tmp_path, providers={"fleet": server, "up": {"kind": "scripted"}})) as gateway:
            said = {"model": "fleet/big", "messages": HI, "add_generation_prompt": False, "unknown": 1}
            told = {"count": 2, "max_model_len": 4_096, "tokens": [7, 8], "token_strs": None}
            assert await asked(gateway, "/tokenize", said) == (200, told)
            said = {"model": "fleet/big", "tokens": [7, 8]}
            assert await asked(gateway, "/v1/detokenize", said) == (200, {"prompt": "a b"})
            assert (await asked(gateway, "/tokenize", {"model": "fleet/big"}))[0] == 400
            assert await gateway.entries() == []
    sent = {"model": "big", "messages": HI, "add_generation_prompt": False}
    assert heard == [("/tokenize", sent), ("/detokenize", {"model": "big", "tokens": [7, 8]})]


async def test_a_remote_server_that_refuses_is_heard(tmp_path: Path) -> None:
    """An older server, or one that has none, says so itself; what it says is no fault of the gateway's."""

    async def answer(writer: asyncio.StreamWriter, said: Heard) -> None:
        writer.write(b'HTTP/1.1 404 Not Found\r\ncontent-length: 22\r\n\r\n{"detail":"Not Found"}')

    async with raw_upstream(answer) as upstream:
        server = {"kind": "vllm", "base_url": f"http://127.0.0.1:{upstream.port}/v1"}
        async with live(settings(tmp_path, providers={"fleet": server, "up": {"kind": "scripted"}})) as gateway:
            status, told = await asked(gateway, "/tokenize", {"model": "fleet/big", "prompt": "a"})
            assert (status, told["error"]["type"]) == (404, "invalid_request_error")
