"""Several servers behind one name: pairs that share an answer, replicas, names of the network, load they tell."""

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.sim import SimEngine
from gateway.catalog import Target
from gateway.deployments import Deployments
from gateway.fleet import Fleet
from gateway.fleet_load import LoadWatch, load_of
from gateway.fleet_srv import services
from gateway.providers import load as load_kind
from gateway.scripted_calls import Counters, Options
from gateway.scripted_server import ScriptedServer
from gateway.settings import ProviderSettings
from gateway.tasks import Tasks
from gateway.transport.direct import DirectTransport
from gateway.upstreams import Upstreams
from tests.live import Live, live, settings
from tests.waiting import until
from tests.wire_upstream import Answer, Manner, Request, wire_upstream

PLAIN: dict[str, Any] = {"cache": {"mode": "off"}, "ledger": {"durability": "off"}}


@asynccontextmanager
async def pair(
    tmp_path: Path, protocol: str, reads: Options, writes: Options
) -> AsyncGenerator[tuple[Live, Counters, Counters]]:
    """A gateway whose model `pd/m` is answered by two scripted servers together."""
    first, second = ScriptedServer(reads), ScriptedServer(writes)
    urls = [f"http://127.0.0.1:{await server.start()}/v1" for server in (first, second)]
    provider: dict[str, Any] = {"kind": "prefill_decode", "protocol": protocol, "billing": "stops-on-close"}
    provider |= {"prefill": urls[:1], "decode": urls[1:]}
    try:
        async with live(settings(tmp_path, providers={"pd": provider}, **PLAIN)) as gateway:
            await gateway.services.prices.set(
                "pd/m", input_usd="1.00", output_usd="2.00", actor="test", effective_from=0.0
            )
            yield gateway, first.books.counters, second.books.counters
    finally:
        await first.close()
        await second.close()


READS, WRITES = Options(role="prefill", tokens=6), Options(role="decode", tokens=6)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("protocol", ["vllm", "sglang"])
async def test_a_pair_answers_and_the_prompt_is_billed_once(tmp_path: Path, protocol: str, stream: bool) -> None:
    """Both servers count the prompt; the client pays for it once, and one line of the ledger says so."""
    async with pair(tmp_path, protocol, READS, WRITES) as (gateway, first, second):
        told = await gateway.chat(model="pd/m", stream=stream)
        assert told.status == 200, told.raw
        (entry,) = await gateway.entries()
        assert entry["completion"] == 6
        await until(lambda: bool(first.prompt_tokens))  # the one that only reads may still be writing its own bill
        assert entry["prompt"] == second.prompt_tokens == first.prompt_tokens
        assert (first.handed_over, second.handed_over) == (1, 1)
        assert first.calls == second.calls == 1


async def _leave_early(gateway: Live, under_way: Callable[[], bool]) -> None:
    body = msgspec.json.encode(
        {"model": "pd/m", "stream": True, "messages": [{"role": "user", "content": "hello there"}]}
    )
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rsplit(":", 1)[1]))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {gateway.key}\r\n"
        writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        await until(under_way)
        writer.transport.abort()
        del reader


@pytest.mark.parametrize(("protocol", "closed"), [("vllm", (1, 0)), ("sglang", (1, 1))])
async def test_a_client_that_leaves_ends_both_calls(tmp_path: Path, protocol: str, closed: tuple[int, int]) -> None:
    """A prefill nobody waits for would go on computing; the toy proxies of both engines let it."""
    slow = Options(role="prefill", ttft_ms=20_000), Options(role="decode", ttft_ms=20_000)
    async with pair(tmp_path, protocol, *slow) as (gateway, first, second):
        await _leave_early(gateway, lambda: (first.in_flight, second.in_flight) == closed)
        async with asyncio.timeout(60):
            while first.in_flight or second.in_flight:  # noqa: ASYNC110 - the other side is watched from outside
                await asyncio.sleep(0.01)
        assert (first.closed_early, second.closed_early) == closed
        assert (first.calls, second.calls) == closed


async def test_a_prefill_that_fails_is_a_failure_before_the_first_chunk(tmp_path: Path) -> None:
    """Only then may another candidate be tried; nothing is asked of the server that would wait for it."""
    async with pair(tmp_path, "vllm", Options(role="prefill", fail_rate=1.0, seed=3), WRITES) as (gateway, _, second):
        assert (await gateway.chat(model="pd/m")).status >= 429
        assert second.calls == 0


