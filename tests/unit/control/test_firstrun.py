"""Secrets made at the first start: made once, readable by the owner only, never kept as text."""

import hashlib
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import SecretStr

from gateway.auth import Keyring
from gateway.firstrun import AdminKey, ensure_admin_key, first_api_key, installation_secret, renew_admin_key
from gateway.settings import Settings


def made(tmp_path: Path, **changes: object) -> Settings:
    return Settings(home=tmp_path / "home", **changes)  # pyright: ignore[reportArgumentType] - a test's shorthand


def test_the_secret_is_made_once_and_is_private(tmp_path: Path) -> None:
    """A new secret at each start would make every stored key useless."""
    first = installation_secret(made(tmp_path))
    assert installation_secret(made(tmp_path)) == first
    assert (tmp_path / "home" / "secret").stat().st_mode & 0o777 == 0o600
    assert len(first) >= 32


def test_a_lost_secret_is_not_replaced_in_silence(tmp_path: Path) -> None:
    """A database that was restored without its secret would refuse every client, and nothing would say why."""
    home = tmp_path / "home"
    home.mkdir()
    with closing(sqlite3.connect(home / "nearhit.db")) as database:
        database.execute("CREATE TABLE api_key (id TEXT)")
        database.commit()
        assert installation_secret(made(tmp_path, secret=SecretStr("s" * 20)))
        database.execute("INSERT INTO api_key VALUES ('a')")
        database.commit()
    with pytest.raises(ValueError, match="secret is gone, and with it every API key"):
        installation_secret(made(tmp_path))
    assert not (home / "secret").exists()
    (home / "secret").write_text("n" * 32)
    assert installation_secret(made(tmp_path)) == b"n" * 32


@pytest.mark.parametrize("content", [b"", b"no database" * 100])
def test_a_database_without_keys_may_begin_with_any_secret(tmp_path: Path, content: bytes) -> None:
    """`nearhit db upgrade` comes before the first start, and a damaged file is told of by who opens it."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "nearhit.db").write_bytes(content)
    assert installation_secret(made(tmp_path))


def test_a_configured_secret_wins_and_must_not_be_weak(tmp_path: Path) -> None:
    """Several gateways on one database share a secret through the environment."""
    assert installation_secret(made(tmp_path, secret=SecretStr("s" * 20))) == b"s" * 20
    with pytest.raises(ValueError, match="16"):
        installation_secret(made(tmp_path, secret=SecretStr("short")))


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe"])
def test_a_secret_that_is_none_is_told_with_its_place(tmp_path: Path, content: bytes) -> None:
    """A copy that broke off leaves such a file, and "can't decode byte 0xff" said nothing of which."""
    settings = made(tmp_path)
    settings.home.mkdir()
    (settings.home / "secret").write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(str(settings.home / "secret"))):
        installation_secret(settings)


def test_the_admin_key_is_shown_once_and_only_its_digest_is_kept(tmp_path: Path) -> None:
    """A copied home folder must not hand out the admin key."""
    settings = made(tmp_path)
    key = ensure_admin_key(settings).key
    assert key is not None
    kept = (tmp_path / "home" / "admin_key").read_text()
    assert key not in kept
    assert ensure_admin_key(settings).key is None
    assert AdminKey(settings)() == hashlib.sha256(key.encode()).digest()
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["admin_key"]


def test_a_renewed_admin_key_counts_without_a_restart(tmp_path: Path) -> None:
    """Whoever lost the key gets a new one while the gateway runs, and the old one stops."""
    settings = made(tmp_path)
    ensure_admin_key(settings)
    current = AdminKey(settings)
    before = current()
    fresh = renew_admin_key(settings)
    assert current() == hashlib.sha256(fresh.encode()).digest() != before
    assert (tmp_path / "home" / "admin_key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("weak", ["", "short", "x" * 15, "x" * 600])
def test_a_weak_admin_key_stops_the_start(tmp_path: Path, weak: str) -> None:
    """A guessable master key is the whole installation."""
    with pytest.raises(ValueError, match="admin key"):
        ensure_admin_key(made(tmp_path, admin_key=SecretStr(weak)))


def test_a_fixed_admin_key_is_not_renewed_behind_the_operators_back(tmp_path: Path) -> None:
    """The environment would win at the next start, so a renewed key would be a lie."""
    settings = made(tmp_path, admin_key=SecretStr("from-the-environment"))
    assert AdminKey(settings)() == hashlib.sha256(b"from-the-environment").digest()
    with pytest.raises(ValueError, match="NEARHIT_ADMIN_KEY"):
        renew_admin_key(settings)


def test_without_any_admin_key_nobody_is_admin(tmp_path: Path) -> None:
    """An empty digest must never compare equal to something."""
    assert AdminKey(made(tmp_path))() is None
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "admin_key").write_text("weak\n")
    assert AdminKey(made(tmp_path))() is None


async def test_the_first_key_is_made_only_in_an_empty_installation(keyring: Keyring) -> None:
    """A restart must not add keys nobody asked for."""
    first = await first_api_key(keyring)
    assert first is not None
    assert (first.row.team, first.row.project, first.row.role) == ("default", "default", "app")
    assert await first_api_key(keyring) is None
