"""A worker as a process: it serves on the sockets it was given, drains, and says so when it cannot start."""

import asyncio
import signal
import stat
import subprocess
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.flow.edge_process import ask_patiently, worker
from tests.flow.edge_rig import Client, ask, connected, decode, post
from tests.waiting import until


class Running(NamedTuple):
    """A worker that answers."""

    process: subprocess.Popen[str]
    port: int
    admin: Path


SERVERS = ["uvicorn", "granian"]


@pytest.fixture(scope="module", params=SERVERS)
def lasting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One for all tests that leave it running, for the start is most of what they take."""
    home = tmp_path_factory.mktemp("lasting")
    with worker(home, NEARHIT_SERVER__SERVER=request.param) as (process, port):
        assert asyncio.run(ask_patiently(port, post(), process)).status == 200
        yield Running(process, port, home / "admin.sock")


@pytest.fixture(params=SERVERS)
async def running(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Running, None]:
    """One of the test's own, to be ended by it."""
    with worker(tmp_path, NEARHIT_SERVER__SERVER=request.param) as (process, port):
        assert (await ask_patiently(port, post(), process)).status == 200
        yield Running(process, port, tmp_path / "admin.sock")


async def test_both_servers_answer_the_same(lasting: Running) -> None:
    """granian is a choice, so it is held to the same answers."""
    assert decode((await ask(lasting.port, post())).body)["body"] == {"a": 1}
    assert (await ask(lasting.port, post(b"nonsense"))).status == 400
    assert (await ask(lasting.port, post(b"{}", "content-encoding: br"))).status == 415
    assert (await ask(lasting.port, post(b"x" * ((1 << 20) + 1)))).status == 413
    streamed = await ask(lasting.port, b"GET /stream HTTP/1.1\r\nhost: t\r\n\r\n")
    assert streamed.body.endswith(b"data: [DONE]\n\n")
    old = await ask(lasting.port, b"GET /stream HTTP/1.0\r\nhost: t\r\n\r\n")
    assert "transfer-encoding" not in old.headers
    async with connected(lasting.port) as client:
        for _ in range(3):
            await client.send(post())
            assert (await client.answer()).status == 200


HEADS = [
    (b"host: a\r\nhost: b\r\n", 400, "malformed_request"),
    (b"host: a\r\nx-long: " + b"x" * 40_000 + b"\r\n", 431, "headers_too_large"),
]


@pytest.mark.parametrize(("head", "status", "code"), HEADS)
async def test_both_servers_refuse_heads_that_are_none(lasting: Running, head: bytes, status: int, code: str) -> None:
    """Two hosts are two requests to whoever stands in front; granian answered both, and took heads of 400 KB."""
    async with connected(lasting.port) as client:
        await client.send(b"GET /health/ready HTTP/1.1\r\n" + head + b"\r\n")
        answer = await client.answer()
        assert (answer.status, answer.code) == (status, code)
        assert answer.headers["x-request-id"]
        assert await client.closed() == b""


async def test_the_control_planes_socket_is_the_owners_alone(lasting: Running) -> None:
    """Whoever can open it is an administrator; over TCP nobody is."""
    assert stat.S_IMODE(lasting.admin.stat().st_mode) == 0o600
    reader, writer = await asyncio.open_unix_connection(str(lasting.admin))
    client = Client(reader, writer)
    await client.send(post())
    assert decode((await client.answer()).body)["unix"] is True
    writer.close()
    assert decode((await ask(lasting.port, post())).body)["unix"] is False


async def test_sigterm_finishes_what_was_begun(running: Running) -> None:
    """A deployment must not cut an answer that somebody pays for."""
    async with connected(running.port) as client:
        await client.send(b"GET /stream?20,0.05,1 HTTP/1.1\r\nhost: t\r\n\r\n")
        await client.reader.readuntil(b"data: 1\n\n")
        running.process.send_signal(signal.SIGTERM)
        rest = await client.closed()
        assert b"data: 19" in rest
        assert b"[DONE]" in rest
    assert await asyncio.to_thread(running.process.wait, 60) == 0
    assert not running.admin.exists()


