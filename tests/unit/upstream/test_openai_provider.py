"""The HTTP provider against an upstream that misbehaves byte by byte, over a real socket."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from msgspec import structs
from pydantic import SecretStr

from gateway.call import Body, Chunk
from gateway.errors import UpstreamFailed, UpstreamRefused, UpstreamTimeout
from gateway.providers import Partial, Sending
from gateway.providers.openai import build
from gateway.settings import ProviderSettings
from gateway.tasks import Tasks
from gateway.transport import Transport
from gateway.transport.aiohttp import AiohttpTransport
from gateway.transport.direct import DirectTransport
from gateway.upstream.compatible import CompatibleProvider
from tests.unit.upstream.raw_upstream import Heard, events, fixed, raw_upstream, response, until_closed

ROLE = b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}'
WORD = b'{"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}'
END = b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
USAGE = b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}'
WHOLE = b'{"choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3}}'
SECRET = "sk-canary-4711"
decode = msgspec.json.Decoder().decode


@pytest.fixture
async def tasks() -> AsyncGenerator[Tasks]:
    made = Tasks()
    yield made
    await made.finish(2.0)


@pytest.fixture(params=[AiohttpTransport, DirectTransport])
async def transport(request: pytest.FixtureRequest) -> AsyncGenerator[Transport]:
    made: Transport = request.param()
    yield made
    await made.close()


def provider(url: str, transport: Transport, tasks: Tasks, **extra: object) -> CompatibleProvider:
    given: dict[str, Any] = {"api_key": SecretStr(SECRET), **extra}
    return build("up", ProviderSettings(kind="openai", base_url=url, **given), transport=transport, tasks=tasks)


def sending(*, stream: bool = True, body: Body | None = None, **given: Any) -> Sending:
    full: Body = {"model": "m", "messages": [], "stream": stream, **(body or {})}
    waits: dict[str, Any] = {"timeout": 5.0, "idle": 5.0, **given}
    return Sending(id="a-1", operation="chat", model="m", body=full, stream=stream, tenant="salt", **waits)


async def run(to: CompatibleProvider, what: Sending) -> tuple[list[Chunk], Exception | None]:
    """The chunks that came and the error after them, if there was one."""
    seen: list[Chunk] = []
    try:
        async with asyncio.timeout(60), aclosing(to.send(what)) as chunks:
            async for chunk in chunks:
                seen.append(chunk)  # noqa: PERF401 - kept also when an error follows
    except (UpstreamFailed, Partial) as error:
        return seen, error
    return seen, None


async def test_the_request_is_what_the_dispatcher_prepared(transport: Transport, tasks: Tasks) -> None:
    """Unknown fields survive, usage is always asked for, the attempt id travels, nothing of the client's does."""
    async with raw_upstream(fixed(events(ROLE, END, USAGE))) as up:
        what = sending(body={"new_parameter": {"x": 1}, "stream_options": {"include_obfuscation": False}})
        _, error = await run(provider(up.url, transport, tasks), what)
        heard = up.heard[0]
    assert error is None
    assert heard.line == "POST /v1/chat/completions HTTP/1.1"
    sent = decode(heard.body)
    assert sent["new_parameter"] == {"x": 1}
    assert sent["stream_options"] == {"include_obfuscation": False, "include_usage": True}
    assert heard.headers["x-request-id"] == "a-1"
    assert heard.headers["authorization"] == f"Bearer {SECRET}"
    ours = {"host", "authorization", "content-type", "content-length", "user-agent", "accept-encoding", "x-request-id"}
    assert set(heard.headers) == ours


async def test_a_body_that_is_not_streamed_carries_no_stream_options(transport: Transport, tasks: Tasks) -> None:
    """OpenAI refuses `stream_options` without `stream`."""
    async with raw_upstream(fixed(response("200 OK", WHOLE))) as up:
        _, error = await run(
            provider(up.url, transport, tasks), sending(stream=False, body={"stream_options": {"include_usage": True}})
        )
        assert "stream_options" not in decode(up.heard[0].body)
    assert error is None


async def test_api_key_none_sends_no_credential(transport: Transport, tasks: Tasks) -> None:
    """Local servers want none, and some refuse one."""
    async with raw_upstream(fixed(response("200 OK", WHOLE))) as up:
        await run(provider(up.url, transport, tasks, api_key=SecretStr("none")), sending(stream=False))
        assert "authorization" not in up.heard[0].headers


