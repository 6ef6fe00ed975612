"""Frames, recent usage, the simulated engine's own knobs, the bench and the command line."""

import asyncio
import signal
import struct
import subprocess
import sys
import tempfile
import time
from io import StringIO
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import __main__ as by_hand
from engine import host
from engine.api import EngineFailed, EngineStats, EngineUsage, GenerateRequest, SamplingParams
from engine.bench.alone import run
from engine.frames import (
    MAX_FRAME,
    Cancel,
    Choice,
    FrameBuffer,
    FrameError,
    Output,
    Step,
    Submit,
    pack,
    read_for_client,
    read_for_engine,
)
from engine.host import open_engine
from engine.link import Collector
from engine.preparing import takes_long
from engine.recent import RecentUsage
from engine.sim import SimEngine
from tests.waiting import PATIENCE, until

SUBMIT = Submit(
    handle=3,
    tokens=[1, 2],
    sampling=SamplingParams(max_tokens=5, logit_bias={7: -1.5}, stop=("x",)),
    seed=2**63,
    eos=[9],
    salt="é",
    priority=-1,
    deadline_ms=None,
)


@given(st.lists(st.integers(1, 50), max_size=30))
def test_frames_survive_any_cutting(cuts: list[int]) -> None:
    """A socket delivers bytes in whatever pieces it likes."""
    step = Step(outputs=[Output(handle=1, tokens=[5], choices=[Choice(-1.0, [(5, -1.0)])])], refusals=[], stats=IDLE)
    data = pack(SUBMIT) + pack(Cancel(handle=3, reason="stop")) + pack(step)
    buffer = FrameBuffer()
    payloads: list[bytes] = []
    at = 0
    for cut in [*cuts, len(data)]:
        payloads += buffer.feed(data[at : at + cut])
        at += cut
    assert read_for_engine(payloads[0]) == SUBMIT
    assert read_for_engine(payloads[1]) == Cancel(handle=3, reason="stop")
    assert read_for_client(payloads[2]) == step


IDLE = EngineStats(ready=True)


def test_bad_frames_are_errors_of_their_own() -> None:
    """The process must tell garbage from a request, before it allocates for it."""
    with pytest.raises(FrameError):
        list(FrameBuffer().feed(struct.pack(">I", MAX_FRAME + 1)))
    for payload in (b"", b"\xc1", msgspec.msgpack.encode(["submit", 1]), msgspec.msgpack.encode({"handle": 1})):
        with pytest.raises(FrameError):
            read_for_engine(payload)
        with pytest.raises(FrameError):
            read_for_client(payload)


def test_recent_usage_is_bounded() -> None:
    """A record per request for ever would be a leak."""
    recent = RecentUsage()
    for at in range(5000):
        recent.put(str(at), EngineUsage(prompt=at, completion=0))
    assert recent.get("0") is None
    assert recent.get("4999") == EngineUsage(prompt=4999, completion=0)
    assert len(recent._usage) == 4096


async def test_collector_merges_and_keeps_the_order_of_failure() -> None:
    """What came before a failure is still delivered, and the usage is told though nobody reads."""
    told: list[EngineUsage] = []
    collector = Collector(1, told.append)
    for token in range(3):
        collector.put(Output(handle=1, tokens=[token], choices=[Choice(-1.0, [])]))
    collector.fail(EngineFailed("gone"))
    output = await collector.take()
    assert output.tokens == [0, 1, 2]
    assert output.choices is not None
    assert len(output.choices) == 3
    with pytest.raises(EngineFailed):
        await collector.take()
    ended = Collector(2, told.append)
    ended.put(Output(handle=2, tokens=[], finish="abort", usage=EngineUsage(prompt=1, completion=2)))
    assert told == [EngineUsage(prompt=1, completion=2)]
    assert ended.over


def request(**sampling: object) -> GenerateRequest:
    params = msgspec.convert({"max_tokens": 50, **sampling}, SamplingParams)
    return GenerateRequest(id="r", sampling=params, text="What is it?")


async def test_sim_fails_where_it_is_told() -> None:
    """Gateway tests of failover need an engine that breaks before, and one that breaks after, the first token."""
    for after in (0, 3):
        sim = SimEngine(fail=EngineFailed("told to"), fail_after=after)
        seen = 0
        stream = sim.generate(request())
        try:
            async for _ in stream:
                seen += 1
        except EngineFailed:
            pass
        else:
            pytest.fail("did not fail")
        assert seen == after


async def test_sim_keeps_its_times() -> None:
    """Load tests believe its delays."""
    sim = SimEngine(ttft_ms=30, tpot_ms=10, text="one two three")
    began = time.monotonic()
    deltas = [delta async for delta in sim.generate(request())]
    assert time.monotonic() - began >= 0.03 + 3 * 0.01
    timing = deltas[-1].timing
    assert timing is not None
    assert timing.ttft_ms >= 30
    assert timing.tpot_ms >= 10


