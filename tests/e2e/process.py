"""`nearhit serve` and `nearhit scripted` as processes of their own, on spare ports, ended by the pid we started."""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import httpx
import pytest

from gateway.cli import main
from tests import empty_database
from tests.services import spare_port

NEARHIT = Path(sys.executable).with_name("nearhit")
WITHOUT_ENCODER = [sys.executable, "-m", "tests.e2e.without_encoder"]
ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


class Process:
    """A running command. `home` is its NEARHIT_HOME, `log` where its output goes."""

    def __init__(self, command: list[str], home: Path, port: int, **env: str) -> None:
        """`command`: with its program."""
        self.home = home
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.log = home / "output.log"
        home.mkdir(parents=True, exist_ok=True)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("NEARHIT_", "COV_"))}
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                env={**kept, "NEARHIT_HOME": str(home), "HF_HUB_OFFLINE": "1", **env},
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=home,
                start_new_session=True,
            )

    def wait(self, path: str = "/health/ready") -> None:
        """Until `path` answers 200."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(f"the process ended: {self.log.read_text()[-3000:]}")
            try:
                if httpx.get(self.url + path, timeout=2).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        raise AssertionError(f"{path} never answered 200: {self.log.read_text()[-3000:]}")

    def stop(self) -> int:
        """SIGTERM, and what it ended with."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def kill(self) -> None:
        """SIGKILL to the process and every child it started: a power cut as far as they can tell."""
        # Workers have sessions of their own: left alone they would be asked to end, and finish their answers first.
        children = _children(self.process.pid)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self.process.wait(60)

    def workers(self) -> list[int]:
        """Process ids of the gateway's workers."""
        command = f"serve_child {self.process.pid} gateway.server"
        return [int(pid) for pid in subprocess.check_output(["pgrep", "-f", command]).split()]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A `nearhit` command against the same home."""
        return nearhit(self.home, *arguments)


def _children(pid: int) -> list[int]:
    try:
        told = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    except OSError:
        return []
    return [found for child in map(int, told) for found in (child, *_children(child))]


def nearhit(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A `nearhit` command against a home, and what it said, in this process: a start takes longer than a command."""
    said, complained = io.StringIO(), io.StringIO()
    status: object = 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(complained):
        for name in [name for name in os.environ if name.startswith("NEARHIT_")]:
            patch.delenv(name)
        patch.setenv("NEARHIT_HOME", str(home))
        patch.chdir(home)
        try:
            main(list(arguments))
        except SystemExit as ended:
            status = ended.code or 0
    assert isinstance(status, int), status
    return subprocess.CompletedProcess(arguments, status, said.getvalue(), complained.getvalue())


def nearhit_apart(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The same in a process of its own, as an operator has it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("NEARHIT_")}
    return subprocess.run(
        [str(NEARHIT), *arguments],
        env={**env, "NEARHIT_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        cwd=home,
        check=False,
    )


@contextmanager
def serving(
    home: Path, *, config: str = "", ready: str = "/health/ready", **env: str
) -> Generator[Process, None, None]:
    """`nearhit serve` with a simulated engine and a known admin key, unless `config` or `env` say otherwise."""
    with _serving([str(NEARHIT)], home, config, ready, env) as process:
        yield process


@contextmanager
def serving_lightly(home: Path, *, config: str, **env: str) -> Generator[Process, None, None]:
    """The same on a database that is migrated already and without the encoder, which takes three seconds to load.

    For tests of neither. Such a gateway lives and answers, and never calls itself ready.
    """
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "nearhit.db").exists():
        empty_database.put(home / "nearhit.db")
    found = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with _serving(WITHOUT_ENCODER, home, config, "/health/live", {"PYTHONPATH": found, **env}) as process:
        yield process


@contextmanager
def _serving(
    program: list[str], home: Path, config: str, ready: str, env: dict[str, str]
) -> Generator[Process, None, None]:
    home.mkdir(parents=True, exist_ok=True)
    (home / "nearhit.yaml").write_text(config or "engines: {local: {model: sim}}\n")
    port = spare_port()
    settings = {"NEARHIT_SERVER__PORT": str(port), "NEARHIT_ADMIN_KEY": "sk-e2e-admin-key-long-enough", **env}
    process = Process([*program, "serve"], home, port, **settings)
    try:
        process.wait(ready)
        yield process
    finally:
        process.kill()


@contextmanager
def scripted(home: Path, *options: str) -> Generator[Process, None, None]:
    """`nearhit scripted`, with its bill in `home/bill.jsonl`."""
    port = spare_port()
    bill = home / "bill.jsonl"
    process = Process([str(NEARHIT), "scripted", "--port", str(port), "--bill", str(bill), *options], home, port)
    try:
        process.wait("/stats")
        yield process
    finally:
        process.kill()


def new_key(process: Process, team: str = "acme", project: str = "app") -> str:
    """An application key made over the control plane."""
    made = httpx.post(
        f"{process.url}/api/v1/keys",
        json={"name": "e2e", "team": team, "project": project},
        headers={"authorization": "Bearer sk-e2e-admin-key-long-enough"},
        timeout=10,
    )
    assert made.status_code < 300, made.text
    return made.json()["key"]