async def test_the_tenant_salt_goes_where_the_operator_says(transport: Transport, tasks: Tasks) -> None:
    """Tenants that share one account must not share the upstream's prompt cache."""
    async with raw_upstream(fixed(response("200 OK", WHOLE))) as up:
        await run(provider(up.url, transport, tasks, isolation="cache_salt"), sending(stream=False))
        await run(provider(up.url, transport, tasks), sending(stream=False))
        sent = decode(up.heard[0].body)["cache_salt"]
        assert len(sent) == 32
        assert "salt" not in sent
        assert "cache_salt" not in decode(up.heard[1].body)


async def test_connections_are_used_again(transport: Transport, tasks: Tasks) -> None:
    """A connection per request costs a handshake each, also after streams whose last chunk comes late."""

    async def late(writer: asyncio.StreamWriter, _: Heard) -> None:
        writer.write(events(ROLE, END, USAGE, whole=False))
        await asyncio.sleep(0.02)
        writer.write(b"0\r\n\r\n")

    async with raw_upstream(late) as up:
        to = provider(up.url, transport, tasks)
        for _ in range(3):
            _, error = await run(to, sending())
            assert error is None
            await asyncio.sleep(0.4)  # a busy machine may be late with what comes late
        assert {heard.connection for heard in up.heard} == {1}


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 409, 413, 422])
async def test_a_refusal_is_passed_on_unchanged(status: int, transport: Transport, tasks: Tasks) -> None:
    """A 4xx turned into a 5xx makes every client retry what can never succeed."""
    body = b'{"error":{"message":"no","type":"t","param":"p","code":"c","extra":1}}'
    async with raw_upstream(fixed(response(f"{status} No", body, "retry-after: 7"))) as up:
        for stream in (True, False):
            _, error = await run(provider(up.url, transport, tasks), sending(stream=stream))
            assert isinstance(error, UpstreamRefused)
            assert error.http_status == status
            assert error.detail() == {"message": "no", "type": "t", "param": "p", "code": "c"}
            assert error.may_retry is (status == 408)
            assert error.retry_after == 7.0


@pytest.mark.parametrize("status", [402, 429])
async def test_what_is_short_there_is_told_as_that_services(status: int, transport: Transport, tasks: Tasks) -> None:
    """OpenAI's exhausted quota was told in the words, code and type of a budget here: users asked the wrong people."""
    said = {"type": "insufficient_quota", "param": None, "code": "insufficient_quota"}
    body = msgspec.json.encode({"error": {**said, "message": "You exceeded your current quota."}})
    async with raw_upstream(fixed(response(f"{status} No", body, "retry-after: 7"))) as up:
        for stream in (True, False):
            _, error = await run(provider(up.url, transport, tasks), sending(stream=stream))
            assert isinstance(error, UpstreamRefused)
            told = {**said, "message": "up: You exceeded your current quota."}
            assert (error.detail(), error.message) == (told, told["message"])
            assert (error.http_status, error.may_retry, error.retry_after) == (status, status == 429, 7.0)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirects_are_never_followed(status: int, transport: Transport, tasks: Tasks) -> None:
    """A redirect would carry prompt and credential to a host nobody configured."""
    async with raw_upstream(fixed(response("200 OK", WHOLE))) as other:
        to_other = response(f"{status} Elsewhere", b"", f"location: {other.url}/chat/completions")
        async with raw_upstream(fixed(to_other)) as up:
            _, error = await run(provider(up.url, transport, tasks), sending(stream=False))
        assert type(error) is UpstreamFailed
        assert other.heard == []


@pytest.mark.parametrize("status", [500, 502, 503, 529])
async def test_a_server_error_may_be_tried_elsewhere(status: int, transport: Transport, tasks: Tasks) -> None:
    """It was refused before any work was done, so it costs nothing and the next candidate may answer."""
    async with raw_upstream(fixed(response(f"{status} Oh", b"<html>"))) as up:
        _, error = await run(provider(up.url, transport, tasks), sending())
    assert type(error) is UpstreamFailed
    assert error.retryable
    assert not error.doubtful
    assert str(status) in error.message


async def test_a_refused_connection_cost_nothing(transport: Transport, tasks: Tasks) -> None:
    """Nothing was sent: the attempt is void, not in doubt."""
    async with raw_upstream(fixed(b"")) as up:
        url = up.url
    _, error = await run(provider(url, transport, tasks), sending())
    assert type(error) is UpstreamFailed
    assert not error.doubtful


