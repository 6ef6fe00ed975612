"""The engine process as a service: slow readers, silence, sleep, what it counts."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.api import EngineFailed, EngineStats, EngineUsage, GenerateRequest, ModelInfo, SamplingParams, Timing
from engine.client import EngineClient
from engine.connection import Connection
from engine.frames import PROTOCOL, FrameBuffer, Hello, Output, Refusal, Step, Submit, merge, read_for_client
from engine.locate import ModelNotFound
from engine.meter import Meter, Objective
from engine.options import Options
from engine.process import Server, listen
from engine.resident import Resident
from engine.testing import fork_process, until, until_ready, write_checkpoint

MODEL = "tiny-random:qwen3"
INFO = ModelInfo(
    id="m", architecture="a", dtype="d", context=1, kv_capacity_tokens=1, vocabulary=1, has_chat_template=False
)


def ask(id: str, max_tokens: int = 24) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=max_tokens, seed=1, ignore_eos=True)
    return GenerateRequest(id=id, sampling=sampling, token_ids=list(range(5, 45)))


def test_a_slow_reader_gets_merged_outputs_in_bounded_memory() -> None:
    """The engine never waits for a client, and what waits for one must not grow with every step."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    client = Connection(ours, Hello(protocol=PROTOCOL, info=INFO))
    stats = EngineStats(ready=True)
    most = 0
    for step in range(3000):
        for handle in range(8):
            client.add(Output(handle=handle, tokens=[step]))
        client.send(stats, 0.0)
        most = max(most, len(client._outputs))
    assert most == 8
    assert len(client._unsent) < 64_000
    for handle in range(8):
        client.add(Output(handle=handle, tokens=[], finish="length"))
    got: dict[int, list[int]] = {handle: [] for handle in range(8)}
    buffer, ended = FrameBuffer(), 0
    while ended < 8:
        client.send(stats, 0.0)
        for payload in buffer.feed(theirs.recv(65536)):
            message = read_for_client(payload)
            for output in message.outputs if isinstance(message, Step) else []:
                got[output.handle] += output.tokens
                ended += output.finish is not None
    assert all(tokens == list(range(3000)) for tokens in got.values())
    theirs.close()
    ours.close()


def test_a_client_that_only_asks_is_not_read_any_more() -> None:
    """Refusals for somebody who never reads would be the one thing without a bound."""
    ours, theirs = socket.socketpair()
    client = Connection(ours, Hello(protocol=PROTOCOL, info=INFO))
    client._unsent += bytes(10)
    for handle in range(5000):
        client.refuse(Refusal(handle=handle, kind="overloaded", message="full"))
    assert client.interest == 2  # selectors.EVENT_WRITE
    theirs.close()
    ours.close()


def test_merging_keeps_every_token_and_the_end() -> None:
    """What a slow reader gets at once is what a quick one got in pieces."""
    usage, timing = EngineUsage(prompt=1, completion=3), Timing(queue_ms=0, ttft_ms=1, tpot_ms=1)
    last = Output(handle=1, tokens=[3], finish="stop", usage=usage, timing=timing)
    whole = merge(merge(Output(handle=1, tokens=[1]), Output(handle=1, tokens=[2])), last)
    assert (whole.tokens, whole.finish, whole.usage) == ([1, 2, 3], "stop", usage)


async def test_a_hung_process_is_killed_and_its_requests_fail(tmp_path: Path) -> None:
    """A process that exists but turns no step is the worst kind of dead: nobody restarts it."""
    path = tmp_path / "e.sock"
    process = fork_process(MODEL, path)
    client = EngineClient(MODEL, path, stall_s=0.2)
    await client.start()
    await until_ready(client)
    assert [delta async for delta in client.generate(ask("first"))]
    await until(lambda: client.stats().step_p50_ms > 0, "a measured step")
    async with aclosing(client.generate(ask("r", max_tokens=1900))) as stream:
        await anext(stream)
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(EngineFailed, match="turned no step"):
            async for _ in stream:
                pass
    assert await process.wait() == -signal.SIGKILL
    await client.stop()


async def test_sleeps_when_idle_and_wakes_with_the_same_answer(tmp_path: Path) -> None:
    """Memory of a model nobody uses is worth something to others; the one who wakes it must not notice but the time."""
    path = tmp_path / "e.sock"
    process = fork_process(MODEL, path, "--sleep-after", "0.7", "--sleep-level", "2")
    client = EngineClient(MODEL, path, stall_s=0.05)
    await client.start()
    await until_ready(client)
    before = [delta async for delta in client.generate(ask("before"))]
    await until(lambda: client.stats().sleeping == 2, "sleep")
    after = [delta async for delta in client.generate(ask("after"))]
    assert [token for delta in before for token in delta.token_ids] == [t for delta in after for t in delta.token_ids]
    assert client.stats().wake_ms > 0
    client.rest(1)
    await until(lambda: client.stats().sleeping == 1, "sleep on demand")
    client.rest(0)
    await until(lambda: client.stats().sleeping == 0, "waking on demand")
    await until(lambda: client.figures()["0"].finished == {"length": 2}, "figures")
    found = client.figures()["0"]
    assert sum(found.first.counts) == 2
    assert sum(found.gap.counts) == 2 * 23
    await client.stop()
    process.terminate()
    assert await process.wait() == 0


