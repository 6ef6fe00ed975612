"""Azure's addresses: deployments, versions, its header. The language itself is tested with OpenAI's provider."""

from contextlib import aclosing
from typing import Any

import pytest
from msgspec import structs
from pydantic import SecretStr

from gateway.errors import NotFound, UpstreamRefused
from gateway.providers import Sending
from gateway.providers.azure import build
from gateway.settings import ProviderSettings
from gateway.tasks import Tasks
from gateway.transport.direct import DirectTransport
from tests.unit.upstream.raw_upstream import fixed, raw_upstream, response

SECRET = "azure-secret-1"
WHOLE = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}]}'


def settings(base: str | None, **extra: Any) -> ProviderSettings:
    return ProviderSettings(kind="azure", base_url=base, api_key=SecretStr(SECRET), **extra)


def sending(model: str) -> Sending:
    waits: dict[str, Any] = {"timeout": 5.0, "idle": 5.0}
    return Sending(id="a", operation="chat", model=model, body={"messages": []}, stream=False, tenant="t", **waits)


@pytest.mark.parametrize("suffix", ["", "/", "/openai", "/openai/v1"])
@pytest.mark.parametrize(
    ("extra", "path"),
    [
        ({}, "deployments/gpt-4o/chat/completions?api-version=2024-10-21"),
        (
            {"api_version": "2025-04-01-preview"},
            "deployments/gpt-4o/chat/completions?api-version=2025-04-01-preview",
        ),
        ({"deployments": {"gpt-4o": "mine"}}, "deployments/mine/chat/completions?api-version=2024-10-21"),
        ({"api_version": "v1"}, "v1/chat/completions"),
    ],
)
async def test_addresses_are_made_of_deployment_and_version(suffix: str, extra: dict[str, Any], path: str) -> None:
    """People paste the address in every form the portal and the SDKs show."""
    transport = DirectTransport()
    async with raw_upstream(fixed(response("200 OK", WHOLE))) as up:
        provider = build(
            "up", settings(f"http://127.0.0.1:{up.port}{suffix}", **extra), transport=transport, tasks=Tasks()
        )
        async with aclosing(provider.send(sending("gpt-4o"))) as chunks:
            assert [chunk.final async for chunk in chunks] == [True]
        assert up.heard[0].line == f"POST /openai/{path} HTTP/1.1"
        assert up.heard[0].headers["api-key"] == SECRET
        assert "authorization" not in up.heard[0].headers
    await transport.close()


@pytest.mark.parametrize("model", ["..", "../x", "a/b", "a?b", "", "a%2e"])
async def test_a_model_name_never_leads_elsewhere(model: str) -> None:
    """The name comes from a client, and the request carries the operator's key."""
    provider = build("up", settings("http://127.0.0.1:1"), transport=DirectTransport(), tasks=Tasks())
    with pytest.raises(NotFound):
        await anext(provider.send(sending(model)))


async def test_a_filtered_prompt_keeps_its_code() -> None:
    """`content_filter` tells a client to ask differently; a retry elsewhere would only cost."""
    body = b'{"error":{"message":"filtered","type":null,"param":"prompt","code":"content_filter","status":400}}'
    transport = DirectTransport()
    async with raw_upstream(fixed(response("400 No", body))) as up:
        provider = build("up", settings(f"http://127.0.0.1:{up.port}"), transport=transport, tasks=Tasks())
        with pytest.raises(UpstreamRefused) as refusal:
            await anext(provider.send(sending("gpt-4o")))
    assert refusal.value.detail()["code"] == "content_filter"
    await transport.close()


@pytest.mark.parametrize(
    ("base", "extra"),
    [
        (None, {}),
        ("https://x.openai.azure.com", {"api_version": "latest"}),
        ("https://x.openai.azure.com", {"headers": {"Api-Key": "x"}}),
        ("http://x.openai.azure.com", {}),
        ("https://x.openai.azure.com", {"api_versoin": "v1"}),
    ],
)
def test_settings_that_cannot_work_are_refused(base: str | None, extra: dict[str, Any]) -> None:
    """A mistake in the file must be found at the start, not by the first client."""
    with pytest.raises(ValueError, match=r"providers\.up"):
        build("up", settings(base, **extra), transport=DirectTransport(), tasks=Tasks())


async def test_configured_names_are_the_list_of_models() -> None:
    """The service lists what could be deployed, which no request would find."""
    provider = build(
        "up",
        settings("https://x.openai.azure.com", deployments={"gpt-4o": "d"}),
        transport=DirectTransport(),
        tasks=Tasks(),
    )
    assert await provider.models() == ["gpt-4o"]


@pytest.mark.parametrize(
    ("version", "field"),
    [("v1", "max_completion_tokens"), ("2024-10-21", "max_completion_tokens"), ("2024-06-01", "max_tokens")],
)
def test_an_output_limit_has_the_name_that_the_version_knows(version: str, field: str) -> None:
    """Models that reason refuse `max_tokens`, also where the gateway put it in; older versions know no other name."""
    given = settings("https://east.openai.azure.com", api_version=version)
    provider = build("up", given, transport=DirectTransport(), tasks=Tasks())
    asked = structs.replace(sending("gpt-5"), body={"messages": [], "max_tokens": 7})
    sent = provider._prepared(asked)
    assert {name: value for name, value in sent.items() if name.startswith("max_")} == {field: 7}
