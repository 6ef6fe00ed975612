"""What another gateway's configuration says is done here as well or told to be lost, never taken for something else."""

import json
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from gateway.cli.init import Fresh, init
from gateway.cli.wrong import Wrong
from gateway.config_check import problems
from gateway.moving import Moved, helicone, litellm, portkey
from gateway.settings import load


def _litellm(*rows: dict[str, Any], **parts: Any) -> Moved:
    """`rows`: litellm_params of the model `m`, with `info` for model_info."""
    told = [{"model_name": "m", "model_info": row.pop("info", {}), "litellm_params": row} for row in map(dict, rows)]
    return litellm.moved({"model_list": told, **parts})


def _loads(found: Moved, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written is a configuration that a gateway starts with."""
    for name in ("OPENAI_API_KEY", "UPSTREAM_API_KEY", "AZURE_OPENAI_API_KEY"):
        monkeypatch.setenv(name, "k")
    path = folder / "nearhit.yaml"
    path.write_text(found.written("theirs"))
    assert problems(load(path)) == []


def test_a_place_that_is_written_twice_has_the_share_of_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that was written for two rows of one place was refused: "a route names each target once"."""
    found = _litellm(
        {"model": "openai/a", "weight": 9}, {"model": "openai/a", "weight": 1}, {"model": "openai/b", "weight": 5}
    )
    assert found.config["models"]["m"]["route"] == [{"to": "openai/a", "weight": 10}, {"to": "openai/b", "weight": 5}]
    _loads(found, tmp_path, monkeypatch)
    one: dict[str, Any] = {"provider": "openai", "weight": 0.5, "override_params": {"model": "a"}}
    found = portkey.moved(json.dumps({"targets": [one, {**one, "weight": 0.2}]}))
    assert found.config["models"]["default"]["route"] == [{"to": "openai/a", "weight": 0.5}]
    _loads(found, tmp_path, monkeypatch)


def test_a_key_for_a_server_of_ones_own_without_tls_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was written in a form that `config check` refuses; it crossed the network so before, which is said."""
    found = _litellm(
        {"model": "openai/q", "api_base": "http://10.0.0.3:8000/v1", "api_key": "os.environ/OPENAI_API_KEY"}
    )
    assert any("unencrypted" in sentence for sentence in found.left)
    _loads(found, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("rows", "budget", "said"),
    [
        ([{"rpm": 60}, {"rpm": 40}], {"rpm": 100}, ""),
        ([{"rpm": 60}, {}], None, "rpm is no number in each of its deployments"),
        ([{"tpm": 60}, {"tpm": "os.environ/TPM"}], None, "tpm is no number in each of its deployments"),
        (
            [{"max_budget": 10, "budget_duration": "1d"}, {"max_budget": 5, "budget_duration": "1d"}],
            {"limit_usd": "15", "window": "day"},
            "",
        ),
        ([{"max_budget": 10, "budget_duration": "1d"}, {}], None, "max_budget is no number in each of its deployments"),
    ],
)
def test_limits_of_deployments_are_the_models_only_where_all_have_one(
    rows: list[dict[str, Any]], budget: dict[str, Any] | None, said: str
) -> None:
    """One limited deployment of two limited the whole model to it: the other's requests became 429s."""
    found = _litellm(*({"model": f"openai/{number}", **row} for number, row in enumerate(rows)))
    assert found.config.get("budgets") == (None if budget is None else [{"scope": "model:m", **budget}])
    assert said in "\n".join(found.left)


def test_a_budget_without_a_duration_is_never_renewed() -> None:
    """It became a monthly one: twelve times the money in a year."""
    found = _litellm({"model": "openai/a"}, litellm_settings={"max_budget": 50})
    assert found.config["budgets"] == [{"scope": "org", "limit_usd": "50", "window": "total"}]


def test_a_shuffle_without_weights_goes_by_the_limits() -> None:
    """That is how simple-shuffle shares requests where rpm or tpm are all that is written."""
    found = _litellm({"model": "openai/a", "rpm": 900}, {"model": "openai/b", "rpm": 100})
    shares = [{"to": "openai/a", "weight": 900}, {"to": "openai/b", "weight": 100}]
    assert found.config["models"]["m"]["route"] == shares
    found = _litellm(
        {"model": "openai/a", "rpm": 9},
        {"model": "openai/b", "rpm": 1},
        router_settings={"routing_strategy": "least-busy"},
    )
    assert found.config["models"]["m"]["route"] == ["openai/a", "openai/b"]


def test_fallbacks_of_aliases_and_of_everybody_are_moved_as_they_hold() -> None:
    """Those to an alias were said to lead nowhere, `*` was lost, and default ones came behind a model's own."""
    rows = [{"model_name": name, "litellm_params": {"model": f"openai/{name}"}} for name in ("a", "b", "c")]
    router = {"model_group_alias": {"z": {"model": "b", "hidden": True}}, "fallbacks": [{"a": ["z"]}, {"*": ["c"]}]}
    found = litellm.moved({"model_list": rows, "router_settings": router})
    routes = {name: one["route"] for name, one in found.config["models"].items()}
    assert routes["a"] == ["openai/a", "openai/b"]
    assert routes["b"] == routes["z"] == ["openai/b", "openai/c"]
    assert not found.left
    assert "*id" not in found.written("config.yaml")
    assert yaml.safe_load(found.written("config.yaml"))["models"]["z"]["route"] == ["openai/b", "openai/c"]


@pytest.mark.parametrize(
    ("row", "parts", "said"),
    [
        ({"model": "openai/a", "info": {"max_input_tokens": 9, "id": "x"}}, {}, "model_info max_input_tokens"),
        (
            {"model": "openai/a", "info": {"input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06}},
            {},
            "nearhit prices set openai/a 1 2",
        ),
        ({"model": "gemini-2.5-pro"}, {}, "names no provider"),
        (
            {"model": "openai/a"},
            {"cache": True, "cache_params": {"type": "redis", "host": "h", "namespace": "n"}},
            "cache_params: namespace",
        ),
        (
            {"model": "openai/a"},
            {"cache": True, "cache_params": {"type": "local", "mode": "default_off"}},
            "default_off",
        ),
    ],
)
def test_what_litellm_says_besides_is_named(row: dict[str, Any], parts: dict[str, Any], said: str) -> None:
    """A window, a price or a cache that is off until asked for vanished, or turned into its opposite."""
    found = _litellm(row, litellm_settings=parts)
    assert said in "\n".join(found.left)
    if said == "default_off":
        assert found.config["cache"]["mode"] == "off"


def test_a_redis_of_a_cache_is_found_however_it_is_written() -> None:
    """By its address, or with TLS: the cache would have stood in a file of each host."""
    for params, address in (
        ({"type": "redis", "url": "os.environ/REDIS_URL"}, "${REDIS_URL}"),
        ({"type": "redis", "host": "h", "port": 1, "ssl": True}, "rediss://h:1/0"),
    ):
        found = _litellm({"model": "openai/a"}, litellm_settings={"cache": True, "cache_params": params})
        assert found.config["redis"] == address


PORTKEY: dict[str, Any] = {
    "strategy": {"mode": "fallback", "on_status_codes": [429]},
    "override_params": {"temperature": 0},
    "targets": [
        {
            "provider": "azure-openai",
            "api_key": "very-secret-1",
            "resource_name": "res",
            "deployment_id": "eu",
            "api_version": "2024-10-21",
            "override_params": {"model": "gpt-4o", "max_tokens": 5},
            "cache": {"mode": "simple"},
        },
        {"provider": "openai", "custom_host": "https://lab.example/v1", "override_params": {"model": "q"}},
        {"provider": "openai", "api_key": "very-secret-2", "override_params": {"model": "a"}},
        {"provider": "openai", "api_key": "very-secret-3", "override_params": {"model": "a"}},
        {"override_params": {"model": "@team-slug/b"}},
    ],
}


def test_portkeys_targets_keep_their_accounts_and_their_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenAI's key was sent to the host of somebody else; two accounts became one; Azure's address was lost."""
    monkeypatch.setenv("OPENAI_API_KEY_2", "k")
    found = portkey.moved(json.dumps(PORTKEY))
    assert "very-secret" not in found.written("config.json")
    providers = found.config["providers"]
    assert providers["azure"] == {
        "kind": "azure",
        "base_url": "https://res.openai.azure.com",
        "api_key": "${AZURE_OPENAI_API_KEY}",
        "api_version": "2024-10-21",
        "deployments": {"gpt-4o": "eu"},
    }
    assert providers["openai"]["api_key"] == "${UPSTREAM_API_KEY}"
    assert [providers[name]["api_key"] for name in ("openai-2", "openai-3")] == [
        "${OPENAI_API_KEY}",
        "${OPENAI_API_KEY_2}",
    ]
    told = "\n".join(found.left)
    for what in ("on_status_codes", "override_params: ", "override_params.max_tokens, cache", "'team-slug'"):
        assert what in told
    _loads(found, tmp_path, monkeypatch)


def test_targets_without_a_model_are_providers_all_the_same() -> None:
    """Most configurations leave the model to the request: nothing of such a one was moved at all."""
    found = portkey.moved(
        '{"strategy": {"mode": "loadbalance"}, "targets": [{"provider": "openai"}, {"provider": "vllm"}]}'
    )
    assert set(found.config["providers"]) == {"openai", "vllm"}
    assert any(sentence.startswith("strategy.mode loadbalance") for sentence in found.left)
    with pytest.raises(ValueError, match="known here"):
        portkey.moved('{"targets": [{"provider": "vertex-ai"}]}')


@pytest.mark.parametrize(
    ("config", "cache", "said"),
    [
        ({"virtual_key": "openai-x", "cache": {"mode": "simple"}}, "exact", "target with virtual key 'openai-x'"),
        ({"cache": {"mode": "semantic"}, "retry": {"attempts": 3}}, "semantic", "retry: retries are bounded"),
    ],
)
def test_a_portkey_configuration_without_targets_is_one(config: dict[str, Any], cache: str, said: str) -> None:
    """Many hold a cache and retries alone, or a virtual key beside them: "is this a Portkey configuration?"."""
    found = portkey.moved(json.dumps(config))
    assert found.config == {"cache": {"mode": cache}}
    assert said in "\n".join(found.left)


def test_an_ollama_behind_portkey_is_asked_under_v1() -> None:
    """Portkey adds it to the host by itself; the address that was written answered 404."""
    target = {"provider": "ollama", "custom_host": "http://127.0.0.1:11434", "override_params": {"model": "a"}}
    assert portkey.moved(json.dumps(target)).config["providers"]["ollama"]["base_url"] == "http://127.0.0.1:11434/v1"


def test_helicones_headers_that_work_here_are_not_said_to_be_lost() -> None:
    """Properties are tags here; the address of a server like OpenAI's was dropped, and OpenAI asked instead."""
    found = helicone.moved("Helicone-Property-Feature: faq\nHelicone-OpenAI-Api-Base: https://own.example/v1\n")
    assert "helicone-property-feature: goes on working as a header" in found.left
    assert found.config["providers"]["openai"]["base_url"] == "https://own.example/v1"


@pytest.mark.parametrize(
    "config",
    [
        {"model_list": ["gpt"]},
        {"model_list": [{"model_name": "m"}], "router_settings": {"fallbacks": ["m"]}},
        {"targets": ["openai"]},
        {"targets": [{"targets": "openai"}]},
    ],
)
def test_a_file_of_another_form_is_told_and_no_traceback(config: dict[str, Any]) -> None:
    """`init` printed the calls that led to an AttributeError."""
    with pytest.raises(ValueError, match="mappings"):
        _ = litellm.moved(config) if "model_list" in config else portkey.moved(json.dumps(config))


@pytest.mark.parametrize(
    ("peer", "text"),
    [
        ("litellm", "model_list:\n- api_key: sk-very-secret: bad\n"),
        ("portkey", '{"targets": [{"provider": "openai", "api_key": "sk-very-secret" "x"}]}'),
    ],
)
def test_a_file_that_cannot_be_read_is_not_shown(
    peer: Literal["litellm", "portkey"], text: str, tmp_path: Path
) -> None:
    """The line that is no YAML was printed, and what is written wrongly may well be a key."""
    (source := tmp_path / "theirs").write_text(text)
    with pytest.raises(Wrong, match="is no YAML") as wrong:
        init(source, path=tmp_path / "nearhit.yaml", peer=peer)
    assert "secret" not in str(wrong.value)


def test_a_new_file_is_one_whatever_the_model_is_called(tmp_path: Path) -> None:
    """A quote in a name made it none, and a folder was "there already; --force overwrites it"."""
    path = tmp_path / "nearhit.yaml"
    init(path=path, fresh=Fresh(upstream="http://127.0.0.1:8000/v1", model='a"b\\c'))
    assert load(path).models["chat"].route[0].to == 'lab/a"b\\c'
    for nowhere in (tmp_path, tmp_path / "none" / "x.yaml"):
        with pytest.raises(Wrong, match="is no place for a file"):
            init(path=nowhere, force=True)


def test_fallbacks_written_as_one_mapping_and_a_budget_from_the_environment_are_moved() -> None:
    """Both are easily written so; the budget was refused later as no amount of money."""
    rows = [{"model_name": name, "litellm_params": {"model": f"openai/{name}"}} for name in "ab"]
    parts: dict[str, Any] = {
        "router_settings": {"fallbacks": {"a": ["b"]}},
        "litellm_settings": {"max_budget": "os.environ/MOST"},
    }
    found = litellm.moved({"model_list": [*rows, {"model_name": "c"}], **parts})
    assert found.config["models"]["a"]["route"] == ["openai/a", "openai/b"]
    assert found.config["budgets"][0]["limit_usd"] == "${MOST}"
    assert found.left == ["model_list 'c': its litellm_params name no model"]
