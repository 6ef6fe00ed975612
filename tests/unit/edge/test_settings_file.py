"""What stands in nearhit.yaml, as YAML reads it."""

import re
from pathlib import Path
from traceback import format_exception

import pytest
import yaml
from sqlalchemy.engine import make_url

from gateway.app import build
from gateway.config_check import problems
from gateway.setting_types import read_yaml
from gateway.settings import load
from gateway.settings_shown import every


def test_off_may_be_written_without_quotes(tmp_path: Path) -> None:
    """YAML takes a bare `off` for false, so the mode that our own messages name was refused as no mode at all."""
    config = tmp_path / "nearhit.yaml"
    config.write_text(
        "cache: {mode: off}\nledger: {durability: off}\nproviders: {lab: {kind: openai, api_key: none, batch: off}}\n"
    )
    found = load(config)
    assert (found.cache.mode, found.ledger.durability, found.providers["lab"].batch) == ("off", "off", "off")


@pytest.mark.parametrize("told", [None, ""])
def test_a_reference_to_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str | None) -> None:
    """Compose hands on a key that is not in .env as an empty one; with it every call went out without a credential."""
    monkeypatch.delenv("LAB_KEY", raising=False)
    if told is not None:
        monkeypatch.setenv("LAB_KEY", told)
    config = tmp_path / "nearhit.yaml"
    config.write_text('providers: {lab: {kind: openai, api_key: "${LAB_KEY}"}}\n')
    with pytest.raises(ValueError, match="LAB_KEY"):
        load(config)


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("server: {prot: 1}", "server.prot: there is no such setting"),
        ("cache: {ttl: soon}", "cache.ttl: a duration such as"),
        ("server: {max_body: 16MB}", "server.max_body: a size such as"),
        ("redis: localhost", "redis: expected redis://"),
        ("server: {workers: 2}", "server.workers > 1 needs database"),
        ("models: {m: {route: [a/b], hedge: soon}}", "models.m.hedge: a duration such as"),
        ("server: {drain_timeout: .inf}", "server.drain_timeout: Input should be a finite number"),
        ("engines: {local: {model: sim, hour_usd: '0,50'}}", "engines.local.hour_usd: not an amount in USD"),
        ("engines: {local: {model: sim, hour_usd: -1}}", "engines.local.hour_usd: an amount between 0 and"),
        ("engines: {local: {model: demo, memory: 512KiB}}", "engines.local.memory: at least 1MiB"),
    ],
)
def test_a_mistake_is_told_by_the_settings_name(tmp_path: Path, written: str, told: str) -> None:
    """Whoever mistypes a setting reads this first; it was the validator's own words, with a link to its manual."""
    config = tmp_path / "nearhit.yaml"
    config.write_text(written)
    with pytest.raises(ValueError, match=f"^the configuration is not valid:\n  {re.escape(told)}"):
        load(config)


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("models: {a: {route: [local/demo]}}\nserver: {port: 1}\nmodels: {}\n", "line 3 says `models` a second time"),
        ("server:\n  port: 1\n  port: 2\n", "line 3 says `port` a second time"),
        ("models: &all {a: *all}\n", "something in it contains itself"),
    ],
)
def test_what_would_be_lost_without_a_word_is_refused(tmp_path: Path, written: str, told: str) -> None:
    """Of two sections of one name the last alone counted, so that the models of the first were nowhere."""
    config = tmp_path / "nearhit.yaml"
    config.write_text(written)
    with pytest.raises(ValueError, match=re.escape(told)):
        load(config)


def test_names_are_what_is_written(tmp_path: Path) -> None:
    """YAML reads `no` as false, 1.5 as a number and a date as one; a model of that name was called False."""
    names = ["no", "1.50", "2026-01-01", "~"]
    file = tmp_path / "nearhit.yaml"
    file.write_text("models:\n" + "".join(f"  {name}: {{route: [local/demo]}}\n" for name in names))
    assert list(load(file).models) == names