@pytest.mark.parametrize("server", SERVERS)
async def test_what_outlasts_the_drain_is_cut_without_an_end_mark(tmp_path: Path, server: str) -> None:
    """Half an answer must never look like a whole one, and the process must end."""
    with worker(tmp_path, NEARHIT_SERVER__DRAIN_TIMEOUT="1", NEARHIT_SERVER__SERVER=server) as (process, port):
        await ask_patiently(port, post(), process)
        async with connected(port) as client:
            await client.send(b"GET /stream?1000,0.05,1 HTTP/1.1\r\nhost: t\r\n\r\n")
            await client.reader.readuntil(b"data: 1\n\n")
            process.send_signal(signal.SIGTERM)
            rest = await client.closed()
            assert b"[DONE]" not in rest
            assert not rest.endswith(b"0\r\n\r\n")
        told, _ = await asyncio.to_thread(process.communicate, None, 60)
        assert process.returncode == 0
        assert "Traceback" not in told


@pytest.mark.parametrize("server", SERVERS)
async def test_who_outlasts_the_drain_without_an_answer_is_told_to_ask_again(tmp_path: Path, server: str) -> None:
    """A 503 is asked again elsewhere; with granian it was the 502 of whatever the end of the process broke off."""
    with worker(tmp_path, NEARHIT_SERVER__DRAIN_TIMEOUT="1", NEARHIT_SERVER__SERVER=server) as (process, port):
        await ask_patiently(port, post(), process)
        async with connected(port) as client:
            await client.send(b"GET /never HTTP/1.1\r\nhost: t\r\n\r\n")
            await ask(port, post())
            process.send_signal(signal.SIGTERM)
            answer = await client.answer()
            assert (answer.status, answer.code) == (503, "shutting_down")
        assert await asyncio.to_thread(process.wait, 60) == 0


async def test_nobody_is_let_in_who_would_wait_for_a_worker_that_ends(running: Running) -> None:
    """Who comes during the drain asks elsewhere at once; with granian they were connected and never heard of again."""

    async def refused() -> bool:
        try:
            async with connected(running.port):
                return False
        except (ConnectionRefusedError, ConnectionResetError):  # reset: it was in the queue as the door closed
            return True

    async with connected(running.port) as client:
        await client.send(b"GET /stream?1000,0.05,1 HTTP/1.1\r\nhost: t\r\n\r\n")
        await client.reader.readuntil(b"data: 1\n\n")
        running.process.send_signal(signal.SIGTERM)
        await until(refused, 4)
        assert b"data:" in await client.reader.readuntil(b"\n\n")
    assert await asyncio.to_thread(running.process.wait, 60) == 0


async def test_a_client_that_leaves_does_not_hold_up_the_end(running: Running) -> None:
    """An idle connection in a pool is closed at once."""
    async with connected(running.port) as client:
        await client.send(post())
        await client.answer()
        running.process.send_signal(signal.SIGTERM)
        assert await client.closed() == b""
    assert await asyncio.to_thread(running.process.wait, 60) == 0


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("NEARHIT_SERVER__PORT", "not a port", "server.port"),
        ("NEARHIT_SERVER__MAX_IN_FLIGHT", "13", "brings bad luck"),
        ("NEARHIT_SERVER__MAX_IN_FLIGHT", "15", "cannot start: there is no room"),
    ],
)
async def test_what_another_try_cannot_mend_ends_the_worker_for_good(
    tmp_path: Path, name: str, value: str, message: str
) -> None:
    """Its own exit status tells the supervisor that another try is of no use."""
    with worker(tmp_path, **{name: value}) as (process, _):
        told, _ = await asyncio.to_thread(process.communicate, None, 60)
        assert process.returncode == 78
        assert message in told
        assert "Traceback" not in told
