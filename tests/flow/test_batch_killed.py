"""A worker that is killed in the middle of a batch: another one goes on, and nothing is run or charged twice."""

import asyncio
import socket
import sqlite3
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from gateway.serve_home import take_first_key
from tests import empty_database
from tests.flow.dialect_upstream import Script, scripted
from tests.flow.edge_process import ask_patiently, ending, spawn

ADMIN = "sk-test-admin-key-of-some-length"
CHAT = "/v1/chat/completions"
LINES = 12
FLYING = 3
encode = msgspec.json.encode


class Door:
    """A worker in a process of its own, and a client of it."""

    def __init__(self, process: Any, port: int, client: aiohttp.ClientSession) -> None:
        self.process, self.url, self.client = process, f"http://127.0.0.1:{port}", client

    async def ask(self, method: str, path: str, key: str, **given: Any) -> bytes:
        headers = {"authorization": f"Bearer {key}"}
        async with self.client.request(method, self.url + path, headers=headers, **given) as answer:
            raw = await answer.read()
            assert answer.status < 300, raw
            return raw


@contextmanager
def served(home: Path, upstream: str, more: dict[str, str] | None = None) -> Generator[tuple[Any, int]]:
    """`more`: of the environment, instead of what stands here."""
    lab = {"lab": {"kind": "openai", "base_url": upstream, "api_key": "none", "billing": "stops-on-close"}}
    variables = {
        "NEARHIT_ADMIN_KEY": ADMIN,
        "NEARHIT_PROVIDERS": encode(lab).decode(),
        "NEARHIT_ENGINES": '{"local": {"model": "sim"}}',
        "NEARHIT_CACHE__MODE": "off",
        "NEARHIT_KEPT__BATCH_IN_FLIGHT": str(FLYING),
        **(more or {}),
    }
    if not (home / "nearhit.db").exists():
        empty_database.put(home / "nearhit.db")
    with socket.create_server(("127.0.0.1", 0), backlog=64) as sock:
        arguments = ["-m", "gateway.server", "--fd", str(sock.fileno()), "--admin", str(home / "run" / "admin.sock")]
        with ending(spawn(arguments, home, variables, (sock.fileno(),))) as process:
            yield process, sock.getsockname()[1]


async def opened(process: Any, port: int, client: aiohttp.ClientSession) -> Door:
    await ask_patiently(port, b"GET /health/live HTTP/1.1\r\nhost: t\r\n\r\n", process)
    return Door(process, port, client)


async def begun(door: Door, key: str) -> str:
    """A batch of different questions; `lab/m` has a price."""
    rows = [
        {"custom_id": str(n), "method": "POST", "url": CHAT,
         "body": {"model": "lab/m", "messages": [{"role": "user", "content": f"question {n}"}]}}
        for n in range(LINES)
    ]  # fmt: skip
    form = aiohttp.FormData()
    form.add_field("purpose", "batch")
    form.add_field("file", b"\n".join(map(encode, rows)), filename="in.jsonl")
    file = msgspec.json.decode(await door.ask("POST", "/v1/files", key, data=form))
    asked = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
    return msgspec.json.decode(await door.ask("POST", "/v1/batches", key, json=asked))["id"]


async def heard(script: Script, count: int) -> None:
    async with asyncio.timeout(60):
        while len(script.sent) < count:  # noqa: ASYNC110 - the upstream counts, it does not tell
            await asyncio.sleep(0.01)


async def finished(door: Door, key: str, batch_id: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            batch = msgspec.json.decode(await door.ask("GET", f"/v1/batches/{batch_id}", key))
            if batch["status"] not in ("validating", "in_progress", "finalizing"):
                return batch
            await asyncio.sleep(0.1)


async def content(door: Door, key: str, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    raw = await door.ask("GET", f"/v1/files/{file_id}/content", key)
    return [msgspec.json.decode(line) for line in raw.splitlines()]


async def test_a_batch_survives_kill_9(tmp_path: Path) -> None:
    """Every request is sent at most once and charged at most once, and each is accounted for in a file."""
    (tmp_path / "run").mkdir()
    async with scripted() as (script, upstream), aiohttp.ClientSession() as client:
        with served(tmp_path, upstream.url) as (process, port):
            door = await opened(process, port, client)
            key = take_first_key(tmp_path)
            assert key is not None
            price = {"input_usd": "1.00", "output_usd": "2.00"}
            await door.ask("PUT", "/api/v1/prices/lab/m", ADMIN, json=price)
            script.wait, script.at_once = asyncio.Event(), 4  # after them nothing is answered
            batch_id = await begun(door, key)
            await heard(script, 6)
            await asyncio.sleep(0.3)
            process.kill()
            process.wait()
        script.wait.set()
        with served(tmp_path, upstream.url) as (process, port):
            door = await opened(process, port, client)
            batch = await finished(door, key, batch_id)
            good = await content(door, key, batch["output_file_id"])
            bad = await content(door, key, batch["error_file_id"])
    assert batch["status"] == "completed"
    sent = Counter(body["messages"][0]["content"] for body in script.sent)
    assert set(sent.values()) == {1}, "sent once each"
    assert len(sent) == LINES
    assert {one["custom_id"] for one in good} | {one["custom_id"] for one in bad} == set(map(str, range(LINES)))
    assert len(good) + len(bad) == LINES
    assert 1 <= len(bad) <= FLYING
    assert {one["error"]["code"] for one in bad} == {"interrupted"}
    assert batch["request_counts"] == {"total": LINES, "completed": len(good), "failed": len(bad)}
    with sqlite3.connect(tmp_path / "nearhit.db") as database:
        charged = database.execute(
            "SELECT request_id, count(*) FROM entry WHERE source <> 'void' GROUP BY 1"
        ).fetchall()
    assert len(charged) == LINES
    assert {count for _, count in charged} == {1}
