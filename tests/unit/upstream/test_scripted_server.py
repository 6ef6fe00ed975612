"""The scripted upstream: its bill is what ledgers are proven against, so it must itself be beyond doubt."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.scripted_answers import Request, misfortune, script
from gateway.scripted_calls import Options
from gateway.scripted_server import ScriptedServer
from tests.waiting import until

decode = msgspec.json.Decoder().decode
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Say something."}]}


class Served(msgspec.Struct):
    server: ScriptedServer
    url: str
    bill: Path
    http: aiohttp.ClientSession

    def lines(self) -> list[dict[str, Any]]:
        return [decode(line) for line in self.bill.read_bytes().splitlines()]

    async def stats(self) -> dict[str, Any]:
        async with self.http.get(f"{self.url}/stats") as answer:
            return await answer.json()

    async def idle(self) -> None:
        async with asyncio.timeout(60):
            while (await self.stats())["in_flight"]:  # noqa: ASYNC110 - the other side is watched from outside
                await asyncio.sleep(0.005)


Serve = Callable[[Options], Awaitable[Served]]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncGenerator[Serve]:
    async with AsyncExitStack() as stack:

        async def start(options: Options) -> Served:
            server = ScriptedServer(options, tmp_path / "bill.jsonl")
            port = await server.start()
            stack.push_async_callback(server.close)
            http = await stack.enter_async_context(aiohttp.ClientSession())
            return Served(server, f"http://127.0.0.1:{port}", tmp_path / "bill.jsonl", http)

        yield start


async def post(served: Served, body: object, path: str = "/v1/chat/completions", **headers: str) -> tuple[int, bytes]:
    async with served.http.post(served.url + path, data=msgspec.json.encode(body), headers=headers) as answer:
        return answer.status, await answer.read()


async def test_the_bill_has_one_line_per_call_with_what_was_told(serve: Serve) -> None:
    """Reconciliation joins on `attempt`, our own id sent as x-request-id, and compares tokens."""
    served = await serve(Options())
    status, raw = await post(served, {**CHAT, "max_tokens": 9}, **{"x-request-id": "try-1"})
    body = decode(raw)
    assert status == 200
    assert served.lines() == [
        {
            "id": body["id"],
            "attempt": "try-1",
            "model": "m",
            "stream": False,
            "prompt_tokens": body["usage"]["prompt_tokens"],
            "completion_tokens": body["usage"]["completion_tokens"],
            "ended": "complete",
        }
    ]


@given(st.text(max_size=40), st.none() | st.integers(1, 3_000), st.integers(1, 3))
def test_the_same_prompt_has_the_same_answer_and_the_limit_holds(prompt: str, limit: int | None, n: int) -> None:
    """Caches are measured against it: only what was asked may change what is said."""
    request = Request(model="m", messages=[{"role": "user", "content": prompt}], max_tokens=limit, n=n)
    told = script(request, "chat")
    assert told == script(request, "chat")
    assert len(told.answers) == n
    for answer in told.answers:
        assert 1 <= len(answer.tokens) <= (limit or 39)
        if limit is not None and limit < 8:
            assert (len(answer.tokens), answer.finish) == (limit, "length")
    usage = told.usage()
    assert usage.completion == sum(len(answer.tokens) for answer in told.answers)


@pytest.mark.parametrize(
    ("extra", "length", "finish"),
    [
        ({"max_tokens": 3}, 3, "length"),
        ({"max_tokens": 53}, 53, "stop"),
        ({"max_completion_tokens": 53}, 53, "stop"),
        ({"max_tokens": 2_000, "ignore_eos": True}, 2_000, "length"),
    ],
)
def test_a_number_of_tokens_can_be_asked_for(extra: dict[str, Any], length: int, finish: str) -> None:
    """Benchmarks need answers of a given length, caches need them to end with `stop`."""
    (answer,) = script(msgspec.convert({**CHAT, **extra}, Request), "chat").answers
    assert (len(answer.tokens), answer.finish) == (length, finish)


def test_a_gateways_default_limit_does_not_lengthen_answers() -> None:
    """A gateway injects its own maximum; an answer of four thousand words to every question helps nobody."""
    free = script(msgspec.convert(CHAT, Request), "chat")
    assert script(msgspec.convert({**CHAT, "max_tokens": 4_096}, Request), "chat") == free
    assert 8 <= len(free.answers[0].tokens) < 40


async def test_streams_pace_and_tell_usage_only_when_asked(serve: Serve) -> None:
    """Its own stream must be exactly what OpenAI's is, or it proves nothing about ours."""
    served = await serve(Options(ttft_ms=30, tpot_ms=5))
    started = asyncio.get_running_loop().time()
    _, raw = await post(served, {**CHAT, "stream": True, "max_tokens": 8})
    took = asyncio.get_running_loop().time() - started
    assert took >= 0.065
    events = [line[6:] for line in raw.split(b"\n\n") if line]
    assert events[-1] == b"[DONE]"
    bodies = [decode(event) for event in events[:-1]]
    assert all("usage" not in body and body["choices"] for body in bodies)
    assert "".join(body["choices"][0]["delta"].get("content", "") for body in bodies)
    _, raw = await post(served, {**CHAT, "stream": True, "max_tokens": 8, "stream_options": {"include_usage": True}})
    bodies = [decode(line[6:]) for line in raw.split(b"\n\n") if line and line != b"data: [DONE]"]
    assert bodies[-1]["choices"] == []
    assert bodies[-1]["usage"]["completion_tokens"] == 8
    assert all(body["usage"] is None for body in bodies[:-1])


