"""The load generator and the figures made of what it saw: a wrong ruler makes every result wrong."""

import asyncio
import os
import socket
import subprocess
import sys
import time

import pytest

from gateway.bench.asks import TOPICS, Target, chat, cycle, fresh, question, wordings
from gateway.bench.cases import Case, measure, quantile, spread
from gateway.bench.load import Connection, drive, since_last_data
from gateway.bench.processes import BenchError, children, cpu_seconds, memory_mb
from gateway.bench.stage import peer
from gateway.scripted_calls import Options
from gateway.scripted_server import ScriptedServer


def target(port: int) -> Target:
    return Target(name="direct", host="127.0.0.1", port=port, model="scripted")


async def test_every_request_is_counted_once() -> None:
    """The upstream's own count is the witness."""
    server = ScriptedServer(Options())
    where = target(await server.start())
    prompts = fresh(1)
    sample = await drive(where.where, lambda: chat(where, next(prompts)), connections=3, seconds=0.2)
    assert sample.statuses == {200: len(sample.totals)}
    assert server.books.counters.calls == len(sample.totals)
    assert all(0 < first <= total for first, total in zip(sample.firsts, sample.totals, strict=True))
    assert sample.rate == pytest.approx(len(sample.totals) / sample.wall)
    await server.close()


async def test_a_stream_is_timed_to_its_first_and_last_event() -> None:
    """TTFT and the number of events are what the stream case reports."""
    server = ScriptedServer(Options(ttft_ms=40, tpot_ms=10, tokens=5))
    where = target(await server.start())
    connection = await Connection.open(*where.where)
    exchange = await connection.exchange(chat(where, "hello", stream=True))
    connection.close()
    assert exchange.status == 200
    assert 0.035 < exchange.first < exchange.total
    assert exchange.total > 0.075
    assert exchange.events >= 7, "five tokens, an end, [DONE]"
    await server.close()


async def test_a_pace_is_kept() -> None:
    """Half load means half the rate, not as fast as it goes."""
    server = ScriptedServer(Options())
    where = target(await server.start())
    sample = await drive(where.where, cycle([chat(where, "hello")]), connections=4, seconds=0.5, rate=40)
    assert 10 <= len(sample.totals) <= 24
    await server.close()


async def test_a_server_that_hangs_up_is_an_error() -> None:
    """A benchmark that goes on without its server would print figures of nothing."""
    server = ScriptedServer(Options(ttft_ms=5_000))
    where = target(await server.start())
    connection = await Connection.open(*where.where)
    pending = connection.exchange(chat(where, "hello"))
    await server.close()
    with pytest.raises(ConnectionError):
        await pending


async def test_wrong_answers_are_no_figure() -> None:
    """A case that measured refusals, or misses instead of hits, must not look fast."""
    failing = ScriptedServer(Options(fail_rate=1.0))
    where = target(await failing.start())
    case = Case(name="miss", about="", mark="hit-exact", connections=1, ask=lambda at: cycle([chat(at, "hello")]))
    with pytest.raises(BenchError, match="statuses"):
        await measure(case, where, seconds=0.05)
    await failing.close()
    sound = ScriptedServer(Options())
    where = target(await sound.start())
    with pytest.raises(BenchError, match="wanted hit-exact"):
        await measure(case, where, seconds=0.05)
    figures = await measure(case, where, seconds=0.05, checked=False, pids=(os.getpid(),))
    assert figures.requests > 0
    assert figures.cpu_us is not None
    assert figures.encoder_cpu_us is None
    await sound.close()


def test_prompts_are_fresh_and_paraphrases_differ() -> None:
    """A repeated prompt would turn a miss into a hit."""
    prompts = fresh(7)
    drawn = [next(prompts) for _ in range(5_000)]
    assert len(set(drawn)) == 5_000
    texts = [wording.format(topic) for wording in wordings() for topic in TOPICS]
    assert len(set(texts)) == len(texts) > 3_000
    assert not set(texts) & {question(topic) for topic in TOPICS}


def test_quantiles_and_spread() -> None:
    """Nearest rank, on purpose: no figure that was never measured."""
    assert [quantile([3.0, 1.0, 2.0, 4.0], share) for share in (0.0, 0.5, 0.99)] == [1.0, 3.0, 4.0]
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0}


def test_what_a_process_used_is_read() -> None:
    """CPU per request is the figure everything else is judged by."""
    # more than is waited for: Linux counts in whole ticks of a hundredth, and may be some of them short
    busy = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\ntime.sleep(30)"
    with subprocess.Popen([sys.executable, "-c", busy]) as process:
        until = time.monotonic() + 20
        while cpu_seconds(process.pid) < 0.2 and time.monotonic() < until:
            time.sleep(0.02)
        assert 0.2 <= cpu_seconds(process.pid) < 1.0
        assert 3 < memory_mb(process.pid) < 100
        assert "process_time" in children(os.getpid())[process.pid]
        process.kill()
    assert cpu_seconds(process.pid) == 0.0


def test_a_peer_is_read_from_its_url() -> None:
    """A typing error must not measure the wrong server."""
    found = peer("http://127.0.0.1:4000/v1?model=gpt-4o-mini&key=sk-1&pid=77&name=other")
    assert (found.name, found.where, found.path) == ("other", ("127.0.0.1", 4000), "/v1")
    assert (found.key, found.pid) == ("sk-1", 77)
    with pytest.raises(BenchError):
        peer("127.0.0.1:4000")


async def test_what_lies_unread_is_the_readers_own_lateness() -> None:
    """The kernel knows when an answer came; a generator that was busy elsewhere must not blame the server for it."""
    ours, theirs = socket.socket(), socket.socket()
    with ours, theirs:
        ours.bind(("127.0.0.1", 0))
        ours.listen()
        theirs.connect(ours.getsockname())
        with ours.accept()[0] as accepted:
            accepted.sendall(b"refused")
            await asyncio.sleep(0.2)
            assert 0.15 <= since_last_data(theirs) < 60.0
