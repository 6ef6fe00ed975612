"""What people's published configurations of LiteLLM's proxy hold: each of these was lost, or became something else."""

from pathlib import Path
from typing import Any

import pytest

from gateway.cli.init import init
from gateway.config_check import problems
from gateway.moving import Moved, litellm
from gateway.settings import load


def _moved(*rows: tuple[str, dict[str, Any]], **parts: Any) -> Moved:
    """`rows`: names with their litellm_params."""
    return litellm.moved(
        {"model_list": [{"model_name": name, "litellm_params": given} for name, given in rows], **parts}
    )


def _told(found: Moved) -> str:
    return "\n".join(found.left)


def test_no_key_goes_to_another_host_than_it_was_written_for() -> None:
    """A key in plain text for a server of one's own became `${OPENAI_API_KEY}`: OpenAI's real one was sent there."""
    own = {"model": "openai/q", "api_base": "http://10.0.0.3:8000/v1", "api_key": "sk-very-secret"}
    found = _moved(("q", own), ("g", {"model": "openai/gpt-4o", "api_key": "sk-very-secret-2"}))
    providers = found.config["providers"]
    assert providers["openai"] == {"kind": "openai", "api_key": "${OPENAI_API_KEY}"}
    assert providers["openai-2"]["api_key"] == "${UPSTREAM_API_KEY}"
    assert "very-secret" not in found.written("config.yaml")
    without = _moved(("q", {"model": "openai/q", "api_base": "https://llm.example/v1"}))
    assert without.config["providers"]["openai"]["api_key"] == "none"
    assert "llm.example gets no key" in _told(without)


def test_a_login_in_an_address_is_not_copied() -> None:
    """It stood in the file that was written, which `config check` refused without saying where."""
    given = {"model": "openai/q", "api_base": "https://ann:very-secret@llm.example/v1", "api_key": "os.environ/K"}
    found = _moved(("q", given))
    assert found.config["providers"]["openai"]["base_url"] == "https://llm.example/v1"
    assert "the user name and password in the address of llm.example" in _told(found)
    assert "very-secret" not in found.written("config.yaml")


def test_openai_is_openai_wherever_it_stands_in_the_file() -> None:
    """The first address of one's own took the name: `openai/gpt-4o` led to a machine under the desk."""
    found = _moved(
        ("a", {"model": "openai/q", "api_base": "http://127.0.0.1:8000/v1", "api_key": "none"}),
        ("b", {"model": "openai/gpt-4o", "api_key": "os.environ/OPENAI_API_KEY"}),
    )
    assert "base_url" not in found.config["providers"]["openai"]
    assert found.config["models"] == {"a": {"route": ["openai-2/q"]}, "b": {"route": ["openai/gpt-4o"]}}


@pytest.mark.parametrize(
    ("name", "given", "provider", "settings", "said"),
    [
        ("openai/*", {"model": "openai/*", "api_key": "os.environ/MY_KEY"}, "openai", {"api_key": "${MY_KEY}"}, ""),
        (
            "lab/*",
            {"model": "openai/*", "api_base": "http://127.0.0.1:8000/v1", "api_key": "none"},
            "lab",
            {"base_url": "http://127.0.0.1:8000/v1", "api_key": "none"},
            "",
        ),
        (
            "*",
            {"model": "openai/*", "api_key": "os.environ/K"},
            "openai",
            {"api_key": "${K}"},
            "ask for `openai/<model>`",
        ),
        (
            "*",
            {"model": "groq/a", "api_key": "os.environ/K"},
            "groq",
            {"api_key": "${K}"},
            "all names led to one model; ask for `groq/a`",
        ),
        ("ollama_chat/*", {"model": "ollama_chat/*"}, "ollama_chat", {"kind": "ollama"}, ""),
        ("ollama/*", {"model": "ollama/*"}, "ollama", {"kind": "ollama", "api_key": "none"}, ""),
        (
            "azure/*",
            {"model": "azure/*"},
            "azure",
            {"base_url": "${AZURE_API_BASE}", "api_key": "${AZURE_API_KEY}"},
            "",
        ),
        ("openai/*", {"model": "openai/*"}, "", {}, "`openai/<model>` always works with ${OPENAI_API_KEY}"),
        ("*", {"model": "*"}, "", {}, "a name without a provider needs a model of its own"),
        ("tei/*", {"model": "huggingface/*"}, "", {}, "is not known here; write a provider"),
    ],
)
def test_names_with_a_star_keep_their_provider(
    name: str, given: dict[str, Any], provider: str, settings: dict[str, Any], said: str
) -> None:
    """They were "not needed", and with them went the only mention of a key or of a server of one's own."""
    found = _moved((name, given))
    providers = found.config.get("providers", {})
    assert list(providers) == ([provider] if provider else [])
    assert not provider or settings.items() <= providers[provider].items()
    assert said in _told(found)
    assert bool(said) == bool(found.left)