async def test_a_name_that_does_not_exist_cost_nothing(transport: Transport, tasks: Tasks) -> None:
    """DNS failures are connection failures, told without a traceback."""
    _, error = await run(provider("https://nowhere.invalid/v1", transport, tasks), sending())
    assert type(error) is UpstreamFailed
    assert not error.doubtful


BAD_BODIES = [
    b"null",
    b"<html>busy</html>",
    b"",
    b"[]",
    b"{}",
    b'{"choices":[]}',
    b'{"choices":null}',
    b'{"error":{"message":"x"}}',
]


@pytest.mark.parametrize("body", [*BAD_BODIES, b'{"choices":"x"}', b"\xff\xfe\x00", WHOLE[:-3]])
async def test_a_200_that_is_no_answer_is_a_failure(body: bytes, transport: Transport, tasks: Tasks) -> None:
    """Peers hand `200 null` to their clients; the status does not make it an answer. It may have been billed."""
    async with raw_upstream(fixed(response("200 OK", body))) as up:
        _, error = await run(provider(up.url, transport, tasks), sending(stream=False))
    assert type(error) is UpstreamFailed
    assert error.doubtful


async def test_a_body_shorter_than_its_length_is_a_failure(transport: Transport, tasks: Tasks) -> None:
    """A connection that breaks in the middle of a body has not answered."""
    async with raw_upstream(fixed(response("200 OK", WHOLE)[:-5], close=True)) as up:
        _, error = await run(provider(up.url, transport, tasks), sending(stream=False))
    assert type(error) is UpstreamFailed
    assert error.doubtful


async def test_an_upstream_that_closes_without_a_word_is_in_doubt(transport: Transport, tasks: Tasks) -> None:
    """The request was sent, so the work may have been done."""
    async with raw_upstream(fixed(b"", close=True)) as up:
        _, error = await run(provider(up.url, transport, tasks), sending())
    assert type(error) is UpstreamFailed
    assert error.doubtful


