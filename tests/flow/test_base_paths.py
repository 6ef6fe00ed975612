"""Clients that put a path of their service's before OpenAI's reach the same routes."""

from pathlib import Path

import pytest
from openai import AsyncAzureOpenAI

from gateway.application import as_openais
from tests.live import live, settings

PREFIXES = ("/openai/v1", "/openai", "/v1beta/openai", "/inference/v1")


@pytest.mark.parametrize("prefix", PREFIXES)
async def test_a_path_that_a_client_brings_along_is_understood(tmp_path: Path, prefix: str) -> None:
    """Groq's own client asks for `/openai/v1/…` under any base URL, and was told that there is no such path."""
    async with live(settings(tmp_path)) as gateway:
        body = {"model": "up/scripted", "messages": [{"role": "user", "content": "Hi."}]}
        told = await gateway.post(f"{prefix}/chat/completions", body)
        assert (told.status, told.json["model"]) == (200, "up/scripted")
        told = await gateway.post(f"{prefix}/responses", {"model": "up/scripted", "input": "Hi."})
        assert (told.status, told.json["object"]) == (200, "response")
        async with gateway.client.get(
            f"{gateway.url}{prefix}/models", headers={"authorization": f"Bearer {gateway.key}"}
        ) as answer:
            assert (await answer.json())["object"] == "list"
        told = await gateway.post(f"{prefix}/nothing", body)
        assert (told.status, told.json["error"]["type"]) == (404, "invalid_request_error")


async def test_azures_client_names_a_deployment_in_the_path(tmp_path: Path) -> None:
    """Moving an application from Azure must not need another class of client; the model is in the body as well."""
    async with (
        live(settings(tmp_path)) as gateway,
        AsyncAzureOpenAI(azure_endpoint=gateway.url, api_key=gateway.key, api_version="2026-01-01") as client,
    ):
        told = await client.chat.completions.create(model="up/scripted", messages=[{"role": "user", "content": "Hi."}])
        assert told.choices[0].message.content
        made = await client.responses.create(model="up/scripted", input="Hi.")
        assert made.output_text
        assert (await client.models.list()).data


async def test_a_deployment_in_the_path_is_the_model_of_a_body_without_one(tmp_path: Path) -> None:
    """Azure's own description asks so. What was read of one deployment's request answers no other's."""
    models = {"a": {"route": ["up/a"], "free": True}, "b": {"route": ["up/b"], "free": True}}
    async with live(settings(tmp_path, models=models)) as gateway:
        body = {"messages": [{"role": "user", "content": "Hi."}]}
        for name in ("a", "b", "a", "b", "a"):
            told = await gateway.post(f"/openai/deployments/{name}/chat/completions?api-version=2024-10-21", body)
            assert (told.status, told.json["model"]) == (200, name)
        told = await gateway.post("/openai/deployments/a/chat/completions", {**body, "model": "b"})
        assert told.json["model"] == "b"
        keyed = {"idempotency-key": "k"}
        told = await gateway.post("/openai/deployments/a/chat/completions", body, headers=keyed)
        assert told.status == 200
        told = await gateway.post("/openai/deployments/b/chat/completions", body, headers=keyed)
        assert (told.status, told.json["error"]["code"]) == (409, "idempotency_key_reused")
        told = await gateway.post("/openai/chat/completions", body)
        assert (told.status, told.json["error"]["param"]) == (400, "model")
        told = await gateway.post("/openai/deployments/no/such/chat/completions", body)
        assert (told.status, told.json["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("path", ["/inference/x/openai/v1/models", "/v1beta/models/openai/deployments/x/embeddings"])
def test_a_path_is_looked_at_where_it_begins(path: str) -> None:
    """Looked for anywhere, 16 KB of repetitions held a worker for 200 ms, and another path was asked for than came."""
    assert as_openais(path) == path
