"""Secrets that come as files: read, never shown, and never guessed between two of them."""

from pathlib import Path

import pytest

from gateway.secret_files import with_files
from gateway.settings import load


def test_every_secret_of_a_stack_may_come_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes mounts them; an environment is shown by `kubectl describe` and inherited by every child."""
    given = {
        "NEARHIT_ADMIN_KEY": "an-admin-key-from-a-file",
        "NEARHIT_DATABASE": "postgresql://u:p@db/n",
        "OPENAI_API_KEY": "sk-openai",
        "LAB_KEY": "sk-lab",
    }
    for name, value in given.items():
        (tmp_path / name).write_text(f"{value}\n")
        monkeypatch.setenv(f"{name}_FILE", str(tmp_path / name))
    config = tmp_path / "nearhit.yaml"
    config.write_text('providers: {lab: {kind: openai, base_url: "http://127.0.0.1:1/v1", api_key: "${LAB_KEY}"}}\n')
    found = load(config)
    assert found.admin_key is not None
    assert found.admin_key.get_secret_value() == given["NEARHIT_ADMIN_KEY"]
    assert found.database == given["NEARHIT_DATABASE"]
    keys = {name: one.api_key.get_secret_value() for name, one in found.providers.items() if one.api_key}
    assert keys == {"lab": "sk-lab", "openai": "sk-openai"}


def test_an_empty_variable_is_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose files write `${NEARHIT_HOME:-}`; an empty path is the current folder, and the books once landed there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nearhit.yaml").write_text("server: {port: 9001}\n")
    for name in ("NEARHIT_HOME", "NEARHIT_SERVER__PORT", "NEARHIT_ADMIN_KEY", "NEARHIT_DATABASE"):
        monkeypatch.setenv(name, "")
    found = load()
    assert found.database_url == "sqlite+aiosqlite:///.nearhit/nearhit.db"
    assert (found.server.port, found.admin_key) == (9001, None)


def test_what_is_no_secret_keeps_its_meaning(tmp_path: Path) -> None:
    """`cache.encryption_key_file` is a setting of its own that names a file; and others' variables are not touched."""
    given = {"NEARHIT_CACHE__ENCRYPTION_KEY_FILE": "/k", "SSL_CERT_FILE": "/c", "NEARHIT_SECRET_FILE": ""}
    with pytest.raises(ValueError, match="NEARHIT_SECRET_FILE"):
        with_files(given, ())
    del given["NEARHIT_SECRET_FILE"]
    assert with_files(given, ()) == given


def test_trouble_names_the_variable_and_never_the_secret(tmp_path: Path) -> None:
    """Two sources that differ are a mistake somebody should hear of; so is an empty file."""
    path = tmp_path / "s"
    path.write_text("hush-hush")
    with pytest.raises(ValueError, match="both NEARHIT_SECRET and NEARHIT_SECRET_FILE") as caught:
        with_files({"NEARHIT_SECRET": "a", "NEARHIT_SECRET_FILE": str(path)}, ())
    assert "hush" not in str(caught.value)
    path.write_text("  \n")
    with pytest.raises(ValueError, match="is empty"):
        with_files({"NEARHIT_SECRET_FILE": str(path)}, ())
    with pytest.raises(ValueError, match="cannot read"):
        with_files({"NEARHIT_SECRET_FILE": str(tmp_path / "none")}, ())
