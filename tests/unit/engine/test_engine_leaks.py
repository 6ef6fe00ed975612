"""Nothing stays behind: of thousands of requests, of clients that leave in every state, of chaos in general."""

import asyncio
import gc
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.client import EngineClient
from engine.core import EngineCore
from engine.models.decoder import Decoder
from engine.scheduler import Limits
from engine.speculation import DraftModel, Speculation
from engine.testing import fork_process, until, until_ready
from gateway.call import Body
from gateway.providers import Sending
from gateway.providers.local import LocalProvider, build
from gateway.tasks import Tasks
from tests.proofs import keep

MIB = 2**20


def serve(core: EngineCore, submit: Any, requests: int) -> None:
    """So many short requests, eight at a time, a tenth of them aborted."""
    sent = 0
    while sent < requests or core.busy:
        while sent < requests and len(core._live) < 8:
            core.submit(sent, submit([1 + sent % 250, sent % 7 + 1] * 9, max_tokens=1 + sent % 3, salt=str(sent % 50)))
            sent += 1
        flight = core.launch()
        if sent % 10 == 0:
            core.cancel(sent - 1, "abort")
        core.collect(flight)
    core.check()


def residue(decoder: Decoder, clock: Any, submit: Any, requests: int) -> tuple[int, int]:
    """Bytes of memory, and objects, that `requests` requests left behind."""
    speculation = Speculation(DraftModel(decoder, 32), tokens=2)
    core = EngineCore("m", decoder, blocks=64, limits=Limits(), queue=99, monotonic=clock, speculation=speculation)
    process = psutil.Process()
    serve(core, submit, 200)  # allocators take what they need at first
    gc.collect()
    before, objects = process.memory_info().rss, len(gc.get_objects())
    serve(core, submit, requests)
    gc.collect()
    assert core.stats().kv_used == 0
    assert not core._live
    return process.memory_info().rss - before, len(gc.get_objects()) - objects


def test_requests_leave_nothing_behind(decoder: Decoder, clock: Any, submit: Any) -> None:
    """A hundred objects per thousand requests would be a restart per week."""
    _, objects = residue(decoder, clock, submit, 300)
    assert objects < 100


@pytest.mark.proof
def test_ten_thousand_requests_leave_nothing_behind(decoder: Decoder, clock: Any, submit: Any) -> None:
    """Memory back to where it was."""
    memory, objects = residue(decoder, clock, submit, 10_000)
    keep("engine_memory", requests=10_000, grown_mib=round(memory / MIB, 2), grown_objects=objects)
    assert memory < 16 * MIB
    assert objects < 500


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of an engine that runs one request at a time, so that a second one waits."""
    path = tmp_path_factory.mktemp("engine") / "engine.sock"
    process = fork_process("tiny-random:qwen3", path, "--max-sequences", "1")
    yield path
    process.terminate()
    assert process.ended() == 0


@pytest.fixture
async def engine(place: Path) -> AsyncGenerator[EngineClient, None]:
    client = EngineClient("tiny-random:qwen3", place)
    await client.start()
    await until_ready(client)
    yield client
    await client.stop()


def asked(name: str, prompt: int, output: int, *, stream: bool) -> Sending:
    body: Body = {"prompt": [at % 200 + 1 for at in range(prompt)], "max_tokens": output, "ignore_eos": True}
    return Sending(
        id=name, operation="completion", model="m", body=body, stream=stream, tenant="", timeout=60.0, idle=60.0
    )


async def read(provider: LocalProvider, sending: Sending) -> int:
    """Completion tokens, as the last chunk counts them."""
    usage = None
    async with aclosing(provider.send(sending)) as chunks:
        async for chunk in chunks:
            usage = chunk.usage or usage
    return 0 if usage is None else usage.completion


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("state", ["queued", "prefill", "decode"])
async def test_who_leaves_in_any_state_frees_everything(engine: EngineClient, state: str, stream: bool) -> None:
    """A client may go while it waits, while its prompt is read, while tokens come, streamed or not.

    Its blocks are free at once, what was computed is told exactly, and its neighbour goes on as if nothing had been.
    """
    provider, name = build({"m": engine}, None, tasks=Tasks()), f"leaver-{state}-{stream}"
    before, prompt = f"{name}.before", 1400 if state == "prefill" else 30
    async with asyncio.TaskGroup() as group:
        neighbour = None
        if state == "queued":
            neighbour = group.create_task(read(provider, asked(before, 20, 400, stream=True)))
            await until(lambda: engine.stats().running == 1, "the neighbour")
        task = group.create_task(read(provider, asked(name, prompt, 600, stream=stream)))
        if state == "queued":
            await until(lambda: engine.stats().waiting == 1, "the leaver in the queue")
        elif state == "decode":
            await until(lambda: engine.stats().running == 1, "the leaver at work")
            await asyncio.sleep(0.05)
        else:
            await until(lambda: bool(engine._open), "the leaver on its way")
        task.cancel()
    await until(lambda: provider.usage_of(name) is not None, "the usage")
    spent = provider.usage_of(name)
    assert spent is not None
    assert spent.prompt <= prompt
    assert spent.completion < 600
    if state == "queued":
        assert (spent.prompt, spent.completion) == (0, 0)
        assert neighbour is not None
        assert neighbour.result() == 400
    if state == "decode":
        assert spent.prompt == 30
    await until(lambda: engine.stats().running + engine.stats().waiting == 0, "an idle engine")
    await until(lambda: engine.stats().kv_used == 0, "free blocks")
