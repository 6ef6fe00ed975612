"""How long a command waits for a running gateway: as long as that works, and not a moment once it is gone."""

import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from gateway.cli import connection
from gateway.cli.wrong import Wrong
from gateway.settings import Settings

ANSWER = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 16\r\n\r\n{"agrees": true}'


@contextmanager
def gateway(home: Path, answer: Callable[[socket.socket], None]) -> Generator[None, None, None]:
    """An admin socket that takes one request and answers as it is told to."""
    (home / "run").mkdir(parents=True)
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as listening:
        listening.bind(str(home / "run" / "admin.sock"))
        listening.listen()

        def serve() -> None:
            probe, _ = listening.accept()  # whether anybody is there
            probe.close()
            asked, _ = listening.accept()
            with asked:
                asked.recv(65_536)
                answer(asked)

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield
        finally:
            serving.join()


def test_a_check_of_large_books_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`nearhit ledger verify` over 300,000 requests took minutes, and the command had given up after one."""
    monkeypatch.setattr(connection, "_TIMEOUT", 0.05)

    def late(asked: socket.socket) -> None:
        time.sleep(0.3)
        asked.sendall(ANSWER)

    with gateway(tmp_path, late), connection.control(Settings(home=tmp_path)) as control:
        assert control.ask("POST", "/api/v1/ledger/verify") == {"agrees": True}


@pytest.mark.parametrize(
    ("method", "path", "told"),
    [
        ("GET", "/api/v1/months", "did not answer"),
        # A close was told as failed whose month was sealed: who asks for a change must look before asking again.
        ("POST", "/api/v1/months/2026-10/close", "may be done all the same; look before you ask again"),
    ],
)
def test_a_gateway_that_dies_is_not_waited_for(tmp_path: Path, method: str, path: str, told: str) -> None:
    """Patience is for one that works; a socket that closed tells at once that nobody does."""
    with (
        gateway(tmp_path, socket.socket.close),
        connection.control(Settings(home=tmp_path)) as control,
        pytest.raises(Wrong, match=told),
    ):
        control.ask(method, path)
