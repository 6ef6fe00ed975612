"""Servers that count in every event of a stream: what becomes of the counts on the way."""

from typing import Any

import pytest

from gateway.call import Body, Chunk
from gateway.providers import Sending, load
from gateway.settings import ProviderSettings
from gateway.tasks import Tasks
from gateway.transport.direct import DirectTransport
from tests.unit.upstream.raw_upstream import fixed, raw_upstream, response
from tests.unit.upstream.test_golden import Case

OWN = ["vllm", "ray", "dynamo"]


async def chunks_of(kind: str, options: dict[str, bool]) -> list[Chunk]:
    """Of a real server's stream."""
    case, transport = Case.of(f"{kind}/recorded_stream"), DirectTransport()
    async with raw_upstream(fixed(response(case.status, case.body, *case.headers))) as up:
        settings = ProviderSettings(kind=kind, base_url=up.url)
        provider = load(kind).build("up", settings, transport=transport, tasks=Tasks())
        body: Body = {"model": "m", "messages": [], "stream": True, "stream_options": options}
        sending = Sending(id="a", operation="chat", model="m", body=body, stream=True, tenant="t", timeout=9, idle=9)
        found = [chunk async for chunk in provider.send(sending)]
    await transport.close()
    return found


def usage_of(chunk: Chunk) -> Any:
    return chunk.data.get("usage")


@pytest.mark.parametrize("kind", OWN)
async def test_only_the_last_event_tells_usage(kind: str) -> None:
    """Whoever reads events (dialects, the cache) takes usage for the end; the count so far goes beside them."""
    found = await chunks_of(kind, {"include_usage": True})
    assert [bool(chunk.data.get("usage")) for chunk in found] == [False] * (len(found) - 1) + [True]
    told = [chunk.so_far.completion for chunk in found if chunk.so_far is not None]
    assert told[-1] == usage_of(found[-1])["completion_tokens"] == 4
    assert told == sorted(told)


async def test_who_asked_for_them_gets_them_all() -> None:
    """It is vLLM's own option, passed on like any other."""
    found = await chunks_of("vllm", {"include_usage": True, "continuous_usage_stats": True})
    usages = [usage_of(chunk) for chunk in found]
    assert [usage["completion_tokens"] for usage in usages if usage] == [0, 1, 2, 3, 4, 4]
