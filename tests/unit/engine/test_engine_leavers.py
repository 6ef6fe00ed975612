"""Who leaves at a bad moment: while a sleeper wakes, after the process went, between the two legs of a request."""

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
from msgspec import structs

from engine.api import (
    Delta,
    EngineFailed,
    EngineUsage,
    FinishReason,
    GenerateRequest,
    InvalidRequest,
    SamplingParams,
    Timing,
)
from engine.client import EngineClient
from engine.disaggregated import DisaggregatedEngine
from engine.frames import Export, Submit, pack
from engine.host import serving
from engine.meter import Meter, Objective
from engine.options import Options
from engine.process import Server, listen
from engine.resident import Resident
from engine.testing import fork_process, until, until_ready

MODEL = "tiny-random:qwen3"


def ask(id: str, max_tokens: int = 24, prompt: int = 20) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=max_tokens, seed=1, ignore_eos=True)
    return GenerateRequest(id=id, sampling=sampling, token_ids=[5 + at % 90 for at in range(prompt)])


def test_who_asks_a_sleeper_and_leaves_takes_nobody_along(tmp_path: Path, submit: Callable[..., Submit]) -> None:
    """Waking is told to everybody; who had gone was dropped, asked for all the same, and ended the process."""
    resident = Resident(MODEL, Options(threads=1, memory=2**20, sequences=2), monotonic=time.monotonic)
    with listen(tmp_path / "x.sock") as listener:
        server = Server(resident, listener, Meter(Objective()), time.monotonic)
        held = Export(handle=2, tokens=list(range(5, 45)), salt="")
        for messages in ([submit([1, 2, 3])], [held, submit([1, 2, 3])]):
            with socket.socket(socket.AF_UNIX) as leaver:
                leaver.connect(str(tmp_path / "x.sock"))
                server._receive(1.0)
                resident.rest(1)
                leaver.sendall(b"".join(map(pack, messages)))
            server._receive(1.0)
            server._step()
            server._send()
            assert not server._clients
            assert not resident.busy
        server.stop()
        server.run()


async def test_an_abort_that_comes_after_the_process_went_ends_nobody_elses_answer(tmp_path: Path) -> None:
    """Numbers of requests begin anew with each process: a late abort of the last one's ended a stranger's answer."""
    path = tmp_path / "e.sock"
    process = fork_process(MODEL, path)
    client = EngineClient(MODEL, path)
    await client.start()
    await until_ready(client)
    slow = client.generate(ask("slow", 1900))
    await anext(slow)
    process.kill()
    await process.wait()
    await until(lambda: not client.stats().ready, "a client that noticed")
    process = fork_process(MODEL, path)
    await until_ready(client)
    async with aclosing(client.generate(ask("other", 300))) as other:
        found = [await anext(other)]
        client.abort("slow")
        found += [delta async for delta in other]
    assert found[-1].finish_reason == "length"
    await slow.aclose()
    await client.stop()
    process.terminate()
    assert await process.wait() == 0


async def test_who_ends_takes_only_its_own_socket_away(tmp_path: Path) -> None:
    """A second engine at the same socket cut the first one's clients off, and was unreachable once that ended."""
    path = tmp_path / "e.sock"
    first = fork_process(MODEL, path)
    client = EngineClient(MODEL, path)
    await client.start()
    await until_ready(client)
    with pytest.raises(EngineFailed, match="another process serves there"):
        async with serving(MODEL, [path], []):
            pass
    second = fork_process(MODEL, path)  # started by hand, past that question
    first.terminate()
    assert await first.wait() == 0
    await until(lambda: client.stats().restarts == 1, "the second process")
    assert [delta async for delta in client.generate(ask("there"))][-1].finish_reason == "length"
    await client.stop()
    second.terminate()
    assert await second.wait() == 0
    assert not path.exists()


class _Leg:
    """As much of an EngineClient as a disaggregated engine asks: two tokens, then silence. `told`: what it says."""

    def __init__(self, told: EngineUsage) -> None:
        self.told, self.refuses, self.ended = told, False, False

    async def prepared(self, request: GenerateRequest) -> Any:
        return SimpleNamespace(tokens=request.token_ids)

    async def generate(self, request: GenerateRequest) -> "object":
        if self.refuses:
            raise InvalidRequest("no")
        if request.sampling.max_tokens == 1:
            yield Delta(finish_reason="length", usage=self.told, token_ids=[1])
            return
        yield Delta(token_ids=[1, 2])
        await asyncio.Event().wait()

    async def export(self, tokens: list[int], salt: str) -> None: ...

    async def take(self, tokens: list[int], salt: str, held: None) -> None: ...

    def release(self, held: None) -> None: ...

    def usage_of(self, request_id: str) -> EngineUsage | None:
        return self.told if self.ended else None


