"""`nearhit doctor`, part by part: each one broken, found, and with words that say how it is mended."""

import asyncio
import os
import socket
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from gateway.cli import doctor
from gateway.cli.finding import Finding
from gateway.settings import Settings
from tests.empty_database import put


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def made(home: Path, **values: Any) -> Settings:
    home.mkdir(mode=0o700, exist_ok=True)
    given: dict[str, Any] = {"engines": {}, "cache": {"mode": "off"}, **values}
    return Settings(home=home, **given)


OIDC = {"client_id": "n", "roles": {"ops": "admin"}}
BROKEN: dict[str, tuple[Callable[[Settings], Finding], Callable[[], dict[str, Any]], str]] = {
    "redis": (doctor._redis, lambda: {"redis": f"redis://127.0.0.1:{closed_port()}/0"}, "start Redis"),
    "database": (
        doctor._database,
        lambda: {"database": f"postgresql://nobody@127.0.0.1:{closed_port()}/none"},
        "start the database",
    ),
    "configuration": (
        doctor._configuration,
        lambda: {"providers": {"lab": {"kind": "opnai"}}},
        "correct nearhit.yaml",
    ),
    "telemetry": (
        doctor._telemetry,
        lambda: {"telemetry": {"otlp": f"http://127.0.0.1:{closed_port()}"}},
        "start the collector",
    ),
    "sign-in": (
        doctor._sign_in,
        lambda: {"oidc": {**OIDC, "issuer": f"http://127.0.0.1:{closed_port()}"}},
        "keys still sign in",
    ),
    "upstreams": (
        doctor._upstreams,
        lambda: {"providers": {"lab": {"kind": "openai", "base_url": "http://127.0.0.1:1/v1"}}},
        "api_key",
    ),
    "engines": (doctor._engines, lambda: {"engines": {"local": {"model": "/nowhere/at/all"}}}, "engines:"),
    "encoder": (
        doctor._weights,
        lambda: {"cache": {"mode": "semantic", "encoder": "/nowhere/at/all"}},
        "cache.encoder",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_part_is_found_and_its_mend_named(name: str, tmp_path: Path) -> None:
    """The first thing an operator runs must point at the part, not at a trace."""
    check, values, mend = BROKEN[name]
    found = check(made(tmp_path / "home", **values()))
    assert (found.name, found.good) == (name, False)
    assert mend in found.mend
    assert found.words


def test_a_proxy_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a firewall upstreams are reached through it alone: asked directly, every one of them would look dead."""
    lab = {"kind": "vllm", "base_url": "https://lab.example/v1"}
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:hush@127.0.0.1:{closed_port()}")
    found = doctor._upstreams(made(tmp_path / "home", providers={"lab": lab}))
    assert "the proxy 127.0.0.1 in between" in found.words
    assert "NO_PROXY lists what is asked without one" in found.mend
    assert "hush" not in str(found)
    with socket.create_server(("127.0.0.1", 0)) as alive:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{alive.getsockname()[1]}")
        assert doctor._upstreams(made(tmp_path / "home", providers={"lab": lab})).good
    here = {"kind": "vllm", "base_url": f"http://127.0.0.1:{closed_port()}/v1"}
    assert "PROXY" not in doctor._upstreams(made(tmp_path / "home", providers={"lab": here})).mend


def test_an_upstream_that_is_not_there_is_named_with_its_address(tmp_path: Path) -> None:
    """It was called good as long as it had a key, though no request could be answered."""
    with socket.create_server(("127.0.0.1", 0)) as alive:
        here, gone = alive.getsockname()[1], closed_port()
        lab = {"kind": "vllm", "api_key": "none", "base_url": f"http://127.0.0.1:{here}/v1"}
        assert doctor._upstreams(made(tmp_path / "home", providers={"lab": lab})).good
        fleet = {
            "kind": "vllm",
            "api_key": "none",
            "replicas": [f"http://127.0.0.1:{port}/v1" for port in (here, gone)],
        }
        found = doctor._upstreams(made(tmp_path / "home", providers={"lab": lab, "fleet": fleet}))
    assert not found.good
    assert found.words == f"nobody listens: fleet at 127.0.0.1:{gone} (ConnectionRefusedError)"
    assert "providers:" in found.mend


def test_one_of_several_keys_is_a_key(tmp_path: Path) -> None:
    """A pool of keys was told to have none."""
    pool = {"openai": {"kind": "openai", "api_keys": ["sk-one-of-two-keys", "sk-two-of-two-keys"]}}
    assert doctor._upstreams(made(tmp_path / "home", providers=pool)).good


def test_servers_of_ones_own_want_no_key(tmp_path: Path) -> None:
    """docs/providers.md says so; a vLLM that answered was called broken until it had `api_key: none`."""
    with socket.create_server(("127.0.0.1", 0)) as alive:
        address = f"http://127.0.0.1:{alive.getsockname()[1]}/v1"
        own: dict[str, dict[str, Any]] = {
            kind: {"kind": kind, "base_url": address} for kind in ("vllm", "ray", "dynamo", "llamacpp")
        }
        own["pair"] = {"kind": "prefill_decode", "protocol": "vllm", "prefill": [address], "decode": [address]}
        assert doctor._upstreams(made(tmp_path / "home", providers=own)).good
        found = doctor._upstreams(
            made(tmp_path / "home", providers={**own, "groq": {"kind": "groq", "base_url": address}})
        )
        assert "groq" in found.words


@pytest.mark.parametrize("name", [name for name in BROKEN if name not in ("engines", "encoder")])
def test_what_is_not_configured_is_no_fault(name: str, tmp_path: Path) -> None:
    """A laptop without Redis is well."""
    assert BROKEN[name][0](made(tmp_path / "home")).good


def test_a_data_folder_that_others_can_read(tmp_path: Path) -> None:
    """It holds the pepper and the journal."""
    settings = made(tmp_path / "home")
    assert doctor._home(settings).good
    settings.home.chmod(0o755)
    found = doctor._home(settings)
    assert (found.good, found.mend) == (False, f"chmod 700 {settings.home}")


def test_a_journal_that_cannot_be_written(tmp_path: Path) -> None:
    """Nothing could be sent: every attempt is written there first."""
    settings = made(tmp_path / "home")
    (settings.home / "journal").mkdir()
    assert doctor._journal(settings).good
    (settings.home / "journal").rmdir()
    (settings.home / "journal").symlink_to(tmp_path / "gone")
    (tmp_path / "gone").write_text("a file where a folder should be")
    found = doctor._journal(settings)
    assert not found.good
    assert "writable" in found.mend


def test_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every miss waits for it."""
    settings = made(tmp_path / "home")
    (settings.home / "journal").mkdir()
    sync = os.fdatasync

    def slow(fd: int) -> None:
        time.sleep(0.06)
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", slow)
    found = doctor._journal(settings)
    assert not found.good
    assert "local disk" in found.mend


def test_a_schema_that_is_behind(tmp_path: Path) -> None:
    """The mend is one command."""
    settings = made(tmp_path / "home")
    sqlite3.connect(settings.home / "nearhit.db").close()
    found = doctor._database(settings)
    assert (found.good, found.mend) == (False, "nearhit db upgrade")


def test_a_database_filled_under_another_secret(tmp_path: Path) -> None:
    """The gateway on this host would refuse every key of the others, and run well otherwise."""
    settings = made(tmp_path / "home")
    put(settings.home / "nearhit.db")
    (settings.home / "secret").write_text("s" * 32)
    columns = "(id, name, prefix, hash, team, project, role, created)"
    with closing(sqlite3.connect(settings.home / "nearhit.db")) as database:
        database.execute("INSERT INTO setting VALUES ('secret', 'of another host')")
        database.execute(f"INSERT INTO api_key {columns} VALUES ('k', 'n', 'p', 'h', 't', 'p', 'app', 0)")
        database.commit()
    found = doctor._database(settings)
    assert not found.good
    assert "another secret" in found.words
    assert "NEARHIT_SECRET" in found.mend


def test_a_clock_that_was_never_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets of 1970 are nobody's."""
    assert doctor._clock(made(tmp_path / "home")).good
    monkeypatch.setattr(time, "gmtime", lambda: time.struct_time((1970, 1, 1, 0, 0, 0, 3, 1, 0)))
    assert "NTP" in doctor._clock(made(tmp_path / "home")).mend


def test_a_clock_that_is_not_the_databases(tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A price that was set on such a host was in force nowhere else for as long, and the year was right."""
    settings = made(tmp_path / "home", database=postgres_url)
    assert doctor._clock(settings).good
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 600)
    assert "600 s ahead of the database's" in doctor._clock(settings).words
    monkeypatch.setattr(time, "time", lambda: real() - 600)
    found = doctor._clock(settings)
    assert (found.good, "600 s behind" in found.words, "NTP" in found.mend) == (False, True, True)
    assert "money goes by the database's" in found.mend, "it said that prices and usage went by this host's"


def test_a_database_says_itself_what_is_wrong(tmp_path: Path, postgres_url: str) -> None:
    """`does not answer (DBAPIError)` was all that was said of a wrong name, and of one with no connection left."""
    absent = doctor._database(made(tmp_path / "home", database=postgres_url.replace("/postgres", "/nowhere")))
    assert absent.words == 'cannot be used: database "nowhere" does not exist'
    limited = "ALTER DATABASE crowded CONNECTION LIMIT 0; ALTER USER someone NOSUPERUSER"
    for statement in ("CREATE DATABASE crowded", "CREATE USER someone", *limited.split("; ")):
        execute(postgres_url, statement)
    crowded = postgres_url.replace("/postgres", "/crowded").replace("nearhit@", "someone@")
    found = doctor._database(made(tmp_path / "home", database=crowded))
    assert "too many connections" in found.words
    assert "max_connections" in found.mend


def execute(url: str, statement: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(statement)
        await connection.close()

    asyncio.run(run())
