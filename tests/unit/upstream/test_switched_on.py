"""Providers that switch on by their usual key, and whose prices theirs are."""

from pathlib import Path

import pytest

from gateway import price_table
from gateway.providers import known, load
from gateway.settings import WELL_KNOWN, Settings
from gateway.settings import load as load_settings
from gateway.tasks import Tasks
from gateway.transport.direct import DirectTransport


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.chdir(tmp_path)
    for variable, _ in WELL_KNOWN.values():
        monkeypatch.delenv(variable, raising=False)
    for variable in ("AZURE_OPENAI_ENDPOINT", "OPENAI_API_VERSION", "AWS_REGION"):
        monkeypatch.delenv(variable, raising=False)
    return monkeypatch


def settings() -> Settings:
    return load_settings()


@pytest.mark.parametrize("name", sorted(set(WELL_KNOWN)))
def test_a_key_in_the_environment_is_enough(name: str, bare: pytest.MonkeyPatch) -> None:
    """The shortest way in: set the key the SDK of that service wants anyway, and its models answer."""
    bare.setenv(WELL_KNOWN[name][0], "a-key")
    bare.setenv("AZURE_OPENAI_ENDPOINT", "https://mine.openai.azure.com/")
    bare.setenv("AWS_REGION", "eu-central-1")
    chosen = settings().providers
    assert set(chosen) == {name}
    assert chosen[name].kind == (name if name in known() else "openai")
    assert "$" not in (chosen[name].base_url or "")
    provider = load(chosen[name].kind).build(name, chosen[name], transport=DirectTransport(), tasks=Tasks())
    assert "a-key" not in repr(provider)


def test_azure_without_an_address_stays_off(bare: pytest.MonkeyPatch) -> None:
    """Its key alone says nothing about where it is; a start must not fail over it."""
    bare.setenv("AZURE_OPENAI_API_KEY", "a-key")
    assert settings().providers == {}
    bare.setenv("AZURE_OPENAI_ENDPOINT", "https://mine.openai.azure.com")
    bare.setenv("OPENAI_API_VERSION", "2025-01-01-preview")
    assert settings().providers["azure"].model_extra == {"api_version": "2025-01-01-preview"}


def test_a_provider_in_the_file_is_not_replaced(bare: pytest.MonkeyPatch) -> None:
    """What an operator wrote wins over what the environment suggests."""
    Path("nearhit.yaml").write_text("providers: {anthropic: {kind: openai, base_url: 'http://127.0.0.1:1/v1'}}\n")
    bare.setenv("ANTHROPIC_API_KEY", "a-key")
    assert settings().providers["anthropic"].kind == "openai"


@pytest.mark.parametrize(
    ("name", "base_url", "kind", "model", "found"),
    [
        ("anthropic", "https://api.anthropic.com/v1", "anthropic", "claude-haiku-4-5", "anthropic"),
        ("team-a", None, "anthropic", "claude-haiku-4-5", "anthropic"),
        ("team-a", None, "gemini", "gemini-2.5-pro", "google"),
        ("east", "https://models.example.com", "azure", "gpt-4o", "azure"),
        ("east", None, "bedrock", "amazon.nova-lite-v1:0", "aws"),
        ("team-a", None, "openai", "gpt-4o", "openai"),
        ("lab", "http://127.0.0.1:1/v1", "openai", "gpt-4o", None),
        ("lab", "https://models.example.com", "anthropic", "claude-haiku-4-5", None),
    ],
)
def test_prices_are_those_of_the_service_that_is_asked(
    name: str, base_url: str | None, kind: str, model: str, found: str | None
) -> None:
    """Another server that speaks the same language has prices of its own: a guess would be a wrong bill."""
    row = price_table.find(name, base_url, model, kind)
    assert (row[0].id if row else None) == found