async def test_who_leaves_a_handed_over_answer_is_billed_for_both_legs() -> None:
    """The prompt's leg was told as all there was, and blocks that were handed over as found in the cache."""
    prefill = _Leg(EngineUsage(prompt=100, completion=1, cached=16))
    decode = _Leg(EngineUsage(prompt=100, completion=2, cached=96))
    prefill.ended = True
    engine = DisaggregatedEngine(prefill, decode)  # type: ignore[arg-type]  (as much of it as is asked)
    async with aclosing(engine.generate(ask("left", prompt=100))) as stream:
        await anext(stream)
        assert engine.usage_of("left") is None
    assert engine.usage_of("left") is None  # the second process still has to say
    decode.ended = True
    assert engine.usage_of("left") == EngineUsage(prompt=100, completion=2, cached=16)
    decode.refuses, decode.ended = True, False
    with pytest.raises(InvalidRequest):
        await anext(engine.generate(ask("refused", prompt=100)))
    assert engine.usage_of("refused") == EngineUsage(prompt=100, completion=0, cached=16)


class _Timed(_Leg):
    """A leg that says when it began to answer, and what it was asked."""

    def __init__(self, queue_ms: float, ttft_ms: float, finish: FinishReason = "length") -> None:
        super().__init__(EngineUsage(prompt=100, completion=1))
        self.timing = Timing(queue_ms=queue_ms, ttft_ms=ttft_ms, tpot_ms=1.0)
        self.finish: FinishReason = finish
        self.asked: list[GenerateRequest] = []

    async def generate(self, request: GenerateRequest) -> "object":
        self.asked.append(request)
        yield Delta(finish_reason=self.finish, usage=self.told, timing=self.timing)


async def test_both_legs_are_in_what_a_handed_over_answer_says_of_its_time() -> None:
    """The time to the first token was that of the second process alone, and its queue had the whole deadline again."""
    prefill, decode = _Timed(300.0, 1900.0), _Timed(20.0, 50.0)
    now = iter((10.0, 12.0))
    engine = DisaggregatedEngine(prefill, decode, monotonic=lambda: next(now))  # type: ignore[arg-type]  (as much of it as is asked)
    request = structs.replace(ask("timed", prompt=100), deadline_ms=1000.0)
    [delta] = [delta async for delta in engine.generate(request)]
    assert delta.timing == Timing(queue_ms=320.0, ttft_ms=2050.0, tpot_ms=1.0)
    assert [one.deadline_ms for one in (*prefill.asked, *decode.asked)] == [1000.0, 700.0]


async def test_a_deadline_in_the_queue_of_the_first_process_is_told_as_one() -> None:
    """It was told as a failure of the engine, which sends callers to another one and away from this."""
    prefill, decode = _Timed(1000.0, 0.0, "deadline"), _Timed(0.0, 0.0)
    engine = DisaggregatedEngine(prefill, decode)  # type: ignore[arg-type]  (as much of it as is asked)
    request = structs.replace(ask("late", prompt=100), deadline_ms=1000.0)
    [delta] = [delta async for delta in engine.generate(request)]
    assert (delta.finish_reason, delta.timing) == ("deadline", Timing(queue_ms=1000.0, ttft_ms=0.0, tpot_ms=0.0))
    assert delta.usage == EngineUsage(prompt=100, completion=0)
    assert not decode.asked


async def test_a_process_that_hangs_with_blocks_to_hand_over_is_noticed(tmp_path: Path) -> None:
    """Where nothing but a hand-over was owed nobody looked at the heartbeat, and the request waited for ever."""
    path = tmp_path / "engine.sock"
    process = fork_process(MODEL, path)
    client = EngineClient(MODEL, path, stall_s=0.3)
    await client.start()
    await until_ready(client)
    prompt = ask("one", prompt=100)
    assert [delta async for delta in client.generate(prompt)][-1].finish_reason == "length"
    assert prompt.token_ids is not None
    held = await client.export(prompt.token_ids, "")
    os.kill(process.pid, signal.SIGSTOP)
    async with asyncio.timeout(60):
        with pytest.raises(EngineFailed, match="turned no step"):
            await client.take(prompt.token_ids, "", held)
    assert await process.wait() == -signal.SIGKILL
    second = fork_process(MODEL, path)
    await until_ready(client)
    fresh = [delta async for delta in client.generate(prompt)]
    assert fresh[-1].finish_reason == "length"
    new = await client.export(prompt.token_ids, "")
    assert new.handle > held.handle  # what was held there before is released by its own number, never another's
    await client.stop()
    second.terminate()
    assert await second.wait() == 0
