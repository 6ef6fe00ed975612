"""Keys for certain models hold against the fields by which an upstream would answer with another."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.auth import ADMIN, NewKey
from tests.flow.test_fees import SAID, Says
from tests.live import PROMPT, Live, live, settings
from tests.wire_upstream import Manner, WireUpstream, wire_upstream

ASKED: dict[str, Any] = {"model": "anthropic/claude-haiku-4-5", "max_tokens": 24, "messages": PROMPT}
OPUS = "claude-opus-4-8"
NAMED = {"model": OPUS}
ADVISER: dict[str, Any] = {"type": "advisor_20260301", "name": "advisor", "model": OPUS}


@asynccontextmanager
async def served(home: Path) -> AsyncGenerator[tuple[Live, WireUpstream]]:
    async with wire_upstream(Says({}, SAID), Manner()) as up:
        base = f"http://127.0.0.1:{up.port}"
        providers = {
            "anthropic": {"kind": "anthropic", "base_url": base},
            "openai": {"kind": "openai", "base_url": f"{base}/v1", "responses": True},
            "router": {"kind": "openrouter", "base_url": f"{base}/v1", "api_key": "k", "plain_http": True},
        }
        models = {
            "dear": {"route": [f"anthropic/{OPUS}"]},
            "free": {"route": ["openai/gpt-x"], "free": True},
            "routed": {"route": ["router/gpt-x"], "free": True},
        }
        async with live(settings(home, providers=providers, models=models)) as gateway:
            yield gateway, up


async def limited(gateway: Live, *models: str) -> str:
    wanted = NewKey(name="limited", team="acme", project="app", models=frozenset(models))
    return (await gateway.services.keyring.create(ADMIN, wanted)).key


@pytest.mark.parametrize(
    ("more", "param"),
    [({"fallbacks": [NAMED]}, "fallbacks[0].model"), ({"tools": [ADVISER]}, "tools[0].model")],
)
async def test_a_key_has_no_other_models_by_way_of_anthropic(tmp_path: Path, more: dict[str, Any], param: str) -> None:
    """A key for the cheapest model had the dearest one answer, also out of the cache, where others may have it."""
    async with served(tmp_path) as (gateway, up):
        body = {**ASKED, **more}
        assert (await gateway.post("/v1/messages", body)).status == 200
        narrow = await limited(gateway, ASKED["model"])
        told = await gateway.post("/v1/messages", body, narrow)
        assert (told.status, len(up.heard)) == (403, 1)
        assert f"anthropic/{OPUS}" in told.json["error"]["message"]
        assert param in told.json["error"]["message"]
        rehearsed = await gateway.post("/v1/messages", body, narrow, {"x-nearhit-dry-run": "1"})
        assert rehearsed.status == 403
        for name in ("dear", f"anthropic/{OPUS}"):
            wide = await limited(gateway, ASKED["model"], name)
            assert (await gateway.post("/v1/messages", body, wide)).status == 200


@pytest.mark.parametrize("given", [[OPUS], OPUS, [{"model": 1}], [{}]])
async def test_fallbacks_in_a_form_that_cannot_be_priced_are_refused(tmp_path: Path, given: object) -> None:
    """What is not understood was sent on: neither held for, nor held against the key."""
    async with served(tmp_path) as (gateway, up):
        told = await gateway.post("/v1/messages", {**ASKED, "fallbacks": given})
        assert (told.status, up.heard) == (400, [])
        assert "fallbacks" in told.json["error"]["message"]


@pytest.mark.parametrize(
    ("path", "model", "more", "param"),
    [
        ("chat/completions", "anthropic/claude-haiku-4-5", {"fallbacks": [NAMED]}, "fallbacks"),
        ("chat/completions", "free", {"fallbacks": [OPUS]}, "fallbacks"),
        ("chat/completions", "free", {"extra_body": {"models": [OPUS]}}, "extra_body.models"),
        (
            *("chat/completions", "free"),
            {"providerOptions": {"gateway": {"models": [OPUS]}}},
            "providerOptions.gateway.models",
        ),
        ("chat/completions", "routed", {"route": "fallback"}, "route"),
        ("chat/completions", "routed", {"preset": "mine"}, "preset"),
        ("chat/completions", "routed", {"plugins": [{"id": "x", "model": OPUS}]}, "plugins[0].model"),
        ("embeddings", "free", {"fallbacks": [OPUS], "input": "x"}, "fallbacks"),
        ("completions", "free", {"models": [OPUS], "prompt": "x"}, "models"),
        ("responses", "free", {"models": [OPUS], "input": "x"}, "models"),
        ("images/generations", "free", {"models": [OPUS], "prompt": "x"}, "models"),
        ("messages", "anthropic/claude-haiku-4-5", {"models": [OPUS]}, "models"),
    ],
)
async def test_fields_that_name_other_models_are_not_sent(
    tmp_path: Path, path: str, model: str, more: dict[str, Any], param: str
) -> None:
    """Behind an address may stand a gateway that heeds them: answers of other models, at the price of the first."""
    async with served(tmp_path) as (gateway, up):
        asked = {} if path in ("embeddings", "completions", "responses", "images/generations") else ASKED
        told = await gateway.post(f"/v1/{path}", {**asked, "model": model, **more})
        assert (told.status, up.heard) == (400, []), told.raw
        assert param in told.json["error"]["message"]
        if path != "messages":
            assert told.json["error"]["param"] == param


async def test_empty_fields_and_choices_of_the_asked_model_are_sent(tmp_path: Path) -> None:
    """Clients that fill in every field are not to be refused, nor those who choose who serves the model."""
    async with served(tmp_path) as (gateway, up):
        more = {"provider": {"order": ["a"]}, "plugins": [{"id": "web"}]}
        await gateway.post("/v1/chat/completions", {**ASKED, "model": "routed", **more})
        await gateway.post("/v1/chat/completions", {**ASKED, "model": "free", "models": [], "fallbacks": None})
        assert up.heard[0].body["provider"] == {"order": ["a"]}
        assert {one.body["model"] for one in up.heard} == {"gpt-x"}
        assert any("models" in one.body for one in up.heard)


async def test_a_key_for_certain_models_chooses_no_adapter(tmp_path: Path) -> None:
    """SGLang's `lora_path` makes another model of the one that the key is for."""
    async with served(tmp_path) as (gateway, up):
        narrow = await limited(gateway, "free")
        told = await gateway.post("/v1/chat/completions", {**ASKED, "model": "free", "lora_path": "x"}, narrow)
        assert (told.status, told.json["error"]["param"], up.heard) == (403, "lora_path", [])