@pytest.mark.parametrize("protocol", ["vllm", "sglang"])
async def test_who_leaves_while_nothing_is_written_pays_the_prompt_and_no_answer(tmp_path: Path, protocol: str) -> None:
    """A guess of what had begun was taken for a pace, and a second of it added: 4,096 tokens, of which none was."""
    async with pair(tmp_path, protocol, READS, Options(role="decode", ttft_ms=120_000)) as (gateway, first, second):
        await _leave_early(gateway, lambda: second.in_flight == 1 and first.in_flight == 0)
        await until(lambda: not second.in_flight)

        async def booked() -> bool:
            return bool(await gateway.entries())

        await until(booked)
        (entry,) = await gateway.entries()
        assert entry["source"] == "estimated"
        assert entry["prompt"] > 0
        assert entry["completion"] <= 64  # what may lie unread


@pytest.mark.parametrize("protocol", ["vllm", "sglang"])
async def test_a_writer_that_fails_leaves_nothing_under_way_and_costs_nothing(tmp_path: Path, protocol: str) -> None:
    """The prompt was read for nothing: the next place answers, and the server that read is not kept waiting."""
    broken = Options(role="decode", fail_rate=1.0, seed=3)
    async with pair(tmp_path, protocol, Options(role="prefill", tokens=6), broken) as (gateway, first, second):
        told = await gateway.chat(model="pd/m", headers={"x-nearhit-timeout": "20"})
        assert told.status >= 429
        await until(lambda: not first.in_flight)
        assert second.calls >= 1
        if protocol == "vllm":  # SGLang's are asked together, and the reader's request may not have left yet
            assert first.calls >= second.calls
        assert not [entry for entry in await gateway.entries() if entry["amount_nano"]]


async def test_another_writer_takes_the_blocks_that_were_read(tmp_path: Path) -> None:
    """vLLM keeps them until they are fetched, for minutes if nobody does: the prompt is not read again."""
    servers = [ScriptedServer(options) for options in (READS, Options(role="decode", fail_rate=1.0, seed=3), WRITES)]
    urls = [f"http://127.0.0.1:{await server.start()}/v1" for server in servers]
    provider = {"kind": "prefill_decode", "protocol": "vllm", "prefill": urls[:1], "decode": urls[1:]}
    models = {"m": {"route": ["pd/m"], "free": True}}
    try:
        async with live(settings(tmp_path, providers={"pd": provider}, models=models, **PLAIN)) as gateway:
            told = await gateway.chat(model="m", stream=True)
            assert (told.status, told.events[-1]) == (200, "[DONE]")
            assert told.headers["x-nearhit-attempts"] == "1"
            assert [server.books.counters.calls for server in servers] == [1, 1, 1]
            assert servers[2].books.counters.handed_over == 1
    finally:
        for server in servers:
            await server.close()


@pytest.mark.parametrize("protocol", ["vllm", "sglang"])
async def test_a_server_that_is_gone_draws_no_requests_while_there_is_another(tmp_path: Path, protocol: str) -> None:
    """It has the fewest calls under way, always: with one of two gone every request failed, and then the circuit."""
    servers = [ScriptedServer(options) for options in (READS, WRITES)]
    reads, writes = [f"http://127.0.0.1:{await server.start()}/v1" for server in servers]
    gone = ScriptedServer(READS)
    nobody = f"http://127.0.0.1:{await gone.start()}/v1"
    await gone.close()
    provider = {"kind": "prefill_decode", "protocol": protocol, "prefill": [nobody, reads], "decode": [nobody, writes]}
    models = {"m": {"route": ["pd/m"], "free": True}}
    try:
        async with live(settings(tmp_path, providers={"pd": provider}, models=models, **PLAIN)) as gateway:
            told = [await gateway.chat(model="m", stream=stream) for stream in (True, False) * 4]
            assert {one.status for one in told} == {200}
            attempts = [one.headers["x-nearhit-attempts"] for one in told]
            assert attempts == ["1"] * 8 if protocol == "vllm" else attempts[3:] == ["1"] * 5
            await until(lambda: servers[0].books.counters.handed_over >= 8)
            assert servers[1].books.counters.handed_over == 8
    finally:
        for server in servers:
            await server.close()