async def test_sim_says_so() -> None:
    """Nobody may take its text for a model's."""
    sim = SimEngine()
    text = "".join([delta.text async for delta in sim.generate(request())])
    assert "simulated" in text
    assert sim.info() is None
    await sim.start()
    info = sim.info()
    assert info is not None
    assert "simulated" in info.note


async def test_sim_stop_aborts_what_runs() -> None:
    """A drain must end streams of the simulated engine too."""
    sim = SimEngine(tpot_ms=5, text="word " * 1000)
    await sim.start()
    finishes: list[str | None] = []

    async def read() -> None:
        finishes.extend([delta.finish_reason async for delta in sim.generate(request(max_tokens=900))])

    async with asyncio.TaskGroup() as group:
        group.create_task(read())
        await asyncio.sleep(0.03)
        await sim.stop()
    assert finishes[-1] == "abort"


def test_bench_measures_what_it_names() -> None:
    """The price of local tokens is computed from these numbers."""
    found = run("tiny-random:llama", prompt_tokens=40, output_tokens=6, concurrency=2, repeats=1)
    for name in ("prefill_tokens_per_s", "decode_tokens_per_s", "decode_tokens_per_s_alone", "total_tokens_per_s"):
        assert found[name] > 0
    for name in ("ttft_alone_ms", "ttft_p50_ms", "tpot_p50_ms"):
        assert found[name] > 0
    assert (found["prompt_tokens"], found["output_tokens"], found["concurrency"]) == (40, 6, 2)
    assert run("tiny-random:llama", prompt_tokens=10**6, output_tokens=2, repeats=1)["prompt_tokens"] < 2048


def test_command_line() -> None:
    """By hand: text from generate, in a process as the shell starts it."""
    command = [sys.executable, "-m", "engine", "generate", "tiny-random:qwen3", "Hello", "--max-tokens", "4"]
    generated = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert generated.returncode == 0
    assert b"[length: 5 + 4 tokens" in generated.stderr


@pytest.mark.usefixtures("forked")
def test_commands(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One JSON line from bench, text from chat, a plain sentence for a wrong name."""
    assert by_hand.main(["bench", "tiny-random:qwen3", "--prompt-tokens", "8", "--output-tokens", "3"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["model"] == "tiny-random:qwen3"
    monkeypatch.setattr(sys, "stdin", StringIO("Hi\nBye\n"))
    assert by_hand.main(["chat", "tiny-random:qwen3", "--max-tokens", "2"]) == 0
    assert capsys.readouterr().err.count("tokens, ") == 2
    assert by_hand.main(["generate", "no-such-model", "x"]) == 1
    assert "config.json is missing" in capsys.readouterr().err


async def test_a_model_that_is_not_there_takes_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever mistyped its name waited for torch to be loaded before it was told."""
    monkeypatch.setattr(host, "command", lambda *_: pytest.fail("a process is started"))
    with pytest.raises(EngineFailed, match=r"/nowhere/config\.json is missing"):
        async with open_engine("/nowhere"):
            pass


@pytest.mark.parametrize(
    "long",
    [
        {"messages": [{"role": "user", "content": "x" * 30_000}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "x" * 30_000}}]}]},
        {"text": "x" * 30_000},
        {"text": "x", "prediction": "x" * 30_000},
    ],
)
def test_whatever_makes_a_prompt_long_is_prepared_beside_the_event_loop(long: dict[str, Any]) -> None:
    """Megabytes in earlier calls, or in a prediction beside a text, held up everybody of the worker."""
    assert takes_long(GenerateRequest(id="long", sampling=SamplingParams(max_tokens=1), **long))
    assert not takes_long(GenerateRequest(id="short", sampling=SamplingParams(max_tokens=1), text="x"))


def test_a_chat_ends_without_another_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at its prompt waited for Enter: the thread that reads was waited for."""
    typed, over = Event(), Event()

    def ask() -> None:
        typed.wait(20)
        over.set()

    monkeypatch.setattr(by_hand, "_ask", ask)
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(by_hand._typed(), 0.01))
    assert not over.is_set()
    typed.set()


def test_a_run_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """A SIGTERM, as every supervisor sends it, left a folder behind each time, and an engine that had to notice."""
    source, answers = tmp_path / "in.jsonl", tmp_path / "in.answers.jsonl"
    lines = [
        {"custom_id": str(at), "url": "/v1/completions", "body": {"prompt": "x", "seed": at}} for at in range(9000)
    ]
    source.write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    with tempfile.TemporaryDirectory(prefix="e-") as folder:
        line = ["env", f"TMPDIR={folder}", sys.executable, "-m", "engine", "generate", "tiny-random:qwen3", str(source)]
        process = subprocess.Popen(line, stderr=subprocess.DEVNULL)
        try:
            asyncio.run(until(lambda: answers.exists() and answers.stat().st_size > 0))
            process.terminate()
            assert process.wait(PATIENCE) == 128 + signal.SIGTERM
        finally:
            process.kill()
        assert not list(Path(folder).glob("engine-*"))