@pytest.mark.parametrize(
    "raw", [b"\x00\x01\x02\r\n\r\n", b"HTTP/9.9 xx\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000]
)
async def test_an_upstream_that_does_not_speak_http_is_a_failure(
    raw: bytes, transport: Transport, tasks: Tasks
) -> None:
    """Also what the HTTP parser itself refuses, endless headers included."""
    async with raw_upstream(fixed(raw, close=True)) as up:
        _, error = await run(provider(up.url, transport, tasks), sending())
    assert type(error) is UpstreamFailed


ENDS = [
    ("without [DONE]", events(ROLE, WORD, END, USAGE, done=False)),
    ("without a finish reason", events(ROLE, WORD)),
    ("with one choice unfinished", events(ROLE, WORD.replace(b'"index":0', b'"index":1'), END)),
    ("cut by HTTP", events(ROLE, WORD, END, done=False, whole=False)),
    ("cut by the connection, silently", until_closed(b"data: " + ROLE + b"\n\ndata: " + WORD + b"\n\n")),
    ("cut inside [DONE]", until_closed(b"data: " + ROLE + b"\n\ndata: " + END + b"\n\ndata: [DO")),
    ("with an error in band", events(ROLE, b'{"error":{"message":"overloaded"}}')),
    ("with HTML", events(ROLE, b"<html>")),
    ("with null", events(ROLE, b"null")),
    ("with an object that is no chunk", events(ROLE, b'{"object":"error","message":"x"}')),
    ("with choices that are none", events(ROLE, b'{"choices":[1]}')),
]


@pytest.mark.parametrize("raw", [raw for _, raw in ENDS], ids=[name for name, _ in ENDS])
async def test_a_stream_that_does_not_end_as_it_should_is_partial(
    raw: bytes, transport: Transport, tasks: Tasks
) -> None:
    """Everything but finish reasons and [DONE] is a broken answer, however cleanly the connection ends."""
    async with raw_upstream(fixed(raw, close=True)) as up:
        seen, error = await run(provider(up.url, transport, tasks), sending())
    assert seen
    assert isinstance(error, Partial)


async def test_usage_that_came_before_the_break_is_not_lost(transport: Transport, tasks: Tasks) -> None:
    """An upstream that told its count and then broke has been paid for; the count settles the attempt."""
    async with raw_upstream(fixed(events(ROLE, END, USAGE, done=False), close=True)) as up:
        _, error = await run(provider(up.url, transport, tasks), sending())
    assert isinstance(error, Partial)
    assert error.usage is not None
    assert error.usage.prompt == 3


@pytest.mark.parametrize("left_out", [b"", b'"choices":null,'])
async def test_an_event_of_nothing_but_usage_needs_no_choices(
    left_out: bytes, transport: Transport, tasks: Tasks
) -> None:
    """Compatible servers leave them out there: a whole answer was told as one that broke off, and kept by nobody."""
    usage = USAGE.replace(b'"choices":[],', left_out)
    async with raw_upstream(fixed(events(ROLE, WORD, END, usage), close=True)) as up:
        seen, error = await run(provider(up.url, transport, tasks), sending())
    assert error is None
    assert (seen[-1].data["choices"], seen[-1].usage and seen[-1].usage.prompt) == ([], 3)


STARTS = [b"<html>", b"null", b'{"error":{"message":"overloaded","code":503}}', b"{}", b"[DONE]"]


@pytest.mark.parametrize("first", STARTS)
async def test_a_stream_that_begins_wrong_can_fail_over(first: bytes, transport: Transport, tasks: Tasks) -> None:
    """Nothing reached the client yet, so it is a failure and not a broken answer."""
    async with raw_upstream(fixed(events(first), close=True)) as up:
        seen, error = await run(provider(up.url, transport, tasks), sending())
    assert seen == []
    assert type(error) is UpstreamFailed
    assert error.doubtful


async def test_a_server_that_never_says_done_can_be_configured(transport: Transport, tasks: Tasks) -> None:
    """Some servers close after the finish reason; the operator may vouch for one, nothing guesses."""
    async with raw_upstream(fixed(events(ROLE, WORD, END, done=False), close=True)) as up:
        to = provider(up.url, transport, tasks, ends_without_done=True)
        seen, error = await run(to, sending())
        assert error is None
        assert seen[-1].finish == "stop"
    async with raw_upstream(fixed(events(ROLE, WORD, done=False), close=True)) as up:
        to = provider(up.url, transport, tasks, ends_without_done=True)
        _, error = await run(to, sending())
        assert isinstance(error, Partial)


async def test_comments_keep_no_dead_answer_alive(transport: Transport, tasks: Tasks) -> None:
    """An upstream that only pings holds connection, budget and client for ever, unless the waits are for chunks."""

    async def pings(writer: asyncio.StreamWriter, heard: Heard) -> None:
        begun = b"content" in heard.body
        writer.write(events(*([ROLE] if begun else []), done=False, whole=False))
        while not writer.is_closing():
            writer.write(b"8\r\n: ping\n\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with raw_upstream(pings) as up:
        to = provider(up.url, transport, tasks)
        _, error = await run(to, sending(timeout=0.2))
        assert isinstance(error, UpstreamTimeout)
        seen, error = await run(to, sending(body={"content": 1}, idle=0.2))
        assert len(seen) == 1
        assert isinstance(error, Partial)


async def test_an_endless_line_does_not_fill_memory(transport: Transport, tasks: Tasks) -> None:
    """The parser's bound ends the answer long before the upstream does."""

    async def flood(writer: asyncio.StreamWriter, _: Heard) -> None:
        writer.write(until_closed(b"data: "))
        while not writer.is_closing():
            writer.write(b"x" * 65_536)
            await writer.drain()

    async with raw_upstream(flood) as up:
        _, error = await run(provider(up.url, transport, tasks), sending())
    assert type(error) is UpstreamFailed
    assert "longer than" in error.message


async def test_the_secret_shows_nowhere(transport: Transport, tasks: Tasks) -> None:
    """Upstreams repeat keys in their errors, logs print objects; neither may give the credential away."""
    repeated = b'{"error":{"message":"Incorrect API key provided: ' + SECRET.encode() + b'"}}'
    async with raw_upstream(fixed(response("401 No", repeated))) as up:
        to = provider(up.url, transport, tasks)
        _, error = await run(to, sending())
    assert isinstance(error, UpstreamRefused)
    in_band = repeated.replace(b'{"error"', b'{"x":1,"error"')
    async with raw_upstream(fixed(events(ROLE, in_band))) as up:
        _, partial = await run(provider(up.url, transport, tasks), sending())
    shown = f"{to!r} {vars(to)['_credential']!r} {error} {error.body()!r} {error.upstream_error} {partial}"
    assert SECRET not in shown
    assert "[redacted]" in shown


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"base_url": "ftp://x/v1"}, "https"),
        ({"base_url": "https://user:pass@host/v1"}, "user name"),
        ({"base_url": "http://10.0.0.7/v1"}, "unencrypted"),
        ({"base_url": None, "api_key": None}, "api_key"),
        ({"headers": {"Authorization": "x"}}, "Authorization"),
        ({"no_such_setting": 1}, "no_such_setting"),
        ({"api_key": SecretStr("a\nb")}, "characters"),
    ],
)
async def test_a_configuration_that_cannot_be_right_is_refused(
    given: dict[str, Any], word: str, transport: Transport, tasks: Tasks
) -> None:
    """At the start and by name, not at the first request."""
    settings: dict[str, Any] = {"kind": "openai", "base_url": "https://host/v1", "api_key": SecretStr("k"), **given}
    with pytest.raises(ValueError, match=word):
        build("up", ProviderSettings(**settings), transport=transport, tasks=tasks)


