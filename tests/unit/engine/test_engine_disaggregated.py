"""Prefill here, decode there: the same answer, one bill, nothing left behind."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from engine.api import Delta, Engine, EngineLost, EngineUsage, GenerateRequest, InvalidRequest, SamplingParams
from engine.client import EngineClient
from engine.core import EngineCore
from engine.disaggregated import DisaggregatedEngine
from engine.frames import Submit
from engine.handover import Held, hashes, take
from engine.models.decoder import Decoder
from engine.runner import EagerRunner
from engine.scheduler import Limits
from engine.testing import fork_process, until, until_ready

MODEL = "tiny-random:qwen3"
PROMPT = [5 + at * 7 % 90 for at in range(300)]


def finish(core: EngineCore, key: int, request: Submit) -> list[int]:
    core.submit(key, request)
    tokens: list[int] = []
    while core.busy:
        tokens += [token for one in core.step() if one.key == key for token in one.output.tokens]
    return tokens


def test_handed_over_blocks_are_a_prefix_hit_with_the_same_bits(
    make_core: Callable[..., EngineCore], submit: Callable[..., Submit]
) -> None:
    """Whoever takes another's keys and values must write exactly what it would have written alone."""
    alone, one, two = make_core(), make_core(), make_core()
    wanted = finish(alone, 0, submit(PROMPT, max_tokens=20))
    finish(one, 0, submit(PROMPT, max_tokens=1))
    held = Held(one, PROMPT, "")
    assert held.blocks == 18
    assert take(two, PROMPT, "", held.path) == 18
    two.check()
    assert two.pool.available == two.pool.count
    assert take(two, PROMPT, "", held.path) == 18
    assert finish(two, 0, submit(PROMPT, max_tokens=20)) == wanted
    assert two.pool.hit == 18
    two.check()
    held.close()
    assert take(make_core(), PROMPT, "", held.path) == 0