class Sidecar:
    """Answers anything; keeps the header that names the prefill server."""

    heard: str | None = None

    async def answer(self, asked: Request) -> Answer:
        self.heard = asked.headers.get("x-prefiller-host-port")
        choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        return Answer(body=msgspec.json.encode({"choices": [choice], "usage": usage}))

    def failure(self) -> Answer:
        return Answer(status="500 Internal Server Error")


async def test_llm_d_is_told_where_the_prompt_is_read(tmp_path: Path) -> None:
    """Its sidecar fetches the blocks itself; all it needs is the header."""
    sidecar = Sidecar()
    async with wire_upstream(sidecar, Manner()) as up:
        provider = {"kind": "prefill_decode", "protocol": "llm-d", "prefill": ["http://10.0.0.9:8200/v1"]}
        provider |= {"decode": [f"http://127.0.0.1:{up.port}/v1"]}
        models = {"m": {"route": ["pd/m"], "free": True}}
        async with live(settings(tmp_path, providers={"pd": provider}, models=models)) as gateway:
            assert (await gateway.chat(model="m")).text == "yes"
    assert sidecar.heard == "10.0.0.9:8200"


async def test_requests_spread_over_replicas_and_the_explanation_names_them(tmp_path: Path) -> None:
    """One provider, one price, several servers: which one answered is told."""
    servers = [ScriptedServer(Options(tokens=4)) for _ in range(3)]
    urls = [f"http://127.0.0.1:{await server.start()}/v1" for server in servers]
    providers = {"fleet": {"kind": "vllm", "replicas": urls}}
    models = {"m": {"route": ["fleet/m"], "strategy": "weighted", "free": True}}
    try:
        async with live(settings(tmp_path, providers=providers, models=models, **PLAIN)) as gateway:
            for _ in range(30):
                assert (await gateway.chat(model="m")).status == 200
            told = await gateway.chat(model="m", headers={"x-nearhit-dry-run": "1"})
            named = {row["target"] for row in told.json["routing"]["candidates"]}
            assert named == {f"fleet/m@{url[7:-3]}" for url in urls}
        assert all(server.books.counters.calls >= 3 for server in servers)
    finally:
        for server in servers:
            await server.close()


@pytest.mark.parametrize("strategy", ["ordered", "cheapest", "fastest"])
async def test_equal_servers_share_what_comes_at_once_whatever_the_strategy(tmp_path: Path, strategy: str) -> None:
    """`ordered`, which is what holds unless something is written, asked the first server for everything."""
    servers = [ScriptedServer(Options(tokens=4, ttft_ms=300.0)) for _ in range(3)]
    urls = [f"http://127.0.0.1:{await server.start()}/v1" for server in servers]
    providers = {"fleet": {"kind": "vllm", "replicas": urls}, "up": {"kind": "scripted"}}
    models = {"m": {"route": ["fleet/m", "up/scripted"], "strategy": strategy, "free": True}}
    try:
        async with live(settings(tmp_path, providers=providers, models=models, **PLAIN)) as gateway:
            await gateway.services.prices.set(
                "fleet/m", input_usd="0.01", output_usd="0.01", actor="test", effective_from=0.0
            )
            model = "fleet/m" if strategy == "ordered" else "m"
            asked = [gateway.chat(model=model, messages=[{"role": "user", "content": f"{n}"}]) for n in range(6)]
            told = await asyncio.gather(*asked)
            assert {one.status for one in told} == {200}
        if strategy == "fastest":  # whom nobody has measured is found out too
            assert all(server.books.counters.calls for server in servers)
        else:
            assert [server.books.counters.calls for server in servers] == [2, 2, 2]
    finally:
        for server in servers:
            await server.close()


