"""What a pair of vLLM servers is asked, byte for byte: whose blocks go where, and whose cache is whose."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
import pytest

from gateway.call import Chunk, Operation
from gateway.providers import Sending, load
from gateway.settings import ProviderSettings
from gateway.tasks import Tasks
from gateway.transport.direct import DirectTransport
from tests.unit.upstream.raw_upstream import RawUpstream, fixed, raw_upstream, response

decode = msgspec.json.Decoder().decode
READ = b'{"choices":[{"index":0,"finish_reason":"length"}],"kv_transfer_params":{"remote_request_id":"r-1"}}'
WROTE = b'{"choices":[{"index":0,"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}'


@asynccontextmanager
async def pair(protocol: str, **more: Any) -> AsyncGenerator[tuple[Any, RawUpstream, RawUpstream]]:
    """A pair's provider, the server that reads and the one that writes."""
    transport = DirectTransport()
    async with (
        raw_upstream(fixed(response("200 OK", READ))) as reads,
        raw_upstream(fixed(response("200 OK", WROTE))) as writes,
    ):
        asked: dict[str, Any] = {"protocol": protocol, "prefill": [reads.url], "decode": [writes.url], **more}
        settings = ProviderSettings(kind="prefill_decode", **asked)
        yield load("prefill_decode").build("pd", settings, transport=transport, tasks=Tasks()), reads, writes
    await transport.close()


async def answered(provider: Any, operation: Operation, body: dict[str, Any]) -> None:
    sending = Sending(
        id="a-1",
        operation=operation,
        model="m",
        body={**body, "model": "m"},
        stream=False,
        tenant="t",
        timeout=9,
        idle=9,
    )
    async with aclosing(provider.send(sending)) as chunks:
        assert [chunk async for chunk in chunks]


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("chat", {"messages": [{"role": "user", "content": "x"}], "n": 2}),
        ("completion", {"prompt": ["one", "two"]}),
        ("completion", {"prompt": [[1, 2], [3]]}),
        ("completion", {"prompt": "one", "best_of": 2}),
    ],
)
@pytest.mark.parametrize("protocol", ["vllm", "llm-d"])
async def test_several_sequences_are_read_by_whoever_writes_them(
    protocol: str, operation: Operation, body: dict[str, Any]
) -> None:
    """vLLM 0.32 told the blocks of the first prompt alone, and the second was then answered from them."""
    async with pair(protocol) as (provider, reads, writes):
        await answered(provider, operation, body)
        assert not reads.heard
        (heard,) = writes.heard
        assert "kv_transfer_params" not in decode(heard.body)
        assert "x-prefiller-host-port" not in heard.headers


@pytest.mark.parametrize("body", [{"prompt": [1, 2, 3]}, {"prompt": ["one"]}, {"prompt": "one", "n": 1}])
async def test_one_sequence_is_shared(body: dict[str, Any]) -> None:
    """The other way round, or the pair would be no pair."""
    async with pair("vllm") as (provider, reads, writes):
        await answered(provider, "completion", body)
        assert decode(reads.heard[0].body)["max_tokens"] == 1
        assert decode(writes.heard[0].body)["kv_transfer_params"] == {"remote_request_id": "r-1"}


async def test_tenants_are_kept_apart_at_both_servers() -> None:
    """A prompt that another tenant has sent was read from the pair's cache, which tells its length and its words."""
    async with pair("vllm") as (provider, reads, writes):
        await answered(provider, "completion", {"prompt": "one"})
        salts = [decode(one.heard[0].body).get("cache_salt") for one in (reads, writes)]
        assert salts[0]
        assert salts[0] == salts[1]
    async with pair("vllm", isolation="none") as (provider, reads, writes):
        await answered(provider, "completion", {"prompt": "one"})
        assert "cache_salt" not in decode(writes.heard[0].body)


class _Slow:
    """A server that takes its time, by the clock that it moves; `heard` keeps how long it might have taken."""

    def __init__(self, clock: list[float], takes: float, says: dict[str, Any]) -> None:
        self._clock, self._takes, self._says = clock, takes, says
        self.heard: list[float] = []

    async def send(self, sending: Sending) -> AsyncGenerator[Chunk, None]:
        self.heard.append(sending.timeout)
        self._clock[0] += self._takes
        yield Chunk(self._says, final=True)


async def test_both_servers_share_the_time_of_one_call() -> None:
    """Each had all of it: a request whose prompt was read late was waited for nearly twice as long as it may take."""
    clock, transport = [100.0], DirectTransport()
    asked: dict[str, Any] = {
        "protocol": "vllm",
        "prefill": ["http://127.0.0.1:1/v1"],
        "decode": ["http://127.0.0.1:2/v1"],
    }
    chosen = ProviderSettings(kind="prefill_decode", **asked)
    made: Any = load("prefill_decode").build(
        "pd", chosen, transport=transport, tasks=Tasks(), monotonic=lambda: clock[0]
    )
    reads, writes = _Slow(clock, 6.5, decode(READ)), _Slow(clock, 0.0, decode(WROTE))
    made._prefill[0].provider, made._decode[0].provider = reads, writes
    await answered(made, "chat", {"messages": [{"role": "user", "content": "x"}]})
    assert (reads.heard, writes.heard) == ([9.0], [2.5])
    await transport.close()
