"""Clients of a bundled engine that hang up: queued, while their prompt is read, while tokens come; streamed or not.

Through HTTP and the gateway's books, with a real engine process that runs one request at a time.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from engine.client import EngineClient
from engine.testing import fork_process, until_ready
from tests.live import Live, live, settings
from tests.waiting import until

MODEL = "tiny-random:qwen3"
LONG = 600  # tokens; hundreds of steps, so that who leaves leaves before the end


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("engine") / "engine.sock"
    process = fork_process(MODEL, path, "--max-sequences", "1")
    yield path
    process.terminate()
    assert process.ended() == 0


async def asks(
    gateway: Live, prompt: int, output: int, *, stream: bool, model: str = f"local/{MODEL}"
) -> asyncio.StreamWriter:
    """A completion of token ids on a connection of its own; its writer hangs up when it is aborted."""
    host, port = gateway.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    body = msgspec.json.encode(
        {
            "model": model,
            "prompt": [at % 200 + 1 for at in range(prompt)],
            "max_tokens": output,
            "ignore_eos": True,
            "stream": stream,
        }
    )
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {gateway.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()
    return writer


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("state", ["queued", "prefill", "decode"])
async def test_who_hangs_up_frees_the_engine_and_pays_what_was_computed(
    tmp_path: Path, place: Path, state: str, stream: bool
) -> None:
    """An answer that nobody reads must not hold blocks or a place, and what was computed of it is paid, no more."""
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "run" / "engine-local.sock").symlink_to(place)
    chosen = settings(tmp_path, engines={"local": {"model": MODEL, "max_sequences": 1}})
    async with live(chosen) as gateway:
        engine = gateway.services.engines["local"]
        assert isinstance(engine, EngineClient)
        await until_ready(engine)
        neighbour = None
        if state == "queued":
            neighbour = await asks(gateway, 20, 300, stream=True)
            await until(lambda: engine.stats().running == 1)
        leaver = await asks(gateway, 1_400 if state == "prefill" else 30, LONG, stream=stream)
        if state == "queued":
            await until(lambda: engine.stats().waiting == 1)
        elif state == "decode":
            await until(lambda: engine.stats().running == 1)
        else:
            await until(lambda: bool(engine._open))
        leaver.transport.abort()

        async def booked() -> bool:
            return len(await gateway.rows()) == (2 if state == "queued" else 1)

        await until(booked)
        row = next(row for row in await gateway.rows() if row["client_gone"])
        entry = next(entry for entry in await gateway.entries() if entry["request_id"] == row["id"])
        assert entry["source"] == "engine"
        assert (row["prompt"], row["completion"]) == (entry["prompt"], entry["completion"])
        assert row["completion"] < LONG
        assert row["prompt"] == {"queued": 0, "decode": 30}.get(state, row["prompt"])
        assert row["cost_nano"] == entry["amount_nano"]
        assert (row["cost_nano"] > 0) == (row["prompt"] > 0)
        if neighbour is not None:
            other = next(row for row in await gateway.rows() if not row["client_gone"])
            assert (other["completion"], other["complete"]) == (300, 1)
            neighbour.close()
        await until(lambda: engine.stats().running + engine.stats().waiting + engine.stats().kv_used == 0)
        assert not await gateway.services.ledger.verify()


async def test_the_slower_of_two_calls_and_a_vote_that_nobody_reads_cost_what_was_computed(
    tmp_path: Path, place: Path
) -> None:
    """Given up by the gateway itself, an answer of an engine is no guess either, begun or not."""
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "run" / "engine-local.sock").symlink_to(place)
    chosen = settings(
        tmp_path,
        engines={"local": {"model": MODEL, "max_sequences": 1}},
        providers={
            "up": {"kind": "scripted", "ttft_ms": 1, "tokens": 4},
            "slow": {"kind": "scripted", "ttft_ms": 60_000, "billing": "stops-on-close"},
        },
        models={
            "hedged": {"route": [f"local/{MODEL}", "up/scripted"], "hedge": "10ms"},
            "voted": {"route": [f"local/{MODEL}", "slow/scripted"], "strategy": "ensemble", "of": 2, "free": True},
        },
    )
    async with live(chosen) as gateway:
        engine = gateway.services.engines["local"]
        assert isinstance(engine, EngineClient)
        await until_ready(engine)
        neighbour = await asks(gateway, 20, LONG, stream=True)
        await until(lambda: engine.stats().running == 1)
        told = await gateway.post("/v1/completions", {"model": "hedged", "prompt": "who is first?", "max_tokens": 9})
        assert (told.status, told.headers["x-nearhit-provider"]) == (200, "up")
        neighbour.transport.abort()
        await until(lambda: engine.stats().running + engine.stats().waiting == 0)
        leaver = await asks(gateway, 30, 3 * LONG, stream=True, model="voted")
        await until(lambda: engine.stats().running == 1)
        leaver.transport.abort()

        async def booked() -> bool:
            return len(await gateway.rows()) == 3

        await until(booked)
        found = {entry["request_id"]: entry for entry in await gateway.entries() if entry["provider"] == "local"}
        assert [entry["source"] for entry in found.values()] == ["engine"] * 3
        late, vote = (found[row["id"]] for row in await gateway.rows() if row["model"] in ("hedged", "voted"))
        assert (late["prompt"], late["amount_nano"]) == (0, 0)
        # A busy machine may write all of it before it is taken back; it is the engine's own count all the same.
        assert (vote["prompt"], vote["completion"] <= 3 * LONG) == (30, True)
        await until(lambda: engine.stats().running + engine.stats().waiting + engine.stats().kv_used == 0)
        assert not await gateway.services.ledger.verify()


async def test_no_more_is_held_than_the_window_of_an_engine(tmp_path: Path, place: Path) -> None:
    """The cap that a client is told, and that its budget is held for, is one that can be reached."""
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "run" / "engine-local.sock").symlink_to(place)
    async with live(settings(tmp_path, engines={"local": {"model": MODEL, "max_sequences": 1}})) as gateway:
        engine = gateway.services.engines["local"]
        assert isinstance(engine, EngineClient)
        await until_ready(engine)
        found = engine.info()
        assert found is not None
        told = await gateway.chat(model=f"local/{MODEL}", seed=1)
        assert told.headers["x-nearhit-max-tokens"] == str(found.context) == "2048"