@pytest.mark.parametrize(
    "written", ["server: {max_in_flight: on}", "cache: {ttl: yes}", "budgets: [{scope: org, rpm: no}]"]
)
def test_a_word_is_no_number(tmp_path: Path, written: str) -> None:
    """`on` was 1: a gateway that answered one request at a time, and no mistake to be seen."""
    file = tmp_path / "nearhit.yaml"
    file.write_text(written)
    with pytest.raises(ValueError, match="a number, not yes or no"):
        load(file)


@pytest.mark.parametrize("name", ["a?b", "c%20d", "e#f", "hö me"])
def test_the_database_of_a_home_is_in_it_whatever_that_is_called(tmp_path: Path, name: str) -> None:
    """`a?b` put the whole database, keys and money, into a file `a` beside the home, which `a?c` then shared."""
    database = make_url(load(home=tmp_path / name).database_url).database
    assert database == str(tmp_path / name / "nearhit.db")


def test_a_home_may_be_said_as_in_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`home: ~/.nearhit` made a folder called `~` wherever the gateway was started."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NEARHIT_HOME", "~/.nearhit")
    assert load().home == tmp_path / ".nearhit"


_AGAIN = "".join(f"k{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))


TOO_MUCH = [
    ("models: " + "[" * 3_000 + "]" * 3_000, "brackets stand too deep in each other"),
    ("models: &again\n  a: *again\n", "something in it contains itself"),
    ("a: &a0 [x]\n" + _AGAIN, "200,000 values"),
]


@pytest.mark.parametrize(("written", "told"), TOO_MUCH)
def test_what_no_memory_would_hold_is_refused(tmp_path: Path, written: str, told: str) -> None:
    """It is read again on SIGHUP, by every worker: a traceback there, or minutes of nothing, would be an outage."""
    file = tmp_path / "nearhit.yaml"
    file.write_text(written)
    with pytest.raises(ValueError, match=told):
        load(file)


def test_parts_that_are_merged_in_may_be_said_anew(tmp_path: Path) -> None:
    """`<<` is there to have a value of its own beside what it brings."""
    config = tmp_path / "nearhit.yaml"
    config.write_text("providers:\n  a: &a {kind: scripted, seed: 1}\n  b: {<<: *a, seed: 2}\n")
    assert (load(config).providers["b"].model_extra or {})["seed"] == 2


def test_what_merges_others_may_be_merged_before_it_is_read(tmp_path: Path) -> None:
    """What `<<` brings is put among the keys in place: that is nothing written twice, in whatever order it is read."""
    config = tmp_path / "any.yaml"
    config.write_text("c: &c {k: 0}\nx:\n  y:\n    deep: &b {<<: *c, k: 1}\nother: {<<: *b, z: 2}\n")
    assert read_yaml(config) == yaml.safe_load(config.read_text())


@pytest.mark.parametrize(("told", "meant"), [(".5", 0.5), ("1e3", 1_000.0), (" 30 ", 30.0), ("5m", 300.0)])
def test_a_variable_may_say_any_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, meant: float
) -> None:
    """Figures were taken in every form that a number has, until units were checked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEARHIT_CACHE__TTL", told)
    assert load().cache.ttl == meant


@pytest.mark.parametrize("name", ["NEARHIT_SERVR__PORT", "nearhit_cahce__mode", "NEARHIT_CACHE__MOED"])
def test_a_mistyped_variable_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A part that does not exist was passed over: the cache that somebody had switched off went on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, "off")
    with pytest.raises(ValueError, match="there is no such setting"):
        load()


def test_variables_of_others_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes makes these for a service called nearhit, compose files and tests have theirs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEARHIT_PORT_8080_TCP_ADDR", "10.0.0.1")
    monkeypatch.setenv("NEARHIT_VERSION", "0.1.0")
    load()


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (
            'providers: {lab: {kind: openai, api_key: ["${LAB_KEY}"]}}\nserver: {port: "${LAB_KEY}"}',
            "providers.lab.api_key",
        ),
        ('cache: {encryption_key_file: "${LAB_KEY}"}', "cache.encryption_key_file"),
        ("admin_key: sk-very-secret: and more", "line 1, column 26 is no YAML"),
        ("admin_key: *sk-very-secret", "line 1, column 12 is no YAML"),
    ],
)
def test_a_mistake_tells_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, told: str) -> None:
    """What is wrong may be a key in the wrong place, and the message goes to logs and to the reload call's answer."""
    monkeypatch.setenv("LAB_KEY", "sk-very-secret")
    config = tmp_path / "nearhit.yaml"
    config.write_text(written)
    with pytest.raises(ValueError, match=re.escape(told)) as caught:
        load(config)
    assert "sk-very-secret" not in "".join(format_exception(caught.value))


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("providers: {lab: {kind: opnai, api_key: none}}", "providers.lab: Unknown provider 'opnai'"),
        ("providers: {lab: {kind: openai, api_key: none, bogus: 1}}", "providers.lab: .*bogus"),
        ("models: {m: {route: [nosuch/x]}}", "models.m: no provider or engine is called 'nosuch'"),
        ("budgets: [{scope: team, limit_usd: 1}]", "budgets: team: unknown scope"),
        ("budgets: [{scope: team, rpm: 1}]", "unknown scope 'team'"),
        ("cache: {policy: nosuch}", "cache.policy: Unknown reuse policy"),
        ("cache: {store: redis}", "cache.store: redis needs redis"),
        ("cache: {judge: {model: nope/judge}}", "cache.judge.model: The model `nope/judge` does not exist"),
        ("cache: {judge: {model: embed}}", "cache.judge.model: embed makes embeddings"),
        (
            "budgets: [{scope: org, limit_usd: 1, on_exhausted: 'degrade:nosuch'}]",
            "budgets: org: on_exhausted: The model `nosuch` does not exist",
        ),
    ],
)
def test_what_no_gateway_could_start_with_is_found(tmp_path: Path, written: str, told: str) -> None:
    """`nearhit config check` called it valid, and `nearhit serve` ended with a trace, or tried three times."""
    config = tmp_path / "nearhit.yaml"
    config.write_text(written)
    settings = load(config, home=tmp_path / "home")
    [problem] = problems(settings)
    assert re.match(told, problem)
    with pytest.raises(ValueError, match=told):
        build(settings)


