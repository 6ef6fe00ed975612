"""Clients that are answered before they have sent everything: who sends on at a fair speed is told, others are cut."""

import asyncio
import socket
import time
from pathlib import Path

import pytest

from gateway.server_limits import Limits
from tests.flow.edge_rig import MAX_BODY, Client, connected, post, serving

QUICK = Limits(header_timeout=0.5, body_timeout=0.5, linger=0.5, discard=5.0)
_LARGE = post(b"x" * (2 * MAX_BODY), "connection: close")
_MALFORMED = b"GET / HTTP/1.1\r\nhost: t\r\nx : y\r\n\r\n" + b"x" * MAX_BODY


def _sent_slowly(port: int, request: bytes, seconds: float) -> bytes:
    """The beginning of the answer, for a client that looks for it only when it has sent all."""
    pieces = 16
    size = -(-len(request) // pieces)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        for at in range(0, len(request), size):
            client.sendall(request[at : at + size])
            time.sleep(seconds / pieces)
        return client.recv(12)


@pytest.mark.parametrize(("request_bytes", "status"), [(_LARGE, b"413"), (_MALFORMED, b"400")], ids=["413", "400"])
async def test_who_goes_on_sending_for_longer_than_silence_is_borne_is_told(
    tmp_path: Path, request_bytes: bytes, status: bytes
) -> None:
    """A line that is slower than loopback: the connection was cut after 2 or 10 s, and its answer lost with it."""
    async with serving(tmp_path, QUICK) as server:
        told = await asyncio.to_thread(_sent_slowly, server.port, request_bytes, 2.0)
    assert told.endswith(status)


@pytest.mark.parametrize(("piece", "pause"), [(b"x", 0.05), (b"x" * 65_536, 0.01)], ids=["drip", "flood"])
async def test_who_never_ends_is_cut(tmp_path: Path, piece: bytes, pause: float) -> None:
    """A refused client holds a connection for a while only, however it sends."""
    limits = Limits(linger=0.3, discard=1.0)
    async with serving(tmp_path, limits) as server, connected(server.port) as client:
        await client.send(post(b"x", "connection: close", f"content-length: {1 << 40}"))
        assert (await client.answer()).status == 413
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(_send_for_ever(client, piece, pause), 60)


async def _send_for_ever(client: Client, piece: bytes, pause: float) -> None:
    while True:
        await client.send(piece)
        await asyncio.sleep(pause)
