"""NEARHIT_HOME as `nearhit serve` finds and leaves it: folders, the lock, the listening sockets, keys shown once.

Does not know processes. Everything here is for the owner alone (0700 and 0600).
"""

import fcntl
import os
import shutil
import socket
import stat
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from gateway.firstrun import ensure_admin_key, installation_secret
from gateway.settings import Settings

_BACKLOG = 2_048
_LONGEST_SOCKET_PATH = 107  # bytes, sun_path of Linux less its end mark
_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


class CannotServe(Exception):
    """Why this gateway cannot start, as a sentence that says what to do."""


@contextmanager
def writing(home: Path) -> Generator[None, None, None]:
    """Raises CannotServe where the folder takes nothing: a full disk names no file that is open already."""
    try:
        yield
    except OSError as error:
        mend = "Set NEARHIT_HOME to another folder."
        if isinstance(error, PermissionError) and error.filename:
            mend = _whose(Path(str(error.filename)), home) or mend
        raise CannotServe(f"cannot write to {home}: {error.strerror}. {mend}") from error


def _whose(path: Path, home: Path) -> str:
    """What stands in the way of this process, and the mend: a folder that another user began, as under sudo."""
    for one in (path, *path.parents):
        try:
            state = one.stat()
        except OSError:
            continue
        mode = f"{stat.S_IMODE(state.st_mode):04o}"
        words = f"{one} is of user {state.st_uid} (mode {mode}), this process of user {os.geteuid()}"
        mend = "chown it, or set" if one == home or home in one.parents else "set"
        return f"{words}: {mend} NEARHIT_HOME to another folder."
    return ""


def strange_names(engines: Iterable[str]) -> list[str]:
    """Those that no socket can be called by, each in a sentence."""
    strange = [name for name in engines if not name or not set(name) <= _SAFE]
    return [f"engines: {name!r} is no name; use letters, digits and _ . -" for name in strange]


def prepare(settings: Settings) -> Path:
    """Make the folders; answer NEARHIT_HOME/run. Raises CannotServe."""
    home = settings.home
    with writing(home):
        for folder in (home, home / "run", home / "journal"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for trouble in strange_names(settings.engines):
        raise CannotServe(trouble)
    longest = max((f"engine-{name}.00.sock" for name in settings.engines), key=len, default="encoder.sock")
    if len(os.fsencode((home / "run" / longest).absolute())) > _LONGEST_SOCKET_PATH:
        raise CannotServe(f"{home.absolute()} is too long a path for Unix sockets. Set NEARHIT_HOME to a shorter one.")
    return home / "run"


def lock(home: Path, *, patience: float = 0.0) -> int:
    """Hold NEARHIT_HOME/lock for as long as the returned descriptor, or a copy that a child got, stays open.

    A gateway that was killed leaves workers that finish and then let go: `patience` seconds are waited for those.
    Raises CannotServe.
    """
    with writing(home):
        descriptor = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
            if time.monotonic() < until and not _lives(holder):
                time.sleep(0.1)
                continue
            os.close(descriptor)
            who = f"process {holder}" if _lives(holder) else "workers of a gateway that ended"
            raise CannotServe(f"{home} is in use ({who}). Stop it, or set NEARHIT_HOME to another folder.") from error
    with writing(home):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def leave_port(path: Path, port: int) -> None:
    """For commands that look for this gateway. Raises CannotServe."""
    draft = path.with_suffix(".new")
    with writing(path.parent):
        draft.write_text(f"{port}\n", "ascii")
        draft.replace(path)


def make_keys(settings: Settings) -> str | None:
    """The secret and the administrator's key, where they are not there yet; answers that key if it was made now.

    Raises CannotServe, and ValueError for a secret that is lost or too short.
    """
    with writing(settings.home):
        installation_secret(settings)
        return ensure_admin_key(settings).key


def is_held(home: Path) -> bool:
    """Whether another process holds the lock; looked at without keeping it."""
    try:
        descriptor = os.open(home / "lock", os.O_RDWR)
    except OSError:
        return False  # nobody ever started here, or nobody can: who takes the lock is told which
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _lives(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def listen(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for every address of `host`, on one port (chosen by the system for 0). Raises CannotServe."""
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((each[0], each[4]) for each in found):
            sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address[0], sockets[0].getsockname()[1] or port, *address[2:]))
            sock.listen(_BACKLOG)
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise CannotServe(
            f"cannot listen on {host}:{port}: {error.strerror}. Choose another with NEARHIT_SERVER__PORT or --port."
        ) from error
    return sockets


def fresh_folder(path: Path) -> Path:
    """An empty folder: what a former run left there would be counted again."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(mode=0o700, parents=True)
    return path


def forget_gauges(folder: Path, pid: int) -> None:
    """A worker has died: what it was doing at that moment is not being done any more; what it has counted stays.

    The names are prometheus_client's (`mark_process_dead`), whose import would cost the supervisor more than all else.
    """
    for path in folder.glob(f"gauge_live*_{pid}.db"):
        path.unlink(missing_ok=True)


def leave_first_key(home: Path, key: str) -> None:
    """For the worker that made the first API key: hand it to the supervisor, which shows it once."""
    descriptor = os.open(home / "run" / "first_key", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(key + "\n")


def take_first_key(home: Path) -> str | None:
    """The key that was handed over, deleted with the reading."""
    path = home / "run" / "first_key"
    try:
        key = path.read_text("ascii").strip()
    except FileNotFoundError:
        return None
    path.unlink()
    return key or None
