"""A folder that a newer version or an incomplete restore has left: every command says so in a sentence."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from gateway.cli import main

Told = Callable[..., tuple[int, str]]


@pytest.fixture
def told(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Told:
    """How a command ended, and all that it said; after one key was made."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--home", str(tmp_path / "home")])
        return int(ended.value.code or 0), "".join(capsys.readouterr())

    assert run("keys", "create", "mine", "--team", "acme")[0] == 0
    return run


@pytest.mark.parametrize("command", [("db", "upgrade"), ("ledger", "verify"), ("usage",), ("keys", "list")])
def test_a_database_of_a_newer_version(told: Told, tmp_path: Path, command: tuple[str, ...]) -> None:
    """Who has gone back to the version before needs the way out; it was a trace of the migration library."""
    _mark(tmp_path)
    code, said = told(*command)
    assert code == 1
    assert said.startswith("nearhit: the database is at revision 9999, this version needs ")
    assert "run that one, or restore a copy from before it" in said


@pytest.mark.parametrize("command", [("db", "current"), ("doctor",)])
def test_nobody_is_told_to_upgrade_what_is_newer(told: Told, tmp_path: Path, command: tuple[str, ...]) -> None:
    """That advice cannot be followed, and ended in a trace."""
    _mark(tmp_path)
    code, said = told(*command)
    assert code == 1
    assert "upgraded by a newer version" in said
    assert "nearhit db upgrade" not in said


def test_a_restore_without_the_secret(told: Told, tmp_path: Path) -> None:
    """A command that made a new secret would make every key of the database worthless."""
    (tmp_path / "home" / "secret").unlink()
    code, said = told("keys", "list")
    assert code == 1
    assert said.startswith(f"nearhit: {tmp_path / 'home' / 'secret'} is gone")
    assert not (tmp_path / "home" / "secret").exists()


def _mark(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "home" / "nearhit.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
