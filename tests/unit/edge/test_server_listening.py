"""Who waits at the socket is taken in, however long the turns of the loop are, and whatever runs out."""

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import cast

import pytest
import uvloop

from gateway import server_listening
from gateway.server_listening import Listener
from tests.waiting import until

HOST = "127.0.0.1"


class Counted(asyncio.Protocol):
    """Says hello, and in which turn of the loop each connection came."""

    turn = 0

    def __init__(self, came: list[int]) -> None:
        self._came = came

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._came.append(Counted.turn)
        cast("asyncio.Transport", transport).write(b"hello")  # uvloop's own says so without inheriting


class OnceFull(socket.socket):
    """A listening socket whose process has no descriptor left, the first time it is asked."""

    refused = 0

    def accept(self) -> tuple[socket.socket, object]:
        if not self.refused:
            self.refused += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def bound(kind: type[socket.socket] = socket.socket) -> socket.socket:
    sock = kind(socket.AF_INET, socket.SOCK_STREAM)
    sock.bind((HOST, 0))
    return sock


def connected(port: int, number: int) -> list[socket.socket]:
    return [socket.create_connection((HOST, port), 30) for _ in range(number)]


async def _queue_is_emptied() -> None:
    came: list[int] = []
    listener = Listener(sock := bound(), lambda: Counted(came), 256)
    port = sock.getsockname()[1]
    clients = connected(port, 100)  # the loop stands still meanwhile: the kernel has them all
    Counted.turn = 0
    while len(came) < 100 and Counted.turn < 50:
        Counted.turn += 1
        await asyncio.sleep(0)
    assert len(came) == 100
    assert len(set(came)) <= 3
    listener.close()
    await listener.wait_closed()
    for client in clients:
        assert client.recv(5) == b"hello"
        client.close()
    with pytest.raises(ConnectionRefusedError):
        connected(port, 1)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_all_who_wait_are_taken_in_within_a_few_turns(run: Callable[..., None]) -> None:
    """One a turn, as libuv does it, let the kernel's queue run over: refused clients came again seconds later."""
    run(_queue_is_emptied())


async def test_where_descriptors_have_run_out_it_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener that gives up would leave a gateway that is up and never answers again."""
    monkeypatch.setattr(server_listening, "PAUSE", 0.01)
    came: list[int] = []
    sock = bound(OnceFull)
    listener = Listener(sock, lambda: Counted(came), 16)
    (client,) = connected(sock.getsockname()[1], 1)
    await until(lambda: len(came) == 1)
    assert isinstance(sock, OnceFull)
    assert sock.refused == 1
    listener.close()
    await listener.wait_closed()
    client.close()
