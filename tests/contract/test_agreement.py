"""Hosts that share a PostgreSQL and not what their files say are named, section by section."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from gateway.agreement import marks, others
from gateway.cli import doctor
from gateway.settings import Settings
from tests.empty_database import fresh_postgres
from tests.live import live, settings

SECRET = "the-secret-of-all-hosts-of-this-database"
TOLD = "another nearhit.yaml"
LIMIT = {"scope": "team:acme", "limit_usd": "5.00", "window": "day"}


def host(home: Path, url: str, monkeypatch: pytest.MonkeyPatch, **values: Any) -> Settings:
    """What the next gateway that starts runs with, on a machine called like its home."""
    monkeypatch.setattr(socket, "gethostname", lambda: home.name)
    return settings(home, database=url, secret=SECRET, **{"cache": {"mode": "off"}, **values})


async def test_a_host_whose_file_differs_is_named_by_who_comes_later(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each start put its own limits in force, and neither log said that there are two."""
    url = await fresh_postgres(postgres_url)
    first = host(tmp_path / "west", url, monkeypatch)
    async with live(first):
        assert await others(url, first) == {}
        second = host(tmp_path / "east", url, monkeypatch, budgets=[LIMIT])
        async with live(second):
            assert await others(url, second) == {"west": ["budgets"]}
            assert await others(url, first) == {"east": ["budgets"]}
            found = await asyncio.to_thread(doctor._hosts, second)
            assert (found.good, found.words) == (False, "west has other budgets")
        (told,) = [line for line in capsys.readouterr().out.splitlines() if TOLD in line]
        assert told.endswith("host=west sections=['budgets']")
        assert await others(url, second) == {"west": ["budgets"]}
    assert await others(url, second) == {}  # nobody lives there any more


async def test_hosts_with_one_file_have_nothing_to_say(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Homes, ports and the values of keys are each host's own."""
    url = await fresh_postgres(postgres_url)
    lab = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1"}
    one, two = ({"up": {"kind": "scripted"}, "lab": {**lab, "api_key": key}} for key in ("sk-of-one", "sk-of-two"))
    west = live(host(tmp_path / "west", url, monkeypatch, providers=one))
    async with west, live(host(tmp_path / "east", url, monkeypatch, providers=two)):
        pass
    assert TOLD not in capsys.readouterr().out


def test_a_mark_tells_nothing_to_who_lacks_the_secret(tmp_path: Path) -> None:
    """An address in a file may hold a password; the database must not let it be guessed."""
    chosen = settings(tmp_path)
    assert marks(chosen, b"a" * 32) == marks(chosen, b"a" * 32) != marks(chosen, b"b" * 32)
