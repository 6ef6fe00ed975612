"""Servers that count in every event of a stream: what becomes of the counts on the way."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest

from gateway.call import Body, Chunk
from gateway.errors import GatewayError
from gateway.providers import Partial, Sending, load
from gateway.settings import ProviderSettings
from gateway.tasks import Tasks
from gateway.transport.direct import DirectTransport
from tests.unit.upstream.raw_upstream import Heard, fixed, raw_upstream, response
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


def counted(index: int, prompt: int, completion: int) -> bytes:
    """An event of vLLM's that counts what its own choice has used."""
    usage = f'{{"prompt_tokens":{prompt},"completion_tokens":{completion},"total_tokens":{prompt + completion}}}'
    return b'data: {"id":"a","choices":[{"index":%d,"text":"x","finish_reason":null}],"usage":%b}\n\n' % (
        index,
        usage.encode(),
    )


async def so_far(kind: str, events: bytes, asked: Body) -> list[Any]:
    """What is known along the way of a stream that breaks off."""
    transport, found = DirectTransport(), list[Chunk]()
    async with raw_upstream(fixed(response("200 OK", events, "content-type: text/event-stream"))) as up:
        provider = load(kind).build(
            "up", ProviderSettings(kind=kind, base_url=up.url), transport=transport, tasks=Tasks()
        )
        body: Body = {"model": "m", "stream": True, **asked}
        sending = Sending(
            id="a", operation="completion", model="m", body=body, stream=True, tenant="t", timeout=9, idle=9
        )
        with suppress(Partial):
            async for chunk in provider.send(sending):
                found.append(chunk)
    await transport.close()
    return [chunk.so_far and (chunk.so_far.prompt, chunk.so_far.completion) for chunk in found]


async def test_counts_of_several_answers_are_added_up() -> None:
    """vLLM counts each choice by itself: who left two answers of 40 tokens paid for one of them."""
    events = counted(0, 7, 40) + counted(1, 7, 39) + counted(0, 7, 41)
    assert await so_far("vllm", events, {"prompt": "p", "n": 2}) == [(7, 40), (7, 79), (7, 80)]


async def test_dynamo_counts_all_answers_in_every_event() -> None:
    """Its frontend adds up by itself: what it says would be doubled."""
    events = counted(0, 7, 40) + counted(1, 7, 79)
    assert await so_far("dynamo", events, {"prompt": "p", "n": 2}) == [(7, 40), (7, 79)]


async def test_of_several_prompts_nobody_knows_how_much_was_read() -> None:
    """Each event tells its own prompt alone, and others may have been read meanwhile: the bound is taken then."""
    events = counted(0, 7, 1) + counted(1, 9, 1)
    assert await so_far("vllm", events, {"prompt": ["p", "q"]}) == [None, None]


async def test_counts_are_asked_for_whatever_a_client_wants_told() -> None:
    """A client that wants none in its events would else pay a token for every byte when it leaves."""
    found = await chunks_of("vllm", {"include_usage": True, "continuous_usage_stats": False})
    assert found[-2].so_far is not None
    sent: list[dict[str, Any]] = []
    transport = DirectTransport()

    async def answer(writer: Any, heard: Heard) -> None:
        sent.append(msgspec.json.decode(heard.body))
        await fixed(response("400 No", b"{}", "content-type: application/json"))(writer, heard)

    async with raw_upstream(answer) as up:
        provider = load("vllm").build(
            "up", ProviderSettings(kind="vllm", base_url=up.url), transport=transport, tasks=Tasks()
        )
        body: Body = {"model": "m", "messages": [], "stream_options": {"continuous_usage_stats": False}}
        sending = Sending(id="a", operation="chat", model="m", body=body, stream=True, tenant="t", timeout=9, idle=9)
        with pytest.raises(GatewayError):
            _ = [chunk async for chunk in provider.send(sending)]
    await transport.close()
    assert sent[0]["stream_options"]["continuous_usage_stats"] is True