def test_a_section_of_the_environment_that_is_no_json_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """`error parsing value for field "providers" from source "EnvSettingsSource"` is nothing that anybody wrote."""
    monkeypatch.setenv("NEARHIT_PROVIDERS", '{"lab": {"api_key": "canary"')
    with pytest.raises(ValueError, match="NEARHIT_PROVIDERS is JSON") as told:
        load()
    assert "canary" not in str(told.value)


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("admin_key: short", "the admin key must have 16 to 512 characters"),
        ("secret: short", "the installation's secret must have at least 16 characters"),
        ("engines: {a/b: {model: sim}}", "engines: 'a/b' is no name"),
        ("cache: {encoder: /nowhere/at/all}", "cache.encoder: /nowhere/at/all is no folder"),
        ("telemetry: {otlp: 'collector:4318'}", "telemetry.otlp is an http:// or https:// address"),
        ("telemetry: {otlp: 'http://[collector'}", "telemetry.otlp is an http:// or https:// address"),
    ],
)
def test_names_and_addresses_are_checked_before_a_start(tmp_path: Path, written: str, told: str) -> None:
    """`nearhit config check` called a name valid that `nearhit serve` refuses, and traces that go nowhere."""
    config = tmp_path / "nearhit.yaml"
    config.write_text(written)
    [problem] = problems(load(config, home=tmp_path / "home"))
    assert problem.startswith(told)


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("{model: dmeo}", "engines.e.model: Model 'dmeo': "),
        ("{model: 'tiny-random:nonsense'}", "engines.e.model: Unknown family 'nonsense'"),
        (
            "{model: demo, speculate: ngrm}",
            "engines.e.speculate: speculate is one of off, predicted, ngram, or a model.",
        ),
    ],
)
def test_models_of_engines_are_looked_for(tmp_path: Path, written: str, told: str) -> None:
    """A misspelt model was valid, and its engine stayed down for a reason that only the log told."""
    config = tmp_path / "nearhit.yaml"
    config.write_text(f"engines: {{e: {written}, other: {{model: sim}}}}")
    [problem] = problems(load(config, home=tmp_path / "home"))
    assert problem.startswith(told)


