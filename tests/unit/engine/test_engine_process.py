"""The engine as a process: several clients, abrupt ends on either side, a bounded queue, garbage on the socket."""

import asyncio
import contextlib
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine import preparing
from engine.api import Delta, EngineFailed, EngineUsage, GenerateRequest, InvalidRequest, Overloaded, SamplingParams
from engine.client import EngineClient
from engine.frames import Counted, Failed, FrameBuffer, Hello, Step, Submit, pack, read_for_client
from engine.process import listen, tell_why
from engine.testing import fork_process, process_command, until, until_ready

MODEL = "tiny-random:qwen3"


@contextmanager
def process(path: Path, *options: str) -> Generator[Path]:
    """Ends well, whatever was asked of it meanwhile."""
    started = fork_process(MODEL, path, *options)
    yield path
    started.terminate()
    assert started.ended() == 0


@asynccontextmanager
async def connected(path: Path) -> AsyncGenerator[EngineClient, None]:
    made = EngineClient(MODEL, path)
    await made.start()
    await until_ready(made)
    yield made
    await made.stop()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of one process for all tests that need nothing special of it."""
    with process(tmp_path_factory.mktemp("engine") / "shared.sock") as found:
        yield found


@pytest.fixture
async def client(path: Path) -> AsyncGenerator[EngineClient, None]:
    async with connected(path) as made:
        yield made


@pytest.fixture(scope="module")
def narrow_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of one process that computes one request at a time and lets two wait."""
    options = ("--max-queue", "2", "--max-sequences", "1")
    with process(tmp_path_factory.mktemp("narrow") / "e.sock", *options) as found:
        yield found


@pytest.fixture
async def narrow(narrow_path: Path) -> AsyncGenerator[EngineClient, None]:
    async with connected(narrow_path) as made:
        yield made


def ask(id: str, max_tokens: int = 24, prompt: int = 20, **outer: Any) -> GenerateRequest:
    return GenerateRequest(
        id=id,
        sampling=SamplingParams(max_tokens=max_tokens, seed=1, ignore_eos=True),
        token_ids=[5 + at % 90 for at in range(prompt)],
        **outer,
    )


async def everything(client: EngineClient, request: GenerateRequest) -> list[Delta]:
    return [delta async for delta in client.generate(request)]


def test_client_side_imports_no_torch() -> None:
    """A gateway worker that imports torch starts seconds later and is 200 MB larger, once per worker."""
    code = "import sys, engine.client, engine.sim, engine.api; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


async def _drain(stream: AsyncGenerator[Delta, None]) -> None:
    async for _ in stream:
        pass


async def test_not_ready_is_said_and_refused(tmp_path: Path) -> None:
    """Without a process a worker must start, say what is missing, and fail requests as retryable."""
    client = EngineClient(MODEL, tmp_path / "none.sock")
    await client.start()
    with pytest.raises(EngineFailed):
        await everything(client, ask("r"))
    assert not client.stats().ready
    assert client.stats().loading
    assert client.info() is None
    await client.stop()


@pytest.mark.parametrize("left", [False, True])
async def test_a_process_that_does_not_listen_yet_is_no_error(tmp_path: Path, left: bool) -> None:
    """`/health/ready` and clients were told `[Errno 2] No such file or directory` of an engine that was starting."""
    path = tmp_path / "engine.sock"
    if left:  # by a process that was killed
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    client = EngineClient(MODEL, path)
    assert await client._connected() is False


async def test_sigkill_mid_stream_then_reconnect(tmp_path: Path) -> None:
    """A dying process must fail its requests at once, not hang them, and the next process must be used unasked."""
    path = tmp_path / "engine.sock"
    first = fork_process(MODEL, path)
    client = EngineClient(MODEL, path)
    await client.start()
    await until_ready(client)
    stream = client.generate(ask("cut", max_tokens=1900))
    await anext(stream)
    os.kill(first.pid, signal.SIGKILL)
    await first.wait()
    with pytest.raises(EngineFailed):
        await _drain(stream)
    await until(lambda: not client.stats().ready, "a client that noticed")
    with pytest.raises(EngineFailed):
        await everything(client, ask("between"))
    second = fork_process(MODEL, path)
    await until_ready(client)
    assert client.stats().restarts == 1
    assert (await everything(client, ask("again")))[-1].finish_reason == "length"
    await client.stop()
    second.terminate()
    assert await second.wait() == 0
    assert not path.exists()


async def test_sigterm_ends_requests_with_their_usage(tmp_path: Path) -> None:
    """An orderly end must not lose what running requests have cost."""
    path = tmp_path / "engine.sock"
    process = fork_process(MODEL, path)
    client = EngineClient(MODEL, path)
    await client.start()
    await until_ready(client)
    deltas: list[Delta] = []
    async for delta in client.generate(ask("r", max_tokens=1900)):
        deltas.append(delta)
        if len(deltas) == 2:
            process.terminate()
    assert deltas[-1].finish_reason == "abort"
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.completion == sum(len(delta.token_ids) for delta in deltas)
    await client.stop()
    assert await process.wait() == 0