async def test_a_canary_of_several_servers_is_nobodys_fallback(tmp_path: Path) -> None:
    """Only one of its servers was left out for those it is not tried on; a session of its share moved between them."""
    servers = [ScriptedServer(Options(tokens=4)) for _ in range(3)]
    urls = [f"http://127.0.0.1:{await server.start()}/v1" for server in servers]
    providers = {"fleet": {"kind": "vllm", "replicas": urls}, "up": {"kind": "scripted", "fail_rate": 1.0}}
    canary = {"to": "fleet/m", "share": 0.5}
    models = {"m": {"route": ["up/scripted"], "canary": canary, "sticky": "session", "free": True}}
    try:
        async with live(settings(tmp_path, providers=providers, models=models, **PLAIN)) as gateway:
            firsts = dict[str, str]()
            for session in range(24):
                headers = {"x-nearhit-dry-run": "1", "x-nearhit-session": f"s{session}"}
                routing = (await gateway.chat(model="m", headers=headers)).json["routing"]
                able = [row["target"] for row in routing["candidates"] if "left_out" not in row]
                assert able == ["up/scripted"] if routing.get("first") != "canary" else len(able) == 4
                firsts[f"s{session}"] = able[0]
            assert len(set(firsts.values())) == 4
    finally:
        for server in servers:
            await server.close()


def test_servers_behind_one_host_are_told_apart_by_their_paths() -> None:
    """An ingress gives each its path: all but one of them were lost without a word."""
    transport, tasks = DirectTransport(), Tasks()

    def build(address: str) -> Any:
        chosen = ProviderSettings(kind="vllm", base_url=address)
        return load_kind("vllm").build("fleet", chosen, transport=transport, tasks=tasks)

    fleet = Fleet("fleet", ["http://lb/a/v1", "http://lb/b/v1", "http://lb/b/v1/", "http://10.0.0.1:8000/v1"], build)
    assert fleet.replicas() == ["10.0.0.1:8000", "lb/a/v1", "lb/b/v1"]


async def test_what_a_server_says_of_its_load_is_read(tmp_path: Path) -> None:
    """Other gateways send there too: our own count is not the load."""
    server = ScriptedServer(Options(ttft_ms=3_000))
    port = await server.start()
    transport, tasks = DirectTransport(), Tasks()
    chosen = settings(tmp_path, providers={"v": {"kind": "vllm", "base_url": f"http://127.0.0.1:{port}/v1"}})
    deployments = Deployments(monotonic=asyncio.get_running_loop().time)
    deployments.of(Target("v", "m"))
    watch = LoadWatch(Upstreams({}, chosen), deployments, transport)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = b'{"model":"m","messages":[]}'
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    await writer.drain()
    await asyncio.sleep(0.05)
    await watch.once()
    assert next(iter(deployments)).load.running == 1
    writer.close()
    await server.close()
    await watch.once()
    assert next(iter(deployments)).load.running == 0
    await transport.close()
    await tasks.finish(0.0)
    del reader


async def test_an_engine_that_is_back_is_asked_at_once(tmp_path: Path) -> None:
    """Its circuit had opened for half a minute while it loaded: ready for all to see, and 503 for all who asked."""
    engine, transport, tasks = SimEngine(), DirectTransport(), Tasks()
    target, now = Target("local", "sim"), 100.0
    deployments = Deployments(monotonic=lambda: now)
    place = deployments.of(target)
    local = load_kind("local").build({"sim": engine}, None, tasks=tasks)
    watch = LoadWatch(
        Upstreams({"local": local}, settings(tmp_path, providers={})), deployments, transport, monotonic=lambda: now
    )
    await watch.once()
    for _ in range(5):
        place.sent(1, now)
        place.ended("failed", now, prompt=1)
    await watch.once()
    assert not place.allows(now), "not there yet"
    await engine.start()
    await watch.once()
    assert place.allows(now)
    place.sent(1, now)
    place.ended("failed", now, prompt=1)
    await watch.once()
    assert not place.allows(now), "one that fails although it is ready is left alone as any other"
    await transport.close()
    await tasks.finish(0.0)


def test_the_names_of_both_engines_are_read() -> None:
    """Ranks of one server are added up; an exposition without the names tells nothing."""
    vllm = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
