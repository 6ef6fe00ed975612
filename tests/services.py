"""Real servers for tests, each started once per run on a spare loopback port with its data in a throw-away folder.

A server whose URL is given (NEARHIT_TEST_REDIS, NEARHIT_TEST_POSTGRES) is used as it is. Without a URL and without the
program the tests that ask for it are skipped with the program's name; under CI that is a failure.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

# Read before any test starts, because every test wipes these names from the environment.
_GIVEN = {name: os.environ.get(name) for name in ("NEARHIT_TEST_REDIS", "NEARHIT_TEST_POSTGRES", "CI")}  # noqa: TID251
_PATIENCE = 60.0
MISSING: set[str] = set()


def spare_port() -> int:
    """A loopback port nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def program(name: str, *, folders: tuple[str, ...] = ()) -> Path:
    """Where a program is. Skips the test when it is not there, fails it under CI."""
    ours = str(Path(sys.executable).parent)
    found = (
        shutil.which(name)
        or shutil.which(name, path=ours)
        or next((str(at) for folder in folders for at in sorted(Path("/").glob(folder))), None)
    )
    if found is None:
        MISSING.add(name)
        message = f"{name} is not on this machine"
        if _GIVEN["CI"]:
            pytest.fail(message)
        pytest.skip(message)
    return Path(found)


@pytest.fixture(scope="session")
def redis_url() -> Generator[str]:
    """A Redis of this test run's own; tests must use keys of their own, for they share it."""
    if given := _GIVEN["NEARHIT_TEST_REDIS"]:
        yield given
        return
    with redis_server() as url:
        yield url


@contextmanager
def redis_server(port: int | None = None) -> Generator[str]:
    """Start redis-server without persistence; yields its URL. `port`: to come back where it was."""
    binary = program("redis-server")
    port = port or spare_port()
    with tempfile.TemporaryDirectory(prefix="nearhit-redis-", ignore_cleanup_errors=True) as folder:
        command = [
            binary,
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            folder,
        ]
        with _running(command, Path(folder) / "log") as process:
            _await_port(port, process, Path(folder) / "log")
            yield f"redis://127.0.0.1:{port}/0"


@pytest.fixture(scope="session")
def postgres_url() -> Generator[str]:
    """An empty PostgreSQL cluster of this test run's own: `postgresql://nearhit@127.0.0.1:<port>/postgres`."""
    if given := _GIVEN["NEARHIT_TEST_POSTGRES"]:
        yield given
        return
    with postgres_server() as url:
        yield url


@contextmanager
def postgres_server() -> Generator[str]:
    """Run initdb and postgres (as the user `postgres` when root, for it refuses root); yields the URL."""
    initdb = program("initdb", folders=("usr/lib/postgresql/*/bin/initdb",))
    as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
    port = spare_port()
    with _large_folder("nearhit-postgres-") as folder:
        if as_user:
            account = pwd.getpwnam("postgres")
            os.chown(folder, account.pw_uid, account.pw_gid)
        data = f"{folder}/data"
        made = [*as_user, initdb, "-D", data, "-U", "nearhit", "-A", "trust", "-N", "-E", "UTF8", "--locale=C"]
        subprocess.run(made, check=True, capture_output=True, cwd="/", timeout=60)
        # A hundred databases of seconds' life: nobody needs them on disk, tidied up or analysed.
        quick = ("fsync=off", "full_page_writes=off", "autovacuum=off", "checkpoint_timeout=1h", "max_wal_size=4GB")
        chosen = [part for setting in (*quick, "max_connections=200") for part in ("-c", setting)]
        where = ["-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", folder]
        command = [*as_user, initdb.with_name("postgres"), *where, *chosen]
        # It goes as it stands: to write a hundred databases out in order takes ten seconds at the end of every run.
        with _running(command, Path(folder) / "log", signal.SIGQUIT) as process:
            _await_port(port, process, Path(folder) / "log")
            until = time.monotonic() + _PATIENCE  # it listens before it lets anybody in
            while "ready to accept" not in (Path(folder) / "log").read_text() and time.monotonic() < until:
                time.sleep(0.05)
            yield f"postgresql://nearhit@127.0.0.1:{port}/postgres"


@contextmanager
def _large_folder(prefix: str) -> Generator[str]:
    """A throw-away folder of a hundred thousand files: `rm` has them gone in a fifth of the time."""
    folder = tempfile.mkdtemp(prefix=prefix)
    try:
        yield folder
    finally:
        subprocess.run(["rm", "-rf", folder], check=False)


@contextmanager
def _running(
    command: list[str | Path], log: Path, end: signal.Signals = signal.SIGINT
) -> Generator[subprocess.Popen[bytes]]:
    with (
        log.open("wb") as out,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/") as process,
    ):
        try:
            yield process
        finally:
            process.send_signal(end)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _await_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"server did not open port {port}: {log.read_text('utf-8', 'replace')[-2_000:]}")