async def test_full_queue_says_when_to_come_back(narrow: EngineClient) -> None:
    """An unbounded queue only hides overload; over the bound a client must hear so at once, with a time."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_ending(narrow, ask(f"r{at}", max_tokens=400))) for at in range(8)]
    endings = [task.result() for task in tasks]
    refused = [one for one in endings if isinstance(one, Overloaded)]
    assert len(refused) >= 4
    assert all(1 <= one.retry_after <= 60 for one in refused)
    assert endings.count("length") == 8 - len(refused)
    assert (await everything(narrow, ask("after")))[-1].finish_reason == "length"


async def _ending(client: EngineClient, request: GenerateRequest) -> str | Overloaded:
    try:
        return str((await everything(client, request))[-1].finish_reason)
    except Overloaded as error:
        return error


async def test_abort_while_queued_prefilling_and_decoding(narrow: EngineClient) -> None:
    """Whatever a request is doing, leaving it frees its place, and its usage is what was computed, no more."""
    holder = narrow.generate(ask("decoding", max_tokens=1900))
    await anext(holder)
    async with asyncio.TaskGroup() as group:
        queued = group.create_task(everything(narrow, ask("queued")))
        await until(lambda: narrow.stats().waiting == 1, "a queued request")
        queued.cancel()
    assert await _usage(narrow, "queued") == EngineUsage(prompt=0, completion=0)
    await holder.aclose()
    usage = await _usage(narrow, "decoding")
    assert usage.prompt == 20
    assert 1 <= usage.completion < 1900
    async with asyncio.TaskGroup() as group:
        long = group.create_task(everything(narrow, ask("prefill", prompt=2000, max_tokens=40)))
        await until(lambda: narrow.stats().running == 1 or long.done(), "a prefill")
        long.cancel()
    assert 0 <= (await _usage(narrow, "prefill")).prompt <= 2000
    assert (await everything(narrow, ask("after")))[-1].finish_reason == "length"


async def _usage(client: EngineClient, id: str) -> EngineUsage:
    await until(lambda: client.usage_of(id) is not None, f"the usage of {id}")
    usage = client.usage_of(id)
    assert usage is not None
    return usage


async def test_deadline_in_the_queue(narrow: EngineClient) -> None:
    """An answer nobody waits for any more should not be computed."""
    async with aclosing(narrow.generate(ask("holder", max_tokens=1900))) as holder:
        await anext(holder)
        [last] = await everything(narrow, ask("late", deadline_ms=1.0))
    assert last.finish_reason == "deadline"
    assert last.usage is not None
    assert last.usage.completion == 0


async def test_several_clients_and_one_that_vanishes(path: Path, client: EngineClient) -> None:
    """Workers share an engine: each gets its own answers, and one that dies takes only its own requests along."""
    second, gone = EngineClient(MODEL, path), EngineClient(MODEL, path)
    for one in (second, gone):
        await one.start()
        await until_ready(one)
    alone = await everything(client, ask("alone", max_tokens=200))
    leaving = gone.generate(ask("r", max_tokens=1900))
    await anext(leaving)
    async with asyncio.TaskGroup() as group:
        one = group.create_task(everything(client, ask("same", max_tokens=200)))
        two = group.create_task(everything(second, ask("same", max_tokens=200)))
        await gone.stop()
    for deltas in (one.result(), two.result()):
        assert "".join(d.text for d in deltas) == "".join(d.text for d in alone)
    with pytest.raises(EngineFailed):
        async for _ in leaving:  # what had come before it left is still told
            pass
    await until(lambda: client.stats().running == 0, "an engine that forgot the client that left")
    await second.stop()


async def test_tenants_do_not_share_prefixes(client: EngineClient) -> None:
    """A shared prefix cache would let one tenant find out another's prompts by timing."""

    async def cached(id: str, salt: str) -> int:
        usage = (await everything(client, ask(id, prompt=100, salt=salt)))[-1].usage
        assert usage is not None
        return usage.cached

    assert await cached("a1", "a") == 0
    assert await cached("a2", "a") == 96
    assert await cached("b1", "b") == 0


async def test_garbage_closes_only_its_connection(path: Path, client: EngineClient) -> None:
    """The socket is private, yet a confused process behind it must not take the engine down."""
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", struct.pack(">I", 5) + b"\xc1\xc1\xc1\xc1\xc1", b"\xff" * 8):
        await asyncio.to_thread(_send_until_closed, path, garbage)
    assert (await everything(client, ask("after")))[-1].finish_reason == "length"


