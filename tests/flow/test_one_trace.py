"""One trace over the wire: the caller's, ours at a collector, and what an upstream is told, all joined."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import msgspec
import pytest

from tests.live import live, settings
from tests.unit.telemetry.test_otlp import CALLER, Collector
from tests.unit.upstream.raw_upstream import Heard, raw_upstream

SECRET = "zebra-crossing-marker"
_BODY = msgspec.json.encode(
    {
        "id": "up-1",
        "object": "chat.completion",
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": f"said {SECRET}"}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }
)


async def answered(writer: asyncio.StreamWriter, heard: Heard) -> None:
    del heard
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(_BODY)}\r\n\r\n"
    writer.write(head.encode() + _BODY)
    await writer.drain()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def test_the_caller_the_gateway_and_the_upstream_share_one_trace(tmp_path: Path, collector: Collector) -> None:
    """A slow answer is looked for in one place, whoever was slow; and no prompt, answer or key goes there with it."""
    async with raw_upstream(answered) as up:
        providers = {"lab": {"kind": "openai", "base_url": up.url, "api_key": "sk-lab-credential"}}
        telemetry = {"otlp": f"http://127.0.0.1:{collector.server_port}", "sample": 0.0}
        async with live(settings(tmp_path, providers=providers, telemetry=telemetry)) as gateway:
            await gateway.services.prices.set("lab/m", input_usd="1", output_usd="2", actor="test", effective_from=0.0)
            asked = [{"role": "user", "content": f"tell me of {SECRET}"}]
            told = await gateway.chat(model="lab/m", messages=asked, headers={"traceparent": CALLER})
            assert told.status == 200
            key, metrics = gateway.key, await asyncio.to_thread(gateway.services.telemetry.exposition)  # pyright: ignore[reportOptionalMemberAccess] - a whole gateway has one
        [heard] = [one for one in up.heard if "completions" in one.line]
    spans = {
        span.name: span
        for _, message in collector.got
        for resource in message.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    }
    assert {"request", "admit", "cache.find", "dispatch", "ledger.hold", "provider.first_chunk"} <= set(spans)
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    assert {span.trace_id.hex() for span in spans.values()} == {trace}
    assert spans["request"].parent_span_id.hex() == parent
    assert heard.headers["traceparent"] == f"00-{trace}-{spans['provider.first_chunk'].span_id.hex()}-01"
    everything = b"".join(message.SerializeToString() for _, message in collector.got) + metrics
    for secret in (SECRET, key, "sk-lab-credential"):
        assert secret.encode() not in everything


async def test_a_collector_that_hangs_delays_nobody(tmp_path: Path) -> None:
    """Telemetry is the first thing that may be lost: answers go on while it is away, and so does the end."""
    hung: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _reader, writer: hung.append(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    telemetry = {"otlp": f"http://127.0.0.1:{port}", "sample": 1.0}
    async with live(settings(tmp_path, telemetry=telemetry)) as gateway:
        for number in range(20):
            said = [{"role": "user", "content": f"question {number}"}]
            assert (await gateway.chat(messages=said)).status == 200
        for writer in hung:
            writer.close()
        server.close()
