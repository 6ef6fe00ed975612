"""A gateway with an upstream of every language behind it, and something of everything that can be asked for by id.

Knows: which upstreams serve which paths. Does not know: what is asked.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from openai.types.moderation import Categories, CategoryScores

from tests.languages.anthropic import Anthropic
from tests.languages.azure import Azure
from tests.languages.bedrock import Bedrock
from tests.languages.gemini import Gemini
from tests.live import Live, live, settings
from tests.shapes.published import HI, Names
from tests.unit.upstream.raw_upstream import Heard, raw_upstream
from tests.waiting import until
from tests.wire_upstream import Answer, Language, Manner, Request, wire_upstream

encode = msgspec.json.encode
_LIMITS = frozenset({"max_tokens", "max_completion_tokens", "maxOutputTokens", "maxTokens"})
_LONGEST = 50


class Brief:
    """Another language with short answers: the fakes fill any limit, and a drawn one may be a billion."""

    def __init__(self, language: Language) -> None:
        self._language = language

    async def answer(self, asked: Request) -> Answer:
        return await self._language.answer(msgspec.structs.replace(asked, body=_brief(asked.body)))

    def failure(self) -> Answer:
        return self._language.failure()


def _brief(body: Any) -> Any:
    if not isinstance(body, dict):
        return body
    return {name: min(value, _LONGEST) if name in _LIMITS else _brief(value) for name, value in body.items()}


_LANGUAGES: dict[str, tuple[Language, str]] = {
    "anthropic": (Anthropic(), "claude-haiku-4-5"),
    "azure": (Azure(frozenset({"gpt-4o"})), "gpt-4o"),
    "bedrock": (Bedrock(), "amazon.nova-lite-v1:0"),
    "gemini": (Gemini(), "gemini-2.5-pro"),
}
_TEXT = ["up/scripted", "local/sim"]
_CHAT = [*_TEXT, *(f"{kind}/{model}" for kind, (_, model) in _LANGUAGES.items())]
_MODERATED = {
    "flagged": False,
    "categories": {told.alias or name: False for name, told in Categories.model_fields.items()},
    "category_scores": {told.alias or name: 0.0 for name, told in CategoryScores.model_fields.items()},
    "category_applied_input_types": {told.alias or name: ["text"] for name, told in Categories.model_fields.items()},
}
_PASSED: dict[str, tuple[str, Any]] = {
    "moderations": ("application/json", {"id": "modr-1", "model": "mod", "results": [_MODERATED]}),
    **dict.fromkeys(
        ("generations", "edits", "variations"), ("application/json", {"created": 1, "data": [{"b64_json": "aGk="}]})
    ),
    "translations": ("application/json", {"text": "hello", "duration": 0.1}),
    "transcriptions": ("application/json", {"text": "hello", "usage": {"type": "duration", "seconds": 0.1}}),
}
MODELS: dict[str, list[str]] = {
    "/v1/chat/completions": _CHAT,
    "/v1/responses": _CHAT,
    "/v1/responses/compact": [*_TEXT, "azure/gpt-4o"],  # the others always answer up to the limit, which is no summary
    "/v1/responses/input_tokens": _CHAT,
    "/v1/messages": _CHAT,
    "/v1/messages/count_tokens": _CHAT,
    "/v1/completions": _TEXT,
    "/v1/embeddings": ["up/scripted"],
    "/v1/moderations": ["lab/mod"],
    "/v1/images/generations": ["lab/image"],
    "/v1/images/edits": ["lab/image"],
    "/v1/images/variations": ["lab/image"],
    "/v1/audio/speech": ["lab/tts"],
    "/v1/audio/transcriptions": ["lab/whisper"],
    "/v1/audio/translations": ["lab/whisper"],
}


async def _pass(writer: asyncio.StreamWriter, heard: Heard) -> None:
    kind, told = _PASSED.get(heard.line.split(" ")[1].rpartition("/")[2], ("audio/mpeg", b"sound"))
    body = told if isinstance(told, bytes) else encode(told)
    writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)


@asynccontextmanager
async def behind(home: Path) -> AsyncGenerator[Live, None]:
    """The gateway, with prices for all of them."""
    async with AsyncExitStack() as stack:
        lab = await stack.enter_async_context(raw_upstream(_pass))
        providers: dict[str, Any] = {
            "up": {"kind": "scripted", "tokens": 3},
            "lab": {"kind": "openai", "base_url": lab.url, "api_key": "none"},
        }
        for kind, (language, _) in _LANGUAGES.items():
            upstream = await stack.enter_async_context(wire_upstream(Brief(language), Manner()))
            providers[kind] = {"kind": kind, "base_url": f"http://127.0.0.1:{upstream.port}", "api_key": "none"}
        plain: Any = {"ledger": {"durability": "off"}, "server": {"lag_target": 60.0}}
        gateway = await stack.enter_async_context(live(settings(home, providers=providers, **plain)))
        for name in {model for models in MODELS.values() for model in models}:
            if name not in ("up/scripted", "local/sim"):
                await gateway.services.prices.set(
                    name, input_usd="1.00", output_usd="2.00", actor="test", effective_from=0.0
                )
        yield gateway


async def known(gateway: Live) -> Names:
    """Files, a batch and responses are made; two of each for what is asked to delete one."""
    body = {"model": "up/scripted", "messages": HI}
    line = encode({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body})
    files = [await _file(gateway, line) for _ in range(2)]
    wanted = {"input_file_id": files[0], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = await _made(gateway, "/v1/batches", wanted)
    asked = {"model": "up/scripted", "input": "hi"}
    made = [await _made(gateway, "/v1/responses", asked) for _ in range(2)]
    running = await _made(gateway, "/v1/responses", {**asked, "background": True})
    ids = {
        "file": [files[0]],
        "doomed_file": [files[1]],
        "batch": [batch],
        "response": [made[0]],
        "doomed_response": [made[1]],
        "running": [running],
        "model": ["up/scripted", "local/sim", "nothing-of-this-name"],
    }
    return Names(MODELS, ids)


async def _made(gateway: Live, path: str, body: dict[str, Any]) -> str:
    """The id of something new; a busy machine's database may need more than one try to keep it."""
    found: list[Any] = []

    async def answered() -> bool:
        found.append((await gateway.post(path, body)).json)
        return "id" in found[-1]

    await until(answered)
    return found[-1]["id"]


async def _file(gateway: Live, data: bytes) -> str:
    found: list[Any] = []

    async def answered() -> bool:
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", data, filename="in.jsonl")
        headers = {"authorization": f"Bearer {gateway.key}"}
        async with gateway.client.post(f"{gateway.url}/v1/files", data=form, headers=headers) as answer:
            found.append(await answer.json())
        return "id" in found[-1]

    await until(answered)
    return found[-1]["id"]