def test_what_a_row_with_a_star_says_besides_is_named() -> None:
    """Its limits, its timeouts and what describes its models were passed over in silence."""
    given = {"model": "openai/*", "rpm": 5, "timeout": 9, "temperature": 0}
    found = litellm.moved(
        {"model_list": [{"model_name": "openai/*", "litellm_params": given, "model_info": {"access_groups": ["a"]}}]}
    )
    for said in ("rpm of names with *", "its timeouts", "litellm_params temperature", "model_info access_groups"):
        assert said in _told(found)


@pytest.mark.parametrize(
    ("model", "mode", "said"),
    [
        ("openai/r", "rerank", True),
        ("groq/whisper-large-v3", "audio_transcription", True),
        ("azure/whisper", "audio_transcription", False),
        ("groq/a", "chat", False),
    ],
)
def test_a_model_for_an_endpoint_that_is_not_here_is_named(model: str, mode: str, said: bool) -> None:
    """It was moved like any other, and its first request found no endpoint."""
    row = {"model_name": "m", "litellm_params": {"model": model}, "model_info": {"mode": mode}}
    found = litellm.moved({"model_list": [row]})
    assert (f"its mode {mode}; there is no endpoint for that here" in _told(found)) is said


def test_default_fallbacks_of_names_with_a_star_are_named() -> None:
    """Such a name has no route here that could end with them; nothing was said of it."""
    found = _moved(
        ("openai/*", {"model": "openai/*", "api_key": "os.environ/K"}),
        ("b", {"model": "groq/b"}),
        litellm_settings={"default_fallbacks": ["b"]},
    )
    assert "default_fallbacks: names asked for as `provider/model` have none" in _told(found)


@pytest.mark.parametrize(
    ("given", "provider", "target"),
    [
        (
            {"model": "azure/o_series/my-o3", "api_base": "https://r.openai.azure.com", "api_key": "os.environ/K"},
            {"base_url": "https://r.openai.azure.com", "api_key": "${K}"},
            "azure/my-o3",
        ),
        (
            {"model": "azure/gpt-4o", "api_version": "preview"},
            {"base_url": "${AZURE_API_BASE}", "api_key": "${AZURE_API_KEY}", "api_version": "v1"},
            "azure/gpt-4o",
        ),
        (
            {"model": "anthropic/claude-haiku-4-5", "api_base": "https://proxy.example", "api_key": "os.environ/K"},
            {"base_url": "https://proxy.example/v1"},
            "anthropic/claude-haiku-4-5",
        ),
        (
            {"model": "anthropic/claude-haiku-4-5", "api_base": "os.environ/BASE", "api_key": "${KEY:-none}"},
            {"base_url": "${BASE}/v1", "api_key": "${KEY}"},
            "anthropic/claude-haiku-4-5",
        ),
        (
            {"model": "perplexity/sonar", "api_key": "os.environ/PPLX"},
            {"kind": "openai", "base_url": "https://api.perplexity.ai", "api_key": "${PPLX}"},
            "perplexity/sonar",
        ),
        (
            {"model": "litellm_proxy/fast"},
            {"base_url": "${LITELLM_PROXY_API_BASE}", "api_key": "${LITELLM_PROXY_API_KEY}"},
            "litellm_proxy/fast",
        ),
        (
            {"model": "bedrock/arn:aws:bedrock:eu-west-1:1:inference-profile/x"},
            {"region": "eu-west-1"},
            "bedrock/arn:aws:bedrock:eu-west-1:1:inference-profile/x",
        ),
        (
            {"model": "openai/x/y", "api_base": "https://openrouter.ai/api/v1", "api_key": "os.environ/K"},
            {"kind": "openrouter"},
            "openrouter/x/y",
        ),
        ({"model": "gemini-2.5-pro", "api_key": "os.environ/G"}, {"kind": "gemini"}, "gemini/gemini-2.5-pro"),
    ],
)
def test_a_deployment_leads_where_it_led(given: dict[str, Any], provider: dict[str, Any], target: str) -> None:
    """LiteLLM completes addresses, names and keys by itself; taken word for word they lead nowhere, or astray."""
    found = _moved(("m", given)).config
    assert found["models"]["m"]["route"] == [target]
    assert provider.items() <= found["providers"][target.partition("/")[0]].items()


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("vertex_ai/gemini-2.5-pro", "Vertex is not spoken here"),
        ("gemini-2.5-pro", "Vertex is not spoken here"),
        ("command-r", "the provider of 'command-r' is not known here; write a provider"),
        ("os.environ/MODEL", "its model stands in the environment (${MODEL})"),
    ],
)
def test_a_model_that_leads_nowhere_here_is_told_with_what_to_do(model: str, said: str) -> None:
    """Google's and Cohere's were taken for OpenAI's; of the rest only that they are not known was said."""
    found = _moved(("m", {"model": model}))
    assert "models" not in found.config
    assert said in _told(found)