@pytest.mark.parametrize("stop_on_close", [True, False])
async def test_a_client_that_leaves_is_billed_by_the_profile(stop_on_close: bool, serve: Serve) -> None:
    """Both kinds of provider exist; a ledger must come out right with either."""
    served = await serve(Options(tpot_ms=20, stop_on_close=stop_on_close))
    body = {**CHAT, "stream": True, "max_tokens": 40}
    async with served.http.post(f"{served.url}/v1/chat/completions", json=body) as answer:
        await answer.content.readuntil(b"\n\n")
        await answer.content.readuntil(b"\n\n")
        answer.close()
    await served.idle()
    (line,) = served.lines()
    assert line["ended"] == "closed"
    assert (line["completion_tokens"] < 40) is stop_on_close
    assert line["completion_tokens"] >= 1
    assert (await served.stats())["closed_early"] == 1


@pytest.mark.parametrize("stop_on_close", [True, False])
async def test_a_client_that_leaves_before_its_body_is_billed_too(stop_on_close: bool, serve: Serve) -> None:
    """What was generated by then is known from the pace."""
    served = await serve(Options(ttft_ms=20, tpot_ms=20, stop_on_close=stop_on_close))
    asking = asyncio.get_running_loop().create_task(post(served, {**CHAT, "max_tokens": 40}))

    async def under_way() -> bool:
        return bool((await served.stats())["in_flight"])

    await until(under_way)
    await asyncio.sleep(0.1)
    asking.cancel()
    await served.idle()
    (line,) = served.lines()
    assert line["ended"] == "closed"
    assert 1 <= line["completion_tokens"] < 40 if stop_on_close else line["completion_tokens"] == 40


async def test_cuts_and_failures_come_as_often_as_asked(serve: Serve) -> None:
    """The fates of call 1, 2, 3 … are the same in every run with the same seed."""
    served = await serve(Options(fail_rate=0.3, cut_rate=0.3, seed=5))
    seen: list[str] = []
    for _ in range(60):
        try:
            status, _raw = await post(served, {**CHAT, "stream": True})
            seen.append({200: "none", 500: "error", 429: "limit"}[status])
        except aiohttp.ClientPayloadError:
            seen.append("cut")
    expected = [misfortune(5, number, 0.3, 0.3)[0] for number in range(1, 61)]
    assert seen == expected
    assert set(seen) == {"none", "error", "limit", "cut"}
    stats = await served.stats()
    assert stats["calls"] == 60
    assert stats["cut"] == seen.count("cut")
    assert stats["failed"] == seen.count("error") + seen.count("limit")
    lines = served.lines()
    assert len(lines) == 60
    assert sum(line["completion_tokens"] for line in lines if line["ended"] in ("error", "limit")) == 0
    assert stats["completion_tokens"] == sum(line["completion_tokens"] for line in lines)


async def test_a_rate_limit_says_how_long(serve: Serve) -> None:
    """Retry-After is what gateways are tested with."""
    served = await serve(Options(fail_rate=1.0))
    headers: list[str | None] = []
    for _ in range(20):
        async with served.http.post(f"{served.url}/v1/chat/completions", json=CHAT) as answer:
            if answer.status == 429:
                headers.append(answer.headers.get("retry-after"))
    assert headers
    assert set(headers) == {"1"}


async def test_stats_count_what_runs_at_once(serve: Serve) -> None:
    """Coalescing and concurrency limits are proven with these two numbers."""
    served = await serve(Options(ttft_ms=50))
    await asyncio.gather(*(post(served, CHAT) for _ in range(7)))
    stats = await served.stats()
    assert stats["max_in_flight"] == 7
    assert stats["in_flight"] == 0


async def test_bad_requests_are_refused_and_still_billed_at_nothing(serve: Serve) -> None:
    """A line for every call, also for those that cost nothing."""
    served = await serve(Options())
    for body in (b"", b"[]", b"{}", b'{"model":1}', b"\xff"):
        async with served.http.post(f"{served.url}/v1/chat/completions", data=body) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["type"] == "invalid_request_error"
    assert [line["ended"] for line in served.lines()] == ["refused"] * 5
    assert (await post(served, {}, "/v1/nothing"))[0] == 404


async def test_a_stop_leaves_no_call_out_of_the_bill(serve: Serve) -> None:
    """A call that the stop cut was generated all the same."""
    served = await serve(Options(tpot_ms=100))
    call = asyncio.ensure_future(post(served, {**CHAT, "stream": True}))  # noqa: TID251 - it must run beside the stop
    async with asyncio.timeout(60):
        while not (await served.stats())["in_flight"]:  # noqa: ASYNC110 - the other side is watched from outside
            await asyncio.sleep(0.005)
    await served.server.close()
    with pytest.raises(aiohttp.ClientError):
        await call
    assert [line["ended"] for line in served.lines()] == ["closed"]


async def test_pipelined_requests_are_answered_in_order(serve: Serve) -> None:
    """Load generators pipeline; answers must not overtake each other."""
    served = await serve(Options(ttft_ms=10))
    reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rsplit(":", 1)[1]))
    for n in (1, 2, 3):
        raw = msgspec.json.encode({**CHAT, "max_tokens": n})
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(raw), raw))
    counts: list[int] = []
    for _ in range(3):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        counts.append(decode(await reader.readexactly(length))["usage"]["completion_tokens"])
    writer.close()
    assert counts == [1, 2, 3]