def _send_until_closed(path: Path, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(60)
        raw.connect(str(path))
        raw.sendall(data)
        while raw.recv(65536):
            pass


def test_the_socket_is_private(path: Path, client: EngineClient) -> None:
    """Whoever can write to it can use the engine without a key."""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_process_trusts_no_client(path: Path, client: EngineClient) -> None:
    """Token ids beyond the vocabulary or a lying max_tokens would break a whole batch: the process must refuse too."""
    sampling = SamplingParams(max_tokens=4)
    common: dict[str, Any] = {"seed": 1, "eos": [], "salt": "", "priority": 0, "deadline_ms": None}
    bad = [
        Submit(handle=1, tokens=[10**6], sampling=sampling, **common),
        Submit(handle=2, tokens=[-1], sampling=sampling, **common),
        Submit(handle=3, tokens=[], sampling=sampling, **common),
        Submit(handle=4, tokens=[1], sampling=SamplingParams(max_tokens=10**9), **common),
        Submit(handle=5, tokens=[1], sampling=SamplingParams(max_tokens=4, temperature=float("nan")), **common),
        Submit(handle=6, tokens=[1], sampling=sampling, **common),
    ]
    finished, refused = await asyncio.to_thread(_talk, path, bad)
    assert refused == {1, 2, 3, 4, 5}
    assert finished == {6}


def _talk(path: Path, messages: list[Submit]) -> tuple[set[int], set[int]]:
    """Send raw frames; the handles that finished and those that were refused."""
    finished: set[int] = set()
    refused: set[int] = set()
    buffer = FrameBuffer()
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(60)
        raw.connect(str(path))
        raw.sendall(b"".join(map(pack, messages)))
        while len(finished) + len(refused) < len(messages):
            for payload in buffer.feed(raw.recv(65536)):
                message = read_for_client(payload)
                assert isinstance(message, Hello | Step | Counted)
                if isinstance(message, Step):
                    finished |= {one.handle for one in message.outputs if one.finish}
                    refused |= {one.handle for one in message.refusals}
    return finished, refused


def test_an_orphan_ends(tmp_path: Path) -> None:
    """A supervisor that was killed cannot end its engines; they must not stay behind with their memory."""
    command = process_command(MODEL, tmp_path / "e.sock", "--parent")
    starter = "import os, subprocess, sys; print(subprocess.Popen([*sys.argv[1:], str(os.getpid())]).pid)"
    started = subprocess.run([sys.executable, "-c", starter, *command], capture_output=True, text=True, check=True)
    assert "is gone; ending" in started.stderr
    assert not (tmp_path / "e.sock").exists()


async def test_unknown_model_exits_with_a_reason(tmp_path: Path) -> None:
    """A supervisor can only show what the process said before it ended."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "engine.process", "--model", str(tmp_path), "--socket", str(tmp_path / "e.sock")),
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    assert process.returncode == 78
    assert b"config.json is missing" in said


async def test_an_idle_engine_is_heard(client: EngineClient) -> None:
    """Health is a heartbeat of the step loop, not the existence of a process."""
    for _ in range(2):
        assert client._link is not None
        link, heard = client._link, client._link.heard
        await until(lambda link=link, heard=heard: link.heard > heard, "a heartbeat")


async def test_abort_while_the_prompt_is_prepared(client: EngineClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long prompt is tokenized beside the event loop; an abort that comes meanwhile must not be lost."""
    monkeypatch.setattr(preparing, "_THREAD_CHARS", 10)
    request = GenerateRequest(id="long", sampling=SamplingParams(max_tokens=1000), text="long enough for a thread")
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(everything(client, request))
        await asyncio.sleep(0)
        client.abort("long")
    [last] = reading.result()
    assert (last.finish_reason, last.usage) == ("abort", EngineUsage(prompt=0, completion=0))
    assert client.usage_of("long") == last.usage


async def test_refused_requests_leave_nothing_behind(client: EngineClient) -> None:
    """A client that is refused a thousand times must not fill the worker's memory."""
    assert client._link is not None
    await until(lambda: client._link is not None and not client._link._collectors, "an idle client")
    for at in range(20):
        with pytest.raises(InvalidRequest):
            await everything(client, ask(f"r{at}", prompt=5000))
    assert not client._link._collectors
    assert not client._open


async def test_duplicate_id_is_refused(client: EngineClient) -> None:
    """Two streams under one id could not be told apart by `abort` and `usage_of`."""
    async with aclosing(client.generate(ask("r", 1900))) as stream:
        await anext(stream)
        with pytest.raises(InvalidRequest):
            await everything(client, ask("r"))


def test_last_words_come_to_an_end(tmp_path: Path) -> None:
    """Workers that connect again within a second each kept a process that cannot serve, and who waits for its end."""
    heard: list[object] = []
    with listen(tmp_path / "x.sock") as listener:
        teller = threading.Thread(target=tell_why, args=(listener, "because"), daemon=True)
        teller.start()
        for _ in range(100):
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(1.0)
                client.connect(str(tmp_path / "x.sock"))
                with contextlib.suppress(TimeoutError):
                    heard += map(read_for_client, FrameBuffer().feed(client.recv(4096)))
            teller.join(0.1)
            if not teller.is_alive():
                break
        assert not teller.is_alive()
    assert heard
    assert {one.reason for one in heard if isinstance(one, Failed)} == {"because"}