def test_deployments_that_stand_by_do() -> None:
    """`order` was named as lost and the spare deployment got its share of all requests."""
    rows = [("m", {"model": f"openai/{name}", "order": order}) for name, order in (("spare", 2), ("a", 1), ("b", 1))]
    found = _moved(*rows)
    assert found.config["models"]["m"]["route"] == ["openai/a", "openai/b", {"to": "openai/spare", "weight": 0}]
    assert not found.left


def test_credentials_of_the_list_are_those_of_the_rows_that_name_them() -> None:
    """Address and key were dropped: the requests went to the service's own address with another key."""
    values = {"api_base": "https://r.openai.azure.com", "api_key": "os.environ/K"}
    found = _moved(
        ("m", {"model": "azure/d", "litellm_credential_name": "c"}),
        credential_list=[{"credential_name": "c", "credential_values": values}],
    )
    assert found.config["providers"]["azure"] == {"kind": "azure", "base_url": values["api_base"], "api_key": "${K}"}
    assert not found.left


@pytest.mark.parametrize(
    ("params", "address", "said"),
    [
        ({"host": "h", "password": "os.environ/PW", "db": 2}, "redis://:${PW}@h:6379/2", "expected as ${PW}"),
        ({"host": "h", "password": "very-secret"}, "redis://:${REDIS_PASSWORD}@h:6379/0", "${REDIS_PASSWORD}"),
        ({"url": "redis://:very-secret@h:6379"}, "${REDIS_URL}", "${REDIS_URL}"),
        ({}, None, "no address of Redis is written"),
    ],
)
def test_a_redis_is_reached_as_before_and_its_password_not_copied(
    params: dict[str, Any], address: str | None, said: str
) -> None:
    """A password in an address was copied into the file, one beside it dropped; of no address nothing was said."""
    found = _moved(
        ("m", {"model": "openai/a"}), litellm_settings={"cache": True, "cache_params": {"type": "redis", **params}}
    )
    assert found.config.get("redis") == address
    assert said in _told(found)
    assert "very-secret" not in found.written("config.yaml")


def test_everything_that_is_left_behind_has_a_reason() -> None:
    """`general_settings: alerting, custom_auth` left people to find out what that means for them."""
    found = _moved(
        (
            "m",
            {"model": "openai/a", "max_tokens": 5, "temperature": 0, "aws_role_name": "r", "extra_headers": {"a": "b"}},
        ),
        general_settings={"alerting": ["slack"], "custom_auth": "a.b", "alerting_threshold": 9},
        environment_variables={"OPENAI_API_KEY": "very-secret"},
        include=["more.yaml"],
        guardrails=[],
    )
    for said in (
        "litellm_params max_tokens, temperature: nothing is added to requests here",
        "litellm_params aws_role_name: no role or profile is assumed here",
        "litellm_params extra_headers: write them under providers.openai.headers",
        "general_settings: alerting, alerting_threshold: set `alerts`",
        "general_settings: custom_auth: who asks is known by a key",
        "environment_variables: set them in the environment of nearhit: OPENAI_API_KEY",
        "include: put the models of more.yaml into this file",
        "guardrails: there are no guardrails here",
    ):
        assert said in _told(found)
    assert "very-secret" not in found.written("config.yaml")
    with pytest.raises(ValueError, match=r"it includes more\.yaml"):
        _ = litellm.moved({"include": ["more.yaml"]})


def test_models_without_a_list_price_are_named_before_they_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every request to a server of one's own was answered 402 after the move; LiteLLM takes it for free."""
    source, path = tmp_path / "config.yaml", tmp_path / "nearhit.yaml"
    source.write_text(
        "model_list:\n"
        "- {model_name: q, litellm_params: {model: hosted_vllm/q, api_base: 'http://127.0.0.1:8000/v1'}}\n"
        "- {model_name: g, litellm_params: {model: openai/gpt-4o}}\n"
        "- {model_name: f, litellm_params: {model: 'openrouter/qwen/qwen3-coder:free'}}\n"
        "- {model_name: 'lab/*', litellm_params: {model: 'openai/*', api_base: 'http://127.0.0.1:8001/v1'}}\n"
        "- model_name: p\n"
        "  litellm_params: {model: ollama/p, input_cost_per_token: 0, output_cost_per_token: 0}\n"
    )
    init(source, path=path, peer="litellm")
    told = capsys.readouterr().out
    said = "no list price is known of lab/<model>, openrouter/qwen/qwen3-coder:free, vllm/q: until one is set (nearhit "
    assert said in told
    assert told.count("ollama/p") == 1
    for name in ("OPENAI_API_KEY", "OPENROUTER_API_KEY"):
        monkeypatch.setenv(name, "k")
    assert problems(load(path)) == []


def test_an_address_that_is_none_is_told_with_its_provider(tmp_path: Path) -> None:
    """Of fifteen providers one had a wrong address, and `config check` did not say which."""
    path = tmp_path / "nearhit.yaml"
    path.write_text("providers:\n  a: {kind: vllm}\n  b: {kind: vllm, base_url: 'my-host/v1'}\n")
    assert problems(load(path)) == ["providers.b: expected an address like https://host/v1, without a user name in it"]