async def test_models_are_asked_for_or_configured(transport: Transport, tasks: Tasks) -> None:
    """The catalog shows what an upstream really has, unless the operator says otherwise."""
    listed = b'{"data":[{"id":"a"},{"id":"b/c"},{"x":1},7]}'
    async with raw_upstream(fixed(response("200 OK", listed))) as up:
        assert await provider(up.url, transport, tasks).models() == ["a", "b/c"]
        assert await provider(up.url, transport, tasks, models=["z"]).models() == ["z"]
    async with raw_upstream(fixed(response("500 Oh", b""))) as up:
        with pytest.raises(UpstreamFailed):
            await provider(up.url, transport, tasks).models()


async def test_closing_early_ends_the_upstream_connection(transport: Transport, tasks: Tasks) -> None:
    """Upstreams stop working, and billing, when the connection ends."""
    ended = asyncio.Event()

    async def endless(writer: asyncio.StreamWriter, _: Heard) -> None:
        writer.write(events(ROLE, WORD, done=False, whole=False))
        try:
            while True:
                writer.write(b"8\r\n: ping\n\n\r\n")
                await writer.drain()
                await asyncio.sleep(0.005)
        finally:
            ended.set()

    async with raw_upstream(endless) as up:
        chunks = provider(up.url, transport, tasks).send(sending())
        await anext(chunks)
        await chunks.aclose()
        async with asyncio.timeout(60):
            await ended.wait()
        assert up.gone == 1


async def test_a_storm_of_cancellations_leaves_the_transport_usable(transport: Transport, tasks: Tasks) -> None:
    """Pools have been seen to fill up for good under timeouts and cancellations; ours must answer afterwards."""

    async def slow(writer: asyncio.StreamWriter, _: Heard) -> None:
        await asyncio.sleep(0.02)
        writer.write(response("200 OK", WHOLE))

    async with raw_upstream(slow) as up:
        to = provider(up.url, transport, tasks)
        for round_ in range(5):
            calls = [asyncio.ensure_future(run(to, sending(stream=False))) for _ in range(20)]  # noqa: TID251 - to cancel
            await asyncio.sleep(0.004 * round_)
            for call in calls[::2]:
                call.cancel()
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert sum(isinstance(result, asyncio.CancelledError) for result in results) <= 10
        for _ in range(5):
            _, error = await run(to, sending(stream=False))
            assert error is None


@pytest.mark.parametrize(
    ("url", "model", "field"),
    [
        ("https://api.openai.com/v1", "gpt-5-mini", "max_completion_tokens"),
        ("https://eu.api.openai.com/v1", "gpt-4o", "max_completion_tokens"),
        ("https://east.openai.azure.com/openai/v1", "mine", "max_completion_tokens"),
        ("https://proxy.example/v1", "openai/gpt-5.1", "max_completion_tokens"),
        ("https://proxy.example/v1", "o3-mini", "max_completion_tokens"),
        ("https://proxy.example/v1", "gpt-4o", "max_tokens"),
        ("https://notopenai.com/v1", "llama-3", "max_tokens"),
    ],
)
async def test_an_output_limit_has_a_name_that_is_honoured(url: str, model: str, field: str, tasks: Tasks) -> None:
    """OpenAI's models that reason refuse `max_tokens`; some imitators ignore the newer name, and write on and on."""
    transport = DirectTransport()
    to = provider(url, transport, tasks)
    asked = sending(stream=False, body={"model": model, "max_tokens": 7})
    sent = to._prepared(structs.replace(asked, model=model))
    assert {name: value for name, value in sent.items() if name.startswith("max_")} == {field: 7}
    legacy = to._prepared(structs.replace(asked, model=model, operation="completion"))
    assert legacy["max_tokens"] == 7, "the legacy endpoint knows no other name"
    await transport.close()