def test_where_there_is_no_room_to_hold_blocks_out_nobody_is_cut_off(
    make_core: Callable[..., EngineCore], submit: Callable[..., Submit], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full memory file counted as the client's connection breaking: all that it asked ended with it."""
    core = make_core()
    finish(core, 0, submit(PROMPT, max_tokens=1))
    before = set(Path("/proc/self/fd").iterdir())

    def full(_file: int, _data: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        held = Held(core, PROMPT, "")
    assert (held.blocks, held.path) == (0, "")
    assert set(Path("/proc/self/fd").iterdir()) == before
    held.close()


def test_only_what_fits_and_only_ours_is_taken(
    make_core: Callable[..., EngineCore], submit: Callable[..., Submit], tmp_path: Path
) -> None:
    """A wrong path, another tenant's prompt or a small pool must cost a prefill, never a wrong answer."""
    one, small = make_core(), make_core(blocks=20)
    wanted = finish(one, 0, submit(PROMPT, max_tokens=8))
    held = Held(one, PROMPT, "")
    small.submit(9, submit([1] * 200, max_tokens=8))
    small.step()
    small.step()
    assert take(small, PROMPT, "", held.path) == small.pool.available < 18
    while small.busy:
        small.step()
    assert finish(small, 0, submit(PROMPT, max_tokens=8)) == wanted
    assert Held(one, PROMPT, "other tenant").blocks == 0
    other = make_core()
    assert take(other, PROMPT[:40], "", held.path) == 0
    file = tmp_path / "kv"
    file.write_bytes(bytes(2**16))
    assert take(other, PROMPT, "", str(file)) == 0
    reading = os.open(file, os.O_RDONLY)
    os.truncate(file, 1000)
    assert take(other, PROMPT, "", f"/proc/{os.getpid()}/fd/{reading}") == 0
    os.close(reading)
    other.check()
    held.close()
    assert len(hashes(PROMPT[:16], "")) == 0
    assert len(hashes(PROMPT[:17], "")) == 1
    for beyond in (-1, 2**40):  # a client that sends these must not end the process
        assert hashes([beyond] * 40, "") == []


def test_a_cache_in_fp8_is_handed_over_too(
    decoder: Decoder, clock: Callable[[], float], submit: Callable[..., Submit]
) -> None:
    """torch moves no rows of that type on a processor: the first prompt handed over ended the process that took it."""

    def core() -> EngineCore:
        runner = EagerRunner(decoder, 64, "fp8")
        return EngineCore("m", decoder, blocks=64, limits=Limits(), queue=9, monotonic=clock, runner=runner)

    one, two = core(), core()
    wanted = finish(core(), 0, submit(PROMPT, max_tokens=20))
    finish(one, 0, submit(PROMPT, max_tokens=1))
    held = Held(one, PROMPT, "")
    assert take(two, PROMPT, "", held.path) == held.blocks == 18
    held.close()
    assert finish(two, 0, submit(PROMPT, max_tokens=20)) == wanted
    two.check()


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncGenerator[DisaggregatedEngine, None]:
    paths = [tmp_path / "p.sock", tmp_path / "d.sock"]
    processes = [fork_process(MODEL, path, "--max-sequences", "4") for path in paths]
    clients = [EngineClient(MODEL, path) for path in paths]
    made = DisaggregatedEngine(clients[0], clients[1])
    await made.start()
    for client in clients:
        await until_ready(client)
    yield made
    await made.stop()
    for process in processes:
        process.terminate()
        assert await process.wait() == 0


async def test_long_prompts_are_answered_while_the_prefill_process_is_away(tmp_path: Path) -> None:
    """It only steadies gaps: an answer may come less smoothly without it, and must not fail for it."""
    paths = [tmp_path / "p.sock", tmp_path / "d.sock"]
    reader, writer = [fork_process(MODEL, path) for path in paths]
    prefill, decode = (EngineClient(MODEL, path) for path in paths)
    engine = DisaggregatedEngine(prefill, decode)
    await engine.start()
    for client in (prefill, decode):
        await until_ready(client)
    wanted = tokens(await everything(decode, ask("alone", PROMPT)))
    long = [5 + at * 11 % 90 for at in range(1800)]

    async with asyncio.TaskGroup() as group:
        reading = group.create_task(everything(engine, ask("ending", long)))
        await until(lambda: prefill.stats().running == 1 or reading.done(), "a prefill")
        reader.terminate()  # as for a new version: what it reads is read again, where the answer is
    assert reading.result()[-1].finish_reason == "length"
    await reader.wait()
    await until(lambda: prefill.info() is None, "the loss to be noticed")
    assert engine.info() is not None
    assert engine.stats().ready
    last = await everything(engine, ask("down", PROMPT))
    assert tokens(last) == wanted
    assert last[-1].usage is not None
    assert last[-1].usage.prompt == 300

    reader = fork_process(MODEL, paths[0])
    await until_ready(prefill)
    reader.send_signal(signal.SIGSTOP)
    lost: list[BaseException] = []

    async def ask_in_vain() -> None:
        try:
            await everything(engine, ask("lost", [*long[1:], 7]))
        except EngineLost as error:  # it may have been why: the process with all answers in it is not tried with it
            lost.append(error)

    async with asyncio.TaskGroup() as group:
        group.create_task(ask_in_vain())
        await until(lambda: "lost" in prefill._open and prefill._open["lost"].submitted, "the prompt to be sent")
        reader.kill()
    assert lost
    await reader.wait()
    await engine.stop()
    writer.terminate()
    await writer.wait()


def ask(id: str, prompt: list[int], max_tokens: int = 24) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=max_tokens, seed=1, ignore_eos=True)
    return GenerateRequest(id=id, sampling=sampling, token_ids=prompt)


async def everything(engine: Engine, request: GenerateRequest) -> list[Delta]:
    return [delta async for delta in engine.generate(request)]


def tokens(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


async def test_two_processes_answer_as_one_and_bill_the_prompt_once(engine: DisaggregatedEngine) -> None:
    """The seed of the noise, the tokens, the usage: nothing may tell that two computed it."""
    alone = await everything(engine._decode, ask("alone", PROMPT))
    both = await everything(engine, ask("both", [*PROMPT[:299], 7]))
    assert both[-1].usage == EngineUsage(prompt=300, completion=24, cached=0)
    split = await everything(engine, ask("split", PROMPT))
    assert tokens(split) == tokens(alone)
    assert split[-1].usage is not None
    assert (split[-1].usage.prompt, split[-1].usage.completion) == (300, 24)
    assert engine.usage_of("split") == split[-1].usage
    assert len(tokens(await everything(engine, ask("short", [5, 6, 7])))) == 24
    with pytest.raises(InvalidRequest):
        await everything(engine, ask("long", [5] * 5000))
    bad = GenerateRequest(id="bad", sampling=SamplingParams(max_tokens=5, temperature=-1), token_ids=PROMPT[:200])
    with pytest.raises(InvalidRequest):
        await everything(engine, bad)
    assert engine._prefill.usage_of("bad") is None  # its prompt was read for nothing
    scores = SamplingParams(max_tokens=0, prompt_logprobs=0)
    whole = GenerateRequest(id="scores", sampling=scores, token_ids=[5] * 2048)
    scored = await everything(engine, whole)  # as many as the window has: a leg that writes has no room for one
    assert [len(delta.prompt_logprobs) for delta in scored if delta.prompt_logprobs] == [2048]
    await _aborts(engine)


async def _aborts(engine: DisaggregatedEngine) -> None:
    """Left while the prompt is read, and while the answer is written; told to end in both."""
    long = [5 + at * 11 % 90 for at in range(1800)]
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(everything(engine, ask("reading", long)))
        await until(lambda: engine._prefill.stats().running == 1 or reading.done(), "a prefill")
        engine.abort("reading")
    last = reading.result()[-1]
    assert last.usage is not None
    assert last.finish_reason == "abort" or last.usage.completion == 24
    async with aclosing(engine.generate(ask("left", [*long[1:], 9], max_tokens=200))) as stream:
        await anext(stream)
    await until(lambda: engine.usage_of("left") is not None, "the usage")
    writing: list[Delta] = []
    async with aclosing(engine.generate(ask("writing", long[5:900], max_tokens=900))) as stream:
        async for delta in stream:
            writing.append(delta)
            engine.abort("writing")
    assert writing[-1].finish_reason == "abort"
    assert engine.usage_of("writing") == writing[-1].usage
    for client in (engine._prefill, engine._decode):
        await until(lambda client=client: client.stats().running + client.stats().kv_used == 0, "free blocks")
