"""A gateway that is told to end, or to read its file again, while it answers: as clients and operators see it."""

import asyncio
import os
import signal
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import aiohttp
import httpx
import msgspec
import pytest

from gateway.scripted_calls import Options
from gateway.scripted_server import ScriptedServer
from tests.e2e.process import Process, new_key, serving_lightly
from tests.waiting import until

ADMIN = {"authorization": "Bearer sk-e2e-admin-key-long-enough"}
HI = [{"role": "user", "content": "Tell me a long story."}]
# What outlasts a drain: each dialect streamed, and one whole answer.
ASKED = {
    "/v1/chat/completions": {"model": "m", "stream": True, "messages": HI},
    "/v1/messages": {"model": "m", "stream": True, "max_tokens": 1000, "messages": HI},
    "/v1/responses": {"model": "m", "stream": True, "input": "A story."},
    "/chat/completions": {"model": "m", "messages": HI},
}


@asynccontextmanager
async def _slow(home: Path, server: str = "drain_timeout: 1s") -> AsyncGenerator[Process, None]:
    """A gateway in front of an upstream that takes minutes."""
    upstream = ScriptedServer(Options(tokens=1_000, tpot_ms=100))
    port = await upstream.start()
    config = (
        f"server: {{{server}}}\ncache: {{mode: 'off'}}\nengines: {{}}\n"
        f"providers: {{up: {{kind: openai, api_key: none, base_url: 'http://127.0.0.1:{port}/v1'}}}}\n"
        "models: {m: {route: [up/scripted], free: true}}\n"
    )
    try:
        with serving_lightly(home, config=config) as process:
            yield process
    finally:
        await upstream.close()


async def test_what_outlasts_the_drain_is_told_so_in_its_own_dialect(tmp_path: Path) -> None:
    """Streams were cut without a word, whole answers were a 500 that says it is a bug, and each left a traceback."""
    async with _slow(tmp_path) as process, httpx.AsyncClient(base_url=process.url, timeout=60) as client:
        client.headers["authorization"] = f"Bearer {await asyncio.to_thread(new_key, process)}"
        begun = [asyncio.Event() for _ in ASKED]

        async def ask(path: str, started: asyncio.Event) -> tuple[int, str]:
            if not ASKED[path].get("stream"):
                started.set()
            async with client.stream("POST", path, json=ASKED[path]) as answer:
                text = ""
                async for piece in answer.aiter_text():
                    text += piece
                    started.set()
                return answer.status_code, text

        asking = [asyncio.create_task(ask(path, one)) for path, one in zip(ASKED, begun, strict=True)]
        await asyncio.gather(*(one.wait() for one in begun))
        status = await asyncio.to_thread(process.stop)
        chat, message, response, whole = await asyncio.gather(*asking)
    assert status == 0
    assert [one[0] for one in (chat, message, response, whole)] == [200, 200, 200, 503]
    assert all("shutting_down" in one[1] for one in (chat, message, whole))
    assert "[DONE]" not in chat[1]
    assert message[1].rstrip().rpartition("\n\n")[2].startswith("event: error")
    assert "event: response.failed" in response[1]
    with closing(sqlite3.connect(process.home / "nearhit.db")) as books:
        kept = books.execute("SELECT error, client_gone FROM request ORDER BY id").fetchall()
    assert kept == [("shutting_down", 0)] * len(ASKED), "their clients were there"
    assert "Traceback" not in process.log.read_text()


async def test_a_turn_on_a_websocket_that_outlasts_the_drain_is_told_once(tmp_path: Path) -> None:
    """It was told nothing; its connection ended without a close frame, which clients take for a broken network."""
    async with _slow(tmp_path) as process, aiohttp.ClientSession() as session:
        key = await asyncio.to_thread(new_key, process)
        url = process.url.replace("http", "ws") + "/v1/responses"
        async with session.ws_connect(url, headers={"authorization": f"Bearer {key}"}) as socket:
            await socket.send_json({"type": "response.create", "model": "m", "input": "A story."})
            events = [await socket.receive_json()]
            stopping = asyncio.create_task(asyncio.to_thread(process.stop))
            while (message := await socket.receive(timeout=60)).type is aiohttp.WSMsgType.TEXT:
                events.append(message.json())
            assert socket.close_code == 1012
        assert await stopping == 0
    kinds = [event["type"] for event in events]
    assert (kinds[-1], kinds.count("response.failed"), "error" in kinds) == ("response.failed", 1, False)
    assert "Traceback" not in process.log.read_text()


