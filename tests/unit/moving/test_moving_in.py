"""Configurations of other gateways become ours, and what cannot is named."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli.init import init
from gateway.cli.wrong import Wrong
from gateway.moving import helicone, litellm, portkey
from gateway.settings import load

LITELLM = """
model_list:
  - model_name: gpt
    litellm_params:
      {model: azure/gpt-4o-eu, api_base: os.environ/AZURE_EU, api_key: os.environ/EU_KEY, api_version: 2024-10-21,
       rpm: 60}
  - model_name: gpt
    litellm_params:
      {model: azure/gpt-4o-us, api_base: "https://us.openai.azure.com", api_key: os.environ/US_KEY, rpm: 40, weight: 2}
  - model_name: small
    litellm_params: {model: openai/gpt-5-mini, api_key: os.environ/OPENAI_KEY, max_budget: 5, budget_duration: 7d}
  - model_name: home
    litellm_params: {model: ollama/llama3, api_base: "http://127.0.0.1:11434"}
  - model_name: lab
    litellm_params: {model: hosted_vllm/qwen, api_base: "http://127.0.0.1:8000/v1", extra_headers: {a: b}}
  - model_name: odd
    litellm_params: {model: cohere/command-r}
  - model_name: "openai/*"
    litellm_params: {model: "openai/*"}
router_settings:
  routing_strategy: simple-shuffle
  num_retries: 3
  model_group_alias: {gpt-4: gpt}
  fallbacks: [{gpt: [small]}]
litellm_settings:
  cache: true
  cache_params: {type: redis-semantic, host: os.environ/REDIS, port: 6379, ttl: 600, similarity_threshold: 0.8}
  content_policy_fallbacks: [{small: [home]}]
  max_budget: 100
  budget_duration: 30d
  success_callback: [langfuse]