def test_what_a_gateway_starts_with_has_no_problems(tmp_path: Path) -> None:
    """The defaults, and one of everything that is looked at."""
    config = tmp_path / "nearhit.yaml"
    config.write_text(
        "providers: {lab: {kind: openai, base_url: 'http://127.0.0.1:1/v1', api_key: none}}\n"
        "models: {m: {route: [lab/any, local/demo]}}\nbudgets: [{scope: 'team:a', limit_usd: 1, rpm: 5}]\n"
    )
    assert problems(load(config)) == []


def test_where_a_value_comes_from_is_told_of_names_with_dots_and_of_parts_in_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The route of `gpt-4.1` was called a default, and defaults came from variables that nobody had set."""
    config = tmp_path / "nearhit.yaml"
    config.write_text(
        "providers: {openai: {kind: openai, api_key: none}, lab.v2: {kind: openai, api_key: none}}\n"
        "models: {gpt-4.1: {route: [lab.v2/m]}}\n"
    )
    monkeypatch.setenv("NEARHIT_CACHE", '{"mode": "exact"}')
    monkeypatch.setenv("GROQ_API_KEY", "given")
    for variable in ("OPENAI_API_KEY", "NEARHIT_CACHE__MODE"):
        monkeypatch.delenv(variable, raising=False)
    found = {one.name: one.source for one in every(load(config), config)}
    in_file = ("models.gpt-4.1.route", "providers.lab.v2.kind", "providers.openai.api_key")
    assert {found[name] for name in in_file} == {f"file {config}"}
    defaults = ("models.gpt-4.1.free", "providers.lab.v2.batch", "providers.openai.batch", "providers.groq.batch")
    assert {found[name] for name in (*defaults, "cache.ttl")} == {"default"}
    assert found["cache.mode"] == "environment NEARHIT_CACHE"
    assert found["providers.groq.api_key"] == "environment GROQ_API_KEY"


def test_where_a_secret_of_a_file_comes_from_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets that a container is handed as files were called defaults, as if nobody had set any."""
    (tmp_path / "given").write_text("sk-given-by-a-file-0123456789\n")
    (tmp_path / "database").write_text("postgresql://nearhit@db/nearhit\n")
    for variable, name in (("NEARHIT_ADMIN_KEY", "given"), ("NEARHIT_DATABASE", "database"), ("GROQ_API_KEY", "given")):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv(f"{variable}_FILE", str(tmp_path / name))
    found = {one.name: one.source for one in every(load(), None)}
    assert found["admin_key"] == "environment NEARHIT_ADMIN_KEY_FILE"
    assert found["database"] == "environment NEARHIT_DATABASE_FILE"
    assert found["providers.groq.api_key"] == "environment GROQ_API_KEY_FILE"
    assert found["redis"] == "default"


def test_a_route_to_a_model_that_an_engine_does_not_serve_is_found(tmp_path: Path) -> None:
    """`config check` called it valid, and whoever asked for the model was told 404 by an engine nobody had named."""
    config = tmp_path / "nearhit.yaml"
    config.write_text(
        "engines: {local: {model: demo}, other: {model: sim}}\n"
        "models:\n"
        "  good: {route: [local/demo, other/sim], canary: {to: local/minilm, share: 0.1}}\n"
        "  bad: {route: [local/qwen], shadow: {to: other/demo, share: 0.1}}\n"
    )
    said = ["models.bad: local serves demo and minilm, not qwen", "models.bad: other serves sim, not demo"]
    assert problems(load(config)) == said


def test_consent_of_what_is_no_project_is_refused(tmp_path: Path) -> None:
    """A team's name alone was taken, and not one line was ever kept for it."""
    config = tmp_path / "nearhit.yaml"
    config.write_text("distillation: {projects: [acme]}\n")
    with pytest.raises(ValueError, match="'acme' is no project; write team/project"):
        load(config)