"""
    found = load_of("vllm", vllm)
    assert found is not None
    assert (found.running, found.waiting, found.kv_used) == (5.0, 7.0, 0.75)
    sglang = b"sglang:num_running_reqs 4.0\nsglang:num_queue_reqs 1.0\nsglang:token_usage 0.5\n"
    found = load_of("sglang", sglang)
    assert found is not None
    assert (found.running, found.waiting, found.kv_used) == (4.0, 1.0, 0.5)
    assert load_of("vllm", b"process_cpu_seconds_total 3\n") is None


@pytest.mark.parametrize("told", ["1e", "--", ".", "-50", "1e999", "NaN", "+Inf"])
def test_what_no_load_can_be_is_told_as_none(told: str) -> None:
    """One line of one server that is no number ended the reading of all servers for good; less than nothing under
    way would draw every request, infinitely many none.
    """
    lines = f"vllm:num_requests_running {told}\nvllm:num_requests_waiting 1\n"
    assert load_of("vllm", lines.encode()) is None
    full = load_of("vllm", b"vllm:num_requests_running 1\nvllm:kv_cache_usage_perc 87\n")  # a percentage
    assert full is not None
    assert full.kv_used == 1.0


async def test_a_name_of_the_network_is_its_servers(tmp_path: Path) -> None:
    """A headless service names its pods; who comes and goes is found without a restart."""
    del tmp_path
    tasks, transport = Tasks(), DirectTransport()

    def build(url: str) -> Any:
        made = ProviderSettings(kind="vllm", base_url=url)
        return load_kind("vllm").build("f", made, transport=transport, tasks=tasks)

    fleet = Fleet("f", ["dns://localhost:8123/v1", "http://127.0.0.1:9001/v1"], build)
    assert fleet.replicas() == ["127.0.0.1:9001"]
    before = fleet.generation
    await fleet.refresh()
    assert "127.0.0.1:8123" in fleet.replicas()
    assert fleet.generation > before
    kept = fleet.replica("127.0.0.1:9001")
    await fleet.refresh()
    assert fleet.replica("127.0.0.1:9001") is kept
    await transport.close()
    with pytest.raises(ValueError, match="replicas"):
        Fleet("f", ["ftp://x"], build)


async def test_a_name_that_loses_a_server_loses_no_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that is to go leaves the name first and finishes what it has; nobody new is sent there."""
    servers = [ScriptedServer(Options(tokens=40, tpot_ms=25)) for _ in range(2)]
    known = [f"http://127.0.0.1:{await server.start()}/v1" for server in servers]
    named = list(known)

    async def looked_up(address: str) -> list[str]:
        if not named:
            raise OSError(f"{address} has no servers")
        return named

    monkeypatch.setattr("gateway.fleet._looked_up", looked_up)
    models = {"m": {"route": ["pods/m"], "free": True, "strategy": "least_busy"}}
    providers = {"pods": {"kind": "vllm", "replicas": ["dns://pods.lan:8000/v1"]}}
    try:
        async with live(settings(tmp_path, providers=providers, models=models, **PLAIN)) as gateway:
            fleet: Any = gateway.services.providers["pods"]
            await fleet.refresh()
            assert len(fleet.replicas()) == 2
            leaving = servers[1].books.counters
            tasks = Tasks()
            streams = [tasks.spawn(gateway.chat(model="m", stream=True), "stream") for _ in range(8)]
            await until(lambda: sum(server.books.counters.calls for server in servers) == 8)
            named.remove(known[1])
            await fleet.refresh()
            seen = leaving.calls
            assert seen == 4
            told = await asyncio.gather(*streams)
            assert {one.events[-1] for one in told} == {"[DONE]"}
            for _ in range(4):
                assert (await gateway.chat(model="m", max_tokens=1)).status == 200
            assert leaving.calls == seen
            named.clear()  # a name server that is gone takes no servers with it
            await fleet.refresh()
            assert fleet.replicas() == [known[0][7:-3]]
    finally:
        for server in servers:
            await server.close()


class NameServer(asyncio.DatagramProtocol):
    """Answers every question with two service records, one of them of a worse priority, by compressed names."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        head = data[:2] + struct.pack(">HHHHH", 0x8180, 1, 2, 0, 0)
        host = b"\x03one\x03lan\x00"
        records = b""
        for priority, port in ((10, 8001), (20, 8002)):
            rdata = struct.pack(">HHH", priority, 1, port) + host
            records += b"\xc0\x0c" + struct.pack(">HHIH", 33, 1, 30, len(rdata)) + rdata
        self.transport.sendto(head + data[12:] + records, addr)


async def test_service_records_are_read() -> None:
    """Python's resolver cannot ask for them; the best priority counts."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(NameServer, sock=free.dup())
        found = await services("_http._tcp.vllm.lan", servers=[("127.0.0.1", free.getsockname()[1])])
        transport.close()
    assert found == [("one.lan", 8001)]
    with pytest.raises(OSError, match="looked up"):
        await services("x" * 80 + ".lan", servers=[("127.0.0.1", 9)])