general_settings: {master_key: os.environ/MASTER, database_url: os.environ/DB}
"""
SECRETS = {"AZURE_EU": "https://eu.openai.azure.com", "EU_KEY": "e", "US_KEY": "u", "OPENAI_KEY": "o", "REDIS": "r"}


@pytest.fixture
def moved_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in a folder of its own, with the environment it refers to."""
    for name, value in {**SECRETS, "DB": "postgresql://u@h/n"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_litellm_configuration_loads_and_does_the_same(moved_in: Path) -> None:
    """Deployments, shares, fallbacks, aliases, budgets, cache and references to the environment survive the move."""
    source, path = moved_in / "config.yaml", moved_in / "nearhit.yaml"
    source.write_text(LITELLM)
    init(source, path=path, peer="litellm")
    found = load(path)
    gpt = found.models["gpt"]
    assert [(entry.to, entry.weight) for entry in gpt.route] == [
        ("azure/gpt-4o-eu", 1.0),
        ("azure-2/gpt-4o-us", 2.0),
        ("openai/gpt-5-mini", 0.0),
    ]
    assert found.database is None
    assert gpt.strategy == "weighted"
    assert found.models["gpt-4"].route == gpt.route
    assert found.models["small"].fallback_on == ["content_filter"]
    assert [entry.to for entry in found.models["small"].route] == ["openai/gpt-5-mini", "ollama/llama3"]
    assert found.providers["azure"].base_url == "https://eu.openai.azure.com"
    assert found.providers["azure"].model_extra == {"api_version": "2024-10-21"}
    assert found.providers["ollama"].base_url == "http://127.0.0.1:11434/v1"
    budgets = {budget.scope: budget for budget in found.budgets}
    assert (budgets["org"].limit_usd, budgets["org"].window) == ("100", "month")
    assert (budgets["model:small"].limit_usd, budgets["model:small"].window) == ("5", "week")
    assert budgets["model:gpt"].rpm == 100
    assert (found.cache.mode, found.cache.ttl) == ("semantic", 600)
    assert found.redis == "redis://r:6379/0"


def test_what_cannot_be_moved_is_named_in_the_file_and_on_the_screen(
    moved_in: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A setting that silently vanished would be found out in production."""
    source, path = moved_in / "config.yaml", moved_in / "nearhit.yaml"
    source.write_text(LITELLM)
    init(source, path=path, peer="litellm")
    told = capsys.readouterr().out
    for what in ("cohere/command-r", "openai/*", "extra_headers", "num_retries", "similarity_threshold", "master_key"):
        assert what in told
        assert what in path.read_text()
    assert "success_callback" in told
    for secret in ("EU_KEY", "OPENAI_KEY"):
        assert "${" + secret + "}" in path.read_text()


def test_a_litellm_key_in_plain_text_is_referred_to_and_never_copied() -> None:
    """A file that is meant to be committed would hold it; two accounts stay two."""
    rows: list[dict[str, Any]] = [
        {"model": "openai/a", "api_key": "sk-very-secret-1"},
        {"model": "openai/b", "api_key": "sk-very-secret-2", "timeout": 5},
        {"model": "openai/c", "api_key": "os.environ/OPENAI_API_KEY_2"},
        {"model": "openai/d", "api_key": "sk-very-secret-1"},
        {"model": "hosted_vllm/e", "api_base": "http://h/v1", "api_key": "none"},
        {"model": "bedrock/f", "aws_access_key_id": "AKIASECRET", "aws_secret_access_key": "very-secret"},
    ]
    config = {"model_list": [{"model_name": row["model"][-1], "litellm_params": row} for row in rows]}
    found = litellm.moved({**config, "litellm_settings": {"request_timeout": 9}})
    written = found.written("config.yaml")
    assert not any(secret in written for secret in ("very-secret", "AKIASECRET"))
    keys = {name: one["api_key"] for name, one in found.config["providers"].items()}
    assert keys == {
        "openai": "${OPENAI_API_KEY}",
        "openai-2": "${OPENAI_API_KEY_3}",
        "openai-3": "${OPENAI_API_KEY_2}",
        "vllm": "none",
        "bedrock": "${AWS_ACCESS_KEY_ID}:${AWS_SECRET_ACCESS_KEY}",
    }
    assert found.config["models"]["d"]["route"] == ["openai/d"]
    told = "\n".join(found.left)
    assert "api_key of 'openai/b': it stands there in plain text and is expected as ${OPENAI_API_KEY_3}" in told
    assert "model_list 'b': its timeouts; set providers.openai-2.first_chunk_timeout" in told
    assert "litellm_settings.request_timeout: set providers.<name>.first_chunk_timeout" in told


@pytest.mark.parametrize(
    ("model", "target", "region"),
    [
        ("bedrock/converse/us.amazon.nova-lite-v1:0", "bedrock/us.amazon.nova-lite-v1:0", "${AWS_REGION}"),
        ("bedrock/eu-west-1/amazon.nova-lite-v1:0", "bedrock/amazon.nova-lite-v1:0", "eu-west-1"),
        ("bedrock/invoke/us-gov-west-1/a.b", "bedrock/a.b", "us-gov-west-1"),
        ("openai/responses/gpt-5-codex", "openai/gpt-5-codex", None),
        ("openrouter/openai/gpt-5", "openrouter/openai/gpt-5", None),
    ],
)
def test_a_name_is_moved_without_the_way_that_litellm_writes_into_it(
    model: str, target: str, region: str | None
) -> None:
    """`converse/…` is no model of anybody's: a name that keeps it is refused by the first request."""
    found = litellm.moved({"model_list": [{"model_name": "m", "litellm_params": {"model": model}}]}).config
    assert found["models"]["m"]["route"] == [target]
    assert found["providers"][target.partition("/")[0]].get("region") == region


def test_who_stands_by_is_not_asked_because_it_is_quicker() -> None:
    """Fallbacks behind a route that goes by speed are another model: only where all of the route fail."""
    rows = [{"model_name": name, "litellm_params": {"model": f"openai/{name}-{n}"}} for name in "ab" for n in (1, 2)]
    router = {"routing_strategy": "latency-based-routing", "fallbacks": [{"a": ["b"]}]}
    found = litellm.moved({"model_list": rows, "router_settings": router}).config["models"]["a"]
    assert found["strategy"] == "fastest"
    stand_by = [{"to": "openai/b-1", "weight": 0}, {"to": "openai/b-2", "weight": 0}]
    assert found["route"] == ["openai/a-1", "openai/a-2", *stand_by]


def test_prices_are_found_for_deployments_and_named_for_servers_of_ones_own() -> None:
    """A model without a price is refused, so a move must not lose what it costs."""
    azure = {"model": "azure/eu-4o", "api_base": "https://x.openai.azure.com", "api_key": "os.environ/K"}
    own: dict[str, object] = {"model": "hosted_vllm/q", "api_base": "http://q/v1"}
    own |= {"input_cost_per_token": 1.5e-06, "output_cost_per_token": 2e-05}
    rows = [
        {"model_name": "a", "litellm_params": azure, "model_info": {"base_model": "azure/gpt-4o"}},
        {
            "model_name": "b",
            "litellm_params": {**azure, "model": "azure/us-4o"},
            "model_info": {"base_model": "gpt-4o"},
        },
        {"model_name": "c", "litellm_params": own},
    ]
    found = litellm.moved({"model_list": rows})
    assert found.config["models"]["a"]["route"] == ["azure/gpt-4o"]
    assert found.config["models"]["b"]["route"] == ["azure/us-4o"]
    assert found.config["providers"]["azure"]["deployments"] == {"gpt-4o": "eu-4o"}
    assert any("nearhit prices set vllm/q 1.5 20" in sentence for sentence in found.left)


@pytest.mark.parametrize(
    ("url", "provider"),
    [
        ("https://api.groq.com", {"groq": {"kind": "groq", "api_key": "${GROQ_API_KEY}"}}),
        (
            "https://llm.example/v1",
            {"openai": {"kind": "openai", "base_url": "https://llm.example/v1", "api_key": "${UPSTREAM_API_KEY}"}},
        ),
    ],
)
def test_whom_helicone_asks_is_asked_here(url: str, provider: dict[str, Any]) -> None:
    """Its gateway is told the target by a header; another one would get the requests, and their contents."""
    found = helicone.moved(f"Helicone-Cache-Enabled: true\nHelicone-Target-Url: {url}")
    assert found.config["providers"] == provider


@pytest.mark.parametrize(
    ("named", "strategy"),
    [("least-busy", "least_busy"), ("latency-based-routing", "fastest"), ("cost-based-routing", "cheapest")],
)
def test_strategies_have_counterparts(named: str, strategy: str) -> None:
    """Names differ, the order of requests must not."""
    rows = [{"model_name": "m", "litellm_params": {"model": f"openai/{name}"}} for name in ("a", "b")]
    found = litellm.moved({"model_list": rows, "router_settings": {"routing_strategy": named}})
    assert found.config["models"]["m"]["strategy"] == strategy


def test_a_portkey_configuration_becomes_a_model(moved_in: Path) -> None:
    """Weights and nested targets of a load balancer; secrets of theirs are referred to, never copied."""
    config: dict[str, Any] = {
        "strategy": {"mode": "loadbalance"},
        "targets": [
            {
                "provider": "openai",
                "api_key": "sk-very-secret",
                "weight": 0.7,
                "override_params": {"model": "gpt-5-mini"},
            },
            {
                "provider": "anthropic",
                "virtual_key": "vk-1",
                "weight": 0.3,
                "override_params": {"model": "claude-haiku-4-5"},
            },
        ],
        "cache": {"mode": "semantic", "max_age": 60},
        "retry": {"attempts": 5},
    }
    found = portkey.moved(json.dumps(config))
    written = found.written("config.json")
    assert "sk-very-secret" not in written
    assert yaml.safe_load(written)["models"]["default"]["strategy"] == "weighted"
    assert any("retry" in sentence for sentence in found.left)
    assert found.config["cache"] == {"mode": "semantic", "ttl": 60}
    del moved_in


PORTKEY_LINES = """
x-portkey-api-key: pk-very-secret
x-portkey-provider: openai
Authorization: Bearer sk-very-secret
x-portkey-trace-id: t-1
"""
PORTKEY_CODE = """
    "x-portkey-provider": "@anthropic",
    "x-portkey-virtual-key": "anthropic-prod",
    "x-portkey-metadata": "{\\"_user\\": \\"ann\\"}",
"""
CONFIG = (
    '{"cache": {"mode": "simple", "max_age": 60}, "provider": "groq", "api_key": "sk-very-secret", '
    '"override_params": {"model": "qwen/qwen3-32b"}}'
)
PORTKEY_CURL = f"""
curl https://api.portkey.ai/v1/chat/completions \\
  -H "x-portkey-api-key: pk-very-secret" \\
  -H 'x-portkey-config: {CONFIG}' \\
  -d '{{}}'
"""


@pytest.mark.parametrize(
    ("text", "providers", "left"),
    [
        (PORTKEY_LINES, {"openai": "openai"}, ["x-portkey-api-key", "x-portkey-trace-id", "`openai/<model>`"]),
        (PORTKEY_CODE, {"anthropic": "anthropic"}, ["anthropic-prod", "x-portkey-metadata: goes on working"]),
        (PORTKEY_CURL, {"groq": "groq"}, ["GROQ_API_KEY"]),
        ("x-portkey-virtual-key: vk-7", {}, ["virtual key 'vk-7'"]),
        ("x-portkey-config: pc-prod-1", {}, ["kept at Portkey"]),
    ],
)
def test_portkeys_headers_become_providers(
    moved_in: Path, monkeypatch: pytest.MonkeyPatch, text: str, providers: dict[str, str], left: list[str]
) -> None:
    """Most of its users set it up by headers alone: as lines, in code, behind curl. No secret among them is copied."""
    source, path = moved_in / "headers.txt", moved_in / "nearhit.yaml"
    source.write_text(text)
    for kind in providers.values():
        monkeypatch.setenv(f"{kind.upper()}_API_KEY", "k")
    init(source, path=path, peer="portkey")
    written = path.read_text()
    assert "very-secret" not in written
    assert {name: one.kind for name, one in load(path).providers.items()} == providers
    assert not [what for what in left if what not in written]
    if "groq" in providers:
        found = load(path)
        assert [entry.to for entry in found.models["default"].route] == ["groq/qwen/qwen3-32b"]
        assert (found.cache.mode, found.cache.ttl) == ("exact", 60)


def test_helicones_headers_become_settings() -> None:
    """Its limits and its cache were sent with every request; here they are written down once."""
    found = helicone.moved(
        'Helicone-Auth: "Bearer x"\nHelicone-Cache-Enabled: true\nCache-Control: max-age=3600\n'
        "Helicone-RateLimit-Policy: 5000;w=86400;u=cents\n"
    )
    assert found.config["cache"] == {"mode": "exact", "ttl": 3600}
    assert found.config["budgets"] == [{"scope": "org", "limit_usd": "50.00", "window": "day"}]


def test_a_file_of_another_kind_is_refused(moved_in: Path) -> None:
    """The wrong file should not become an empty configuration."""
    source = moved_in / "x.yaml"
    source.write_text("services: {}\n")
    for peer in ("litellm", "portkey", "helicone"):
        with pytest.raises(Wrong, match="cannot move"):
            init(source, path=moved_in / "y.yaml", peer=peer)
    with pytest.raises(Wrong, match="belong together"):
        init(source, path=moved_in / "y.yaml")
    assert not (moved_in / "y.yaml").exists()
