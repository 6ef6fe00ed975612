"""`nearhit serve` as a process tree: one port, several processes, none of which may be lost or left behind."""

import asyncio
import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path

import psutil
import pytest

from tests.flow.edge_process import ask_patiently, ending, spawn
from tests.flow.edge_rig import ask, connected, post

ARGUMENTS = ["-m", "tests.flow.edge_process"]
ANY_PORT = {"NEARHIT_SERVER__PORT": "0", "NEARHIT_ENGINES": "{}"}


class Gateway:
    """The supervisor's process and what it has said so far."""

    def __init__(self, process: subprocess.Popen[str], home: Path) -> None:
        self.process = process
        self.home = home
        self.said = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line

    async def until(self, true: Callable[[], bool], within: float = 60.0) -> None:
        end = time.monotonic() + within
        while not true():
            assert time.monotonic() < end, self.said
            await asyncio.sleep(0.05)

    @property
    def port(self) -> int:
        return int((self.home / "run" / "port").read_text())

    def children(self) -> dict[str, psutil.Process]:
        """By the last word of the module they run."""
        found: dict[str, psutil.Process] = {}
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                line = child.cmdline()
                if "gateway.serve_child" in line:
                    found["worker" if "gateway.server" in line else "encoder"] = child
        return found

    def workers(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [child] if "gateway.server" in child.cmdline() else []
        return found

    async def ended(self) -> int:
        status = await asyncio.to_thread(self.process.wait, 60)
        self._reader.join(5)
        return status


def lives(process: psutil.Process) -> bool:
    """An orphan that has ended may wait long for somebody to read its status."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Generator[Gateway, None, None]:
    home = tmp_path_factory.mktemp("standing")
    with ending(spawn(ARGUMENTS, home, ANY_PORT)) as process:
        yield Gateway(process, home)


@pytest.fixture
async def standing(started: Gateway) -> Gateway:
    """One gateway for those who leave it as it was."""
    await started.until(lambda: "nearhit is ready" in started.said and len(started.children()) == 2)
    return started


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncGenerator[Gateway, None]:
    with ending(spawn(ARGUMENTS, tmp_path, ANY_PORT)) as process:
        running = Gateway(process, tmp_path)
        await running.until(lambda: "nearhit is ready" in running.said)
        yield running


async def test_it_says_what_a_newcomer_needs(standing: Gateway) -> None:
    """Address first, then keys, once, when everything answers."""
    first = standing.said.splitlines()[0]
    assert first == f"nearhit: listening on http://127.0.0.1:{standing.port}"
    assert f"http://127.0.0.1:{standing.port}/v1" in standing.said
    assert standing.said.count("sk-nh-first  (shown this once)") == 1
    assert not (standing.home / "run" / "first_key").exists()
    assert (await ask(standing.port, post())).status == 200


async def test_secrets_are_for_the_owner_alone(standing: Gateway) -> None:
    """Made at the first start, never printed but for the keys."""
    for name in ("secret", "admin_key", "lock"):
        assert (standing.home / name).stat().st_mode & 0o777 == 0o600
    assert (standing.home / "secret").read_text().strip() not in standing.said


@pytest.mark.parametrize("name", ["worker", "encoder"])
async def test_what_is_killed_is_started_again(standing: Gateway, name: str) -> None:
    """kill -9 of one process is an inconvenience."""
    before = standing.children()[name]
    before.kill()
    await standing.until(lambda: standing.children().get(name, before).pid != before.pid)
    assert (await ask_patiently(standing.port, post())).status == 200
    await standing.until(lambda: f"{name}{' 0' if name == 'worker' else ''} was killed by SIGKILL" in standing.said)


async def test_one_of_two_workers_dies_and_the_other_serves(tmp_path: Path) -> None:
    """They share the listening socket: nobody who connects afterwards notices."""
    variables = ANY_PORT | {
        "NEARHIT_SERVER__WORKERS": "2",
        "NEARHIT_DATABASE": "postgresql://nobody@127.0.0.1:1/none",  # the small application opens neither
        "NEARHIT_REDIS": "redis://127.0.0.1:1",
    }
    with ending(spawn(ARGUMENTS, tmp_path, variables)) as process:
        running = Gateway(process, tmp_path)
        await running.until(lambda: "nearhit is ready" in running.said)
        await running.until(lambda: len(running.workers()) == 2)
        first = running.workers()[0]
        first.kill()
        answers = [await ask_patiently(running.port, post()) for _ in range(50)]
        assert {answer.status for answer in answers} == {200}
        await running.until(lambda: len(running.workers()) == 2 and first.pid not in {w.pid for w in running.workers()})


async def test_sigterm_drains_workers_before_what_they_need(gateway: Gateway) -> None:
    """The encoder must be there until the last answer is."""
    encoder = gateway.children()["encoder"]
    port = gateway.port
    async with connected(port) as client:
        await client.send(b"GET /stream?20,0.05,1 HTTP/1.1\r\nhost: t\r\n\r\n")
        await client.reader.readuntil(b"data: 1\n\n")
        gateway.process.send_signal(signal.SIGTERM)
        await client.reader.readuntil(b"data: 15\n\n")
        assert lives(encoder)
        assert b"[DONE]" in await client.closed()
    assert await gateway.ended() == 0
    assert not lives(encoder)
    assert not (gateway.home / "run" / "port").exists()
    with pytest.raises(ConnectionRefusedError):
        await ask(port, post())


@pytest.mark.parametrize("quick", [False, True])
async def test_a_second_signal_hurries(gateway: Gateway, quick: bool) -> None:
    """Ctrl-C twice means now, also when both come before the first was acted on."""
    async with connected(gateway.port) as client:
        await client.send(b"GET /stream?4000,0.05,1 HTTP/1.1\r\nhost: t\r\n\r\n")
        await client.reader.readuntil(b"data: 1\n\n")
        gateway.process.send_signal(signal.SIGTERM)
        if not quick:
            await gateway.until(lambda: "finishing what was begun" in gateway.said)
        gateway.process.send_signal(signal.SIGINT)
        assert b"[DONE]" not in await client.closed()
    assert await gateway.ended() == 0


async def test_a_killed_supervisor_takes_its_children_along_and_can_be_started_again(gateway: Gateway) -> None:
    """An orphaned worker would hold the port and the database; a new start waits for what it still finishes."""
    children = list(gateway.children().values())
    assert len(children) == 2
    async with connected(gateway.port) as client:
        await client.send(b"GET /stream?30,0.05,1 HTTP/1.1\r\nhost: t\r\n\r\n")
        await client.reader.readuntil(b"data: 1\n\n")
        gateway.process.kill()
        gateway.process.wait()
        with ending(spawn(ARGUMENTS, gateway.home, ANY_PORT)) as process:
            again = Gateway(process, gateway.home)
            assert b"[DONE]" in await client.closed()
            await again.until(lambda: "nearhit is ready" in again.said)
    await gateway.until(lambda: not any(lives(child) for child in children))


async def test_a_second_gateway_on_one_home_is_refused(standing: Gateway) -> None:
    """It must say so instead of failing on the database later."""
    with ending(spawn(ARGUMENTS, standing.home, ANY_PORT)) as second:
        told, _ = await asyncio.to_thread(second.communicate, None, 30)
    assert second.returncode == 1
    assert f"process {standing.process.pid}" in told


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"NEARHIT_SERVER__WORKERS": "2"}, "server.workers > 1"),
        ({"NEARHIT_SERVER__MAX_IN_FLIGHT": "13"}, "brings bad luck"),
        ({"NEARHIT_SERVER__MAX_IN_FLIGHT": "14"}, "a bug"),
    ],
)
async def test_what_cannot_start_ends_with_its_reason(tmp_path: Path, variables: dict[str, str], message: str) -> None:
    """A settings error at once, a worker that always crashes after a few tries."""
    with ending(spawn(ARGUMENTS, tmp_path, ANY_PORT | variables)) as process:
        told, _ = await asyncio.to_thread(process.communicate, None, 60)
    assert process.returncode == 1
    assert message in told
    assert "nearhit is ready" not in told
