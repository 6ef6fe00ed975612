"""Clients that take their time on purpose, against a real gateway process: everybody else is served."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from tests.e2e.test_dashboard import ADMIN_KEY, worker
from tests.flow.edge_rig import Client, connected, post

HALF_HEADS, HALF_BODIES = 300, 200


@asynccontextmanager
async def slow_clients(port: int, key: str) -> AsyncGenerator[list[Client], None]:
    """500 connections whose requests never come to an end: heads without one, and bodies of a known key."""
    body = b'{"model": "local/sim", "messages": ['
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nx-slow: "
    begun = post(body, f"authorization: Bearer {key}", "content-length: 4000", path="/v1/chat/completions")
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(port)) for _ in range(HALF_HEADS + HALF_BODIES)]
        for number, client in enumerate(clients):
            await client.send(head if number < HALF_HEADS else begun)
        dripping = asyncio.get_running_loop().create_task(_drip(clients))
        try:
            yield clients
        finally:
            dripping.cancel()


async def _drip(clients: list[Client]) -> None:
    """A byte to each, again and again; the gateway may have hung up on them by now."""
    while True:
        for client in clients:
            if not client.writer.is_closing():
                client.writer.write(b" ")
        await asyncio.sleep(0.25)


async def _said(client: Client) -> bytes:
    """The beginning of what it was told so far."""
    with contextlib.suppress(TimeoutError):
        return (await asyncio.wait_for(client.reader.read(12), 0.001))[:12]
    return b""


async def test_500_slow_clients_keep_nobody_from_being_answered(tmp_path: Path) -> None:
    """A slow-loris costs its sender a socket each; the gateway must go on answering everyone, without one error."""
    with worker(tmp_path / "home") as url:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
            admin = {"authorization": f"Bearer {ADMIN_KEY}"}
            made = await client.post("/api/v1/keys", json={"name": "k", "team": "t"}, headers=admin)
            key = str(made.json()["key"])

            async def ask(number: int) -> int:
                body = {"model": "local/sim", "messages": [{"role": "user", "content": f"question {number}"}]}
                headers = {"authorization": f"Bearer {key}"}
                return (await client.post("/v1/chat/completions", json=body, headers=headers)).status_code

            async with slow_clients(int(url.rsplit(":", 1)[1]), key) as slow:
                statuses = [await asyncio.gather(*(ask(10 * turn + n) for n in range(10))) for turn in range(5)]
                assert {status for turn in statuses for status in turn} == {200}
                said = [await _said(one) for one in slow]
                assert set(said) <= {b"", b"HTTP/1.1 408"}
                assert await ask(99) == 200