def test_resident_never_sleeps_over_work_and_says_when_it_cannot_wake(
    tmp_path: Path, submit: Callable[..., Submit]
) -> None:
    """Dropping keys and values under a running request would lose it; a vanished checkpoint must be an error."""
    now = [0.0]
    folder = write_checkpoint(tmp_path / "model")
    options = Options(threads=1, memory=2**20, sequences=2)
    resident = Resident(str(folder), options, monotonic=lambda: now[0], idle_s=10.0)
    resident.wake().submit(1, submit([1, 2, 3], max_tokens=2))
    now[0] = 100.0
    resident.rest_if_idle()
    assert not resident.sleeping
    assert not resident.rest(2)
    while resident.busy:
        resident.wake().step()
    resident.rest_if_idle()
    now[0] = 111.0
    resident.rest_if_idle()
    assert resident.sleeping == 1
    assert resident.core is None
    assert resident.wake().context
    assert resident.rest(2)
    (folder / "config.json").unlink()
    with pytest.raises(ModelNotFound):
        resident.wake()


def test_a_checkpoint_that_was_exchanged_during_sleep_is_not_woken(tmp_path: Path) -> None:
    """Prompts come with the tokens of the model that fell asleep: to another one they say something else."""
    folder = write_checkpoint(tmp_path / "model")
    resident = Resident(str(folder), Options(threads=1, memory=2**20, sequences=2), monotonic=time.monotonic)
    assert resident.rest(2)
    assert resident.wake().context  # the same files are the same model
    assert resident.rest(2)
    write_checkpoint(folder, "tiny-random:qwen3?seed=1")
    with pytest.raises(EngineFailed, match="exchanged"):
        resident.wake()


def test_lost_blocks_are_noticed_once_work_has_ended(tmp_path: Path, make_core: Any, submit: Any) -> None:
    """A block that is lost stays lost: the cache would shrink until nothing fits, and nobody would know why."""
    core = make_core()
    resident = SimpleNamespace(core=core, busy=False, sleeping=0, info=core.info(), wake_ms=0.0)
    with listen(tmp_path / "x.sock") as listener:
        server = Server(resident, listener, Meter(Objective()), lambda: 0.0)  # type: ignore[arg-type]  (what it needs)
        core.submit("a", submit([1, 2, 3], max_tokens=2))
        server._clients = {0: SimpleNamespace(add=lambda output: None)}  # type: ignore[dict-item]  (the same)
        core._live = {(0, 1): core._live["a"]}
        next(iter(core._live.values())).key = (0, 1)
        while core.busy:
            server._step()
        server._look_at_the_books()
        assert not server._worked
        core.pool.take(1)
        server._look_at_the_books()  # nothing was computed since
        server._worked = True
        with pytest.raises(EngineFailed, match="books"):
            server._look_at_the_books()


def test_meter_counts_gaps_ends_and_the_objective() -> None:
    """Goodput is what a user got in time; every number of it must be derivable by hand."""
    meter = Meter(Objective(first_ms=100, each_ms=10))

    def end(key: int, ttft: float, tpot: float, finish: str = "length") -> None:
        usage = EngineUsage(prompt=10, completion=3, cached=4)
        timing = Timing(queue_ms=5, ttft_ms=ttft, tpot_ms=tpot)
        meter.saw(key, Output(handle=0, tokens=[1], finish=finish, usage=usage, timing=timing), 0.5)  # pyright: ignore[reportArgumentType] - any reason

    meter.saw(1, Output(handle=0, tokens=[1]), 0.2)
    meter.saw(1, Output(handle=0, tokens=[1, 2]), 0.3)
    end(1, 99, 9)
    end(2, 101, 9)
    end(3, 99, 11)
    end(4, 1, 1, "abort")
    figures = meter.figures
    assert (sum(figures.gap.counts), figures.gap.total) == (2, pytest.approx(0.3))
    assert figures.finished == {"length": 3, "abort": 1}
    assert figures.met == 1
    assert (figures.prompt, figures.cached, figures.generated) == (40, 16, 12)
    assert not meter._last
    for seconds in (0.1, 0.3, 0.2):
        meter.stepped(seconds)
    meter.settle()
    assert meter.step_p50 == 0.2


async def test_a_pause_of_the_reader_is_not_taken_for_a_hung_engine(tmp_path: Path) -> None:
    """A worker that was itself held up finds old heartbeats: it must read before it shoots."""
    path = tmp_path / "e.sock"
    process = fork_process(MODEL, path)
    client = EngineClient(MODEL, path, stall_s=0.5)
    await client.start()
    await until_ready(client)
    async with aclosing(client.generate(ask("r", max_tokens=600))) as stream:
        await anext(stream)
        asyncio.get_running_loop().call_soon(time.sleep, 1.8)
        last = [delta async for delta in stream][-1]
    assert last.finish_reason == "length"
    await client.stop()
    process.terminate()
    assert await process.wait() == 0
