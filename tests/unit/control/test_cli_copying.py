"""`nearhit db copy`: a laptop's database becomes a fleet's, and everybody's key goes on working."""

import asyncio
import io
import os
import time
from pathlib import Path

import pytest
from sqlalchemy import insert

from gateway.auth import Keyring
from gateway.cli.copying import Progress
from gateway.db.models import Boot
from gateway.db.session import Database
from gateway.firstrun import installation_secret
from gateway.serve_home import lock
from gateway.settings import load
from tests.clock import FrozenClock
from tests.empty_database import empty_postgres, fresh_postgres
from tests.unit.control.test_cli import Cli


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path / "home", capsys)


@pytest.fixture
def key(cli: Cli) -> str:
    """Of a home with a key, a budget and a price."""
    cli("budgets", "set", "team:acme", "12.5", "--window", "day")
    cli("prices", "set", "lab/qwen", "0.15", "0.6")
    return cli("keys", "create", "bot", "--team", "acme").splitlines()[0]


def test_everything_is_there_on_postgresql(
    cli: Cli, key: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch, clock: FrozenClock
) -> None:
    """Who grows out of SQLite keeps the keys that are in hundreds of applications."""
    url = asyncio.run(empty_postgres(postgres_url))
    before = [cli.json(*command) for command in (("keys", "list"), ("budgets", "list"), ("audit", "list"))]
    told = cli("db", "copy", "--to", url)
    assert "rows copied and compared" in told
    assert "api_key" in told
    monkeypatch.setenv("NEARHIT_DATABASE", url)
    assert [cli.json(*command) for command in (("keys", "list"), ("budgets", "list"), ("audit", "list"))] == before
    cli("keys", "create", "another", "--team", "acme")
    assert cli.json("audit", "verify")["rows"] == len(before[2]) + 1
    assert cli.json("ledger", "verify") == {"agrees": True, "problems": []}
    assert asyncio.run(team_of(key, url, installation_secret(load(home=cli.home)), clock)) == "acme"


async def team_of(key: str, url: str, secret: bytes, clock: FrozenClock) -> str:
    database = Database(url)
    keyring = Keyring(database, secret, now=clock.now, monotonic=clock.monotonic, admin_key=lambda: b"x" * 32)
    try:
        return (await keyring.identify_key(key)).team
    finally:
        await database.close()


def test_and_back_again(cli: Cli, key: str, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of a fleet's books to look at on a laptop; the address is read from standard input."""
    del key
    url = asyncio.run(fresh_postgres(postgres_url))
    cli("db", "copy", "--to", url)
    monkeypatch.setenv("NEARHIT_DATABASE", url)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"sqlite:///{tmp_path / 'copy.db'}\n"))
    assert cli.json("db", "copy", "--to", "-")["rows"]["api_key"] == 1
    monkeypatch.setenv("NEARHIT_DATABASE", f"sqlite:///{tmp_path / 'copy.db'}")
    assert [row["name"] for row in cli.json("keys", "list")] == ["bot"]


def test_a_fleet_that_runs_is_not_copied(cli: Cli, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they spend during the copy would be in neither database's balance or in both."""
    url = asyncio.run(fresh_postgres(postgres_url))
    asyncio.run(say_that_one_runs(url))
    monkeypatch.setenv("NEARHIT_DATABASE", url)
    cli("db", "copy", "--to", "sqlite:///copy.db", code=1)
    assert "1 gateway process" in cli.err
    assert not Path("copy.db").exists()


async def say_that_one_runs(url: str) -> None:
    database = Database(url)
    now = time.time()
    async with database.begin() as connection:
        boot = {"id": "b", "host": "h", "journalled": True, "started": now, "seen": now}
        await connection.execute(insert(Boot).values(boot))
    await database.close()


def test_what_stands_in_the_way_is_told(cli: Cli, key: str, tmp_path: Path) -> None:
    """A gateway that runs, a database that holds something, one of another kind, one that is not there."""
    del key
    held = lock(cli.home)
    try:
        cli("db", "copy", "--to", f"sqlite:///{tmp_path / 'copy.db'}", code=1)
        assert "in use" in cli.err
    finally:
        os.close(held)
    cli("db", "copy", "--to", "mysql://a/b", code=1)
    assert "unknown kind" in cli.err
    cli("db", "copy", "--to", "somewhere", code=1)
    assert "--to" in cli.err
    cli("db", "copy", "--to", "postgresql://me:hush@127.0.0.1:1/none", code=1)
    assert "cannot be used" in cli.err
    assert "hush" not in cli.err
    cli("db", "copy", "--to", f"sqlite:///{cli.home / 'nearhit.db'}", code=1)
    assert "not empty (1 in api_key, " in cli.err


def test_progress_is_for_people_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of a job is no terminal; on one a line is written over."""
    quiet, shown = io.StringIO(), io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True)
    for out in (quiet, shown):
        with Progress(out) as progress:
            progress.tell("entry", 5, 10)
            progress.tell("entry", 10, 10)
    assert quiet.getvalue() == ""
    assert "entry: 5 of 10 rows" in shown.getvalue()
    assert shown.getvalue().endswith("\r\033[K")