async def test_a_file_that_is_gone_or_empty_takes_nothing_away(tmp_path: Path) -> None:
    """Read at the moment somebody replaces it, it took every upstream, model and budget out of a running gateway."""
    async with _slow(tmp_path) as process, httpx.AsyncClient(base_url=process.url, timeout=60) as client:
        file = tmp_path / "nearhit.yaml"
        written = file.read_text()
        for now in (None, "", " \n"):
            if now is None:
                file.unlink()
            else:
                file.write_text(now)
            told = await client.post("/api/v1/config/reload", headers=ADMIN)
            assert (told.status_code, told.json()["error"]["code"]) == (400, "invalid_configuration"), now
            assert "nearhit.yaml" in told.json()["error"]["message"]
            models = (await client.get("/v1/models", headers=ADMIN)).json()["data"]
            assert "m" in [model["id"] for model in models], now
            process.process.send_signal(signal.SIGHUP)  # the same by signal, which nobody answers
            file.write_text(written + "# the same\n")
            assert (await client.post("/api/v1/config/reload", headers=ADMIN)).json()["changed"] == [], now


async def test_a_gateway_under_nohup_reads_its_file_again_too(tmp_path: Path) -> None:
    """SIGHUP was ignored there: a reload over HTTP was called done, and one of several workers had done it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        async with _slow(tmp_path) as process, httpx.AsyncClient(base_url=process.url, timeout=60) as client:
            file = tmp_path / "nearhit.yaml"
            file.write_text(
                file.read_text().replace("models: {", "models: {later: {route: [up/scripted], free: true}, ")
            )
            process.process.send_signal(signal.SIGHUP)

            async def known() -> bool:
                models = (await client.get("/v1/models", headers=ADMIN)).json()["data"]
                return "later" in [model["id"] for model in models]

            await until(known)
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_a_worker_that_stands_still_is_replaced(tmp_path: Path) -> None:
    """Nobody noticed: its clients waited for ever, and so did whoever came after."""
    async with _slow(tmp_path, "hang_timeout: 5s") as process, httpx.AsyncClient(timeout=60) as client:
        client.headers["authorization"] = f"Bearer {await asyncio.to_thread(new_key, process)}"
        asked = {"model": "m", "messages": HI, "stream": True}
        async with client.stream("POST", f"{process.url}/v1/chat/completions", json=asked) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            (stopped,) = process.workers()
            os.kill(stopped, signal.SIGSTOP)
            with pytest.raises(httpx.HTTPError):
                async for _ in lines:
                    pass
        # Over a connection that waits in the backlog until somebody takes it.
        assert (await client.get(f"{process.url}/v1/models")).status_code == 200
        assert process.workers() != [stopped]
    assert "worker 0 has stood still for" in process.log.read_text()


async def test_every_process_speaks_json_where_that_is_wanted(tmp_path: Path) -> None:
    """One line of another form in between breaks whoever reads the log as JSON."""
    async with _slow(tmp_path, "log: json") as process:
        os.kill(process.workers()[0], signal.SIGKILL)
        await until(lambda: "starting it again" in process.log.read_text())
        assert await asyncio.to_thread(process.stop) == 0
    events = [msgspec.json.decode(line) for line in process.log.read_text().splitlines()]
    assert {"nearhit: listening on " + process.url, "nearhit: finishing what was begun"} < {
        one["event"] for one in events
    }
    assert all({"timestamp", "level", "logger"} <= set(one) for one in events)
