"""What exists only after the first start: the installation's secret, the admin key, the first API key.

The secret keys every stored hash; it lives in NEARHIT_HOME/secret (0600) unless `NEARHIT_SECRET` gives it. Of the admin
key only a SHA-256 is kept (NEARHIT_HOME/admin_key): the key has 256 random bits, so a plain digest tells nothing.
Does not know: HTTP, who prints what is shown once.
"""

import hashlib
import os
import secrets
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gateway import keyform
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.auth import Created, Keyring

_MARK = "sha256:"
_SECRET_BYTES = 32
_SHORTEST = 16
_LONGEST = 512


class NewAdminKey(NamedTuple):
    """`key` is None when a key existed already: nobody can read that one again."""

    key: str | None


def installation_secret(settings: Settings) -> bytes:
    """The pepper, made at the first call. Raises ValueError when the configured or stored one is too short, or lost."""
    if settings.secret is not None:
        found, place = settings.secret.get_secret_value().encode(), "NEARHIT_SECRET (or secret in the configuration)"
    else:
        path = settings.home / "secret"
        if settings.database is None and not path.exists() and _has_keys(settings.home / "nearhit.db"):
            raise ValueError(
                f"{path} is gone, and with it every API key in nearhit.db: put it back from where it was kept, or "
                "begin with another one, and new keys, by writing 32 random characters or more into that file"
            )
        _write_once(path, secrets.token_hex(_SECRET_BYTES))
        found, place = path.read_bytes().strip(), str(path)
    if len(found) < _SHORTEST:
        raise ValueError(f"the installation's secret must have at least {_SHORTEST} characters, and {place} does not")
    return found


def ensure_admin_key(settings: Settings) -> NewAdminKey:
    """Make the admin key unless one is configured or was made before."""
    if settings.admin_key is not None:
        AdminKey(settings)  # refuses a weak one before anything listens
        return NewAdminKey(None)
    minted = keyform.mint(secrets.token_bytes, name="admin000")
    written = _write_once(settings.home / "admin_key", _line(minted.key))
    return NewAdminKey(minted.key if written else None)


def renew_admin_key(settings: Settings) -> str:
    """Replace the admin key. Raises ValueError when the environment fixes it."""
    if settings.admin_key is not None:
        raise ValueError(
            "the admin key is fixed by NEARHIT_ADMIN_KEY (or admin_key in the configuration): change it there"
        )
    minted = keyform.mint(secrets.token_bytes, name="admin000")
    path = settings.home / "admin_key"
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    _write_once(fresh, _line(minted.key))
    fresh.replace(path)
    return minted.key


class AdminKey:
    """The digest of the admin key as it is now; a renewed file counts without a restart."""

    def __init__(self, settings: Settings) -> None:
        self._path = settings.home / "admin_key"
        self._seen: tuple[int, int] | None = None
        self._digest: bytes | None = None
        self._fixed = settings.admin_key is not None
        if settings.admin_key is not None:
            text = settings.admin_key.get_secret_value()
            if not _SHORTEST <= len(text) <= _LONGEST:
                raise ValueError(f"the admin key must have {_SHORTEST} to {_LONGEST} characters")
            self._digest = hashlib.sha256(text.encode()).digest()

    def __call__(self) -> bytes | None:
        """32 bytes, or None when there is no admin key at all."""
        if not self._fixed:
            self._read_when_changed()
        return self._digest

    def _read_when_changed(self) -> None:
        try:
            state = self._path.stat()
        except FileNotFoundError:
            self._seen = self._digest = None
            return
        if (seen := (state.st_mtime_ns, state.st_ino)) != self._seen:
            text = self._path.read_text("utf-8").strip()
            self._digest = bytes.fromhex(text.removeprefix(_MARK)) if text.startswith(_MARK) else _plain(text)
            self._seen = seen


async def first_api_key(keyring: "Keyring") -> "Created | None":
    """A key for the team and project `default` when there is no key at all, else None."""
    from gateway.auth import ADMIN, NewKey  # not above: the supervisor reads this module and must not load a database

    if await keyring.any():
        return None
    return await keyring.create(ADMIN, NewKey(name="first key", team="default", project="default"))


def _has_keys(database: Path) -> bool:
    """Whether a key was ever made there: its hash is worth nothing without the secret of then."""
    if not database.exists():
        return False
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as found:
            return found.execute("SELECT 1 FROM api_key LIMIT 1").fetchone() is not None
    except sqlite3.Error:
        return False  # none of ours yet, or damaged: who opens it for work says so


def _plain(text: str) -> bytes | None:
    """An operator may also put the key itself into the file."""
    return hashlib.sha256(text.encode()).digest() if len(text) >= _SHORTEST else None


def _line(key: str) -> str:
    return _MARK + hashlib.sha256(key.encode()).hexdigest()


def _write_once(path: Path, text: str) -> bool:
    """Create `path` (0600) with `text`; False when it is there already. Never leaves a half-written file behind."""
    if path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, path)  # fails when another process was first
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True
