"""What every provider must do, whatever it talks to: one suite over all of `gateway/providers`.

`scripted` runs in process, `openai` against the scripted server over a real socket, `local` on a simulated engine,
every other language against a fake of its own (`tests.languages`) over a real socket.
"""

import asyncio
import base64
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Any

import numpy as np
import pytest
from msgspec import Struct

from cache.embedder import HashEncoder
from engine.api import EngineFailed
from engine.sim import SimEngine
from gateway.call import Body, Chunk, Operation
from gateway.errors import GatewayError, InvalidRequest, UpstreamFailed, UpstreamTimeout
from gateway.providers import Cannot, Partial, Provider, Sending, known, load
from gateway.providers import local as local_provider
from gateway.scripted_calls import Options
from gateway.scripted_server import ScriptedServer
from gateway.settings import ProviderSettings
from gateway.stream import fold, read_usage
from gateway.tasks import Tasks
from gateway.transport import Transport
from gateway.transport.aiohttp import AiohttpTransport
from gateway.transport.direct import DirectTransport
from gateway.upstream.quirks import Quirks
from tests.languages.anthropic import Anthropic
from tests.languages.azure import Azure
from tests.languages.bedrock import Bedrock
from tests.languages.gemini import Gemini
from tests.wire_upstream import Language, Manner, wire_upstream

CHAT: Body = {"messages": [{"role": "user", "content": "Say something."}], "max_tokens": 12}
FAR = 10.0
EMBEDDER = "cohere.embed-x"  # Bedrock's languages go by the name


class Case(Struct, frozen=True, kw_only=True):
    """How the upstream behaves. `fails`: before its first chunk; `cuts`: after it."""

    ttft_ms: float = 0.0
    tpot_ms: float = 0.0
    fails: bool = False
    cuts: bool = False


class Bench(Struct):
    """A provider and how to see that nothing of a call is left upstream: `left()` is awaited until it is 0.

    `lacks`: what the language behind it does not have and must be refused (`n`, `completion`, `embedding`).
    """

    provider: Provider
    left: Callable[[], int]
    closed_early: Callable[[], int]
    lacks: frozenset[str] = frozenset()


Build = Callable[[Case], Awaitable[Bench]]
Builder = Callable[[Case, AsyncExitStack], Awaitable[Bench]]


async def scripted(case: Case, stack: AsyncExitStack) -> Bench:
    extra = {
        "ttft_ms": case.ttft_ms,
        "tpot_ms": case.tpot_ms,
        "fail_rate": 1.0 if case.fails else 0.0,
        "cut_rate": 1.0 if case.cuts else 0.0,
        "seed": 3,
    }
    settings = ProviderSettings(kind="scripted", **extra)  # type: ignore[arg-type]
    provider = load("scripted").build("scripted", settings, transport=await transport(stack), tasks=Tasks())
    return Bench(provider, lambda: 0, lambda: provider.closed_early)


async def openai(
    case: Case, stack: AsyncExitStack, kind: type[Transport] = AiohttpTransport, name: str = "openai"
) -> Bench:
    options = Options(
        ttft_ms=case.ttft_ms,
        tpot_ms=case.tpot_ms,
        fail_rate=1.0 if case.fails else 0.0,
        cut_rate=1.0 if case.cuts else 0.0,
        seed=3,
    )
    server = ScriptedServer(options)
    port = await server.start()
    stack.push_async_callback(server.close)
    tasks = Tasks()
    stack.push_async_callback(tasks.finish, 1.0)
    # The scripted server tells usage where it is asked for; who tells it unasked has that in golden cases.
    settings = ProviderSettings(kind=name, base_url=f"http://127.0.0.1:{port}/v1", usage_in_streams=True)  # type: ignore[call-arg]
    made = await transport(stack, kind)
    provider = load(name).build(name, settings, transport=made, tasks=tasks)
    counters = server.books.counters
    lacks = _lacks(provider.manner.quirks) if name in COMPATIBLE else frozenset[str]()
    return Bench(provider, lambda: counters.in_flight, lambda: counters.closed_early, lacks)


# Services that speak OpenAI's language; what is their own is in their golden cases.
COMPATIBLE = (
    "deepseek",
    "dynamo",
    "fireworks",
    "groq",
    "llamacpp",
    "lmstudio",
    "mistral",
    "ollama",
    "openrouter",
    "ray",
    "sglang",
    "tgi",
    "together",
    "vllm",
    "xai",
)


def _lacks(quirks: Quirks) -> frozenset[str]:
    """As the service's own file has it; a refusal of it is tested like anything else."""
    single = {name for name, one in (("n", quirks.one_choice), ("prompts", quirks.one_prompt)) if one}
    return frozenset({"completion", "embedding"} - quirks.operations) | single


def compatible(name: str) -> Builder:
    async def made(case: Case, stack: AsyncExitStack) -> Bench:
        return await openai(case, stack, DirectTransport, name)

    return made


async def local(case: Case, stack: AsyncExitStack) -> Bench:
    engine = SimEngine(
        ttft_ms=case.ttft_ms,
        tpot_ms=case.tpot_ms,
        fail=EngineFailed("as it was told to") if case.fails or case.cuts else None,
        fail_after=2 if case.cuts else 0,
    )
    await engine.start()
    stack.push_async_callback(engine.stop)
    tasks = Tasks()
    stack.push_async_callback(tasks.finish, 1.0)
    provider = local_provider.build({"m": engine}, HashEncoder(), tasks=tasks, encoder_name=EMBEDDER)
    closed = _Closed(engine)
    return Bench(provider, lambda: engine.stats().running, closed.count)


class _Closed:
    """The simulated engine does not count closed streams, but its usage of one is known only once it has ended."""

    def __init__(self, engine: SimEngine) -> None:
        self._engine = engine

    def count(self) -> int:
        return int(self._engine.usage_of("attempt.0") is not None)


async def openai_direct(case: Case, stack: AsyncExitStack) -> Bench:
    return await openai(case, stack, DirectTransport)


async def anthropic(case: Case, stack: AsyncExitStack) -> Bench:
    return await spoken(case, stack, "anthropic", Anthropic(), frozenset({"n", "completion", "embedding"}))


async def gemini(case: Case, stack: AsyncExitStack) -> Bench:
    return await spoken(case, stack, "gemini", Gemini(), frozenset({"completion"}))


async def azure(case: Case, stack: AsyncExitStack) -> Bench:
    return await spoken(case, stack, "azure", Azure(), frozenset())


async def bedrock(case: Case, stack: AsyncExitStack) -> Bench:
    return await spoken(case, stack, "bedrock", Bedrock(), frozenset({"n", "completion"}))


async def spoken(case: Case, stack: AsyncExitStack, kind: str, language: Language, lacks: frozenset[str]) -> Bench:
    manner = Manner(ttft_ms=case.ttft_ms, tpot_ms=case.tpot_ms, fails=case.fails, cut=case.cuts)
    up = await stack.enter_async_context(wire_upstream(language, manner))
    tasks = Tasks()
    stack.push_async_callback(tasks.finish, 1.0)
    settings = ProviderSettings(kind=kind, base_url=f"http://127.0.0.1:{up.port}")
    provider = load(kind).build(kind, settings, transport=await transport(stack), tasks=tasks)
    return Bench(provider, lambda: up.in_flight, lambda: up.closed_early, lacks)


async def transport(stack: AsyncExitStack, kind: type[Transport] = AiohttpTransport) -> Transport:
    made = kind()
    stack.push_async_callback(made.close)
    return made


async def prefill_decode(case: Case, stack: AsyncExitStack) -> Bench:
    """The server that reads is always quick and sound; the one that writes behaves as the case says."""
    fails = 1.0 if case.fails else 0.0
    writes = Options(
        role="decode",
        ttft_ms=case.ttft_ms,
        tpot_ms=case.tpot_ms,
        fail_rate=fails,
        cut_rate=1.0 if case.cuts else 0.0,
        seed=3,
    )
    servers = [ScriptedServer(Options(role="prefill")), ScriptedServer(writes)]
    urls: list[str] = []
    for server in servers:
        urls.append(f"http://127.0.0.1:{await server.start()}/v1")
        stack.push_async_callback(server.close)
    tasks = Tasks()
    stack.push_async_callback(tasks.finish, 1.0)
    extra = {"protocol": "vllm", "prefill": urls[:1], "decode": urls[1:]}
    settings = ProviderSettings(kind="prefill_decode", **extra)  # type: ignore[arg-type]
    made = await transport(stack, DirectTransport)
    provider = load("prefill_decode").build("pd", settings, transport=made, tasks=tasks)
    counters = [server.books.counters for server in servers]
    return Bench(provider, lambda: sum(one.in_flight for one in counters), lambda: counters[1].closed_early)


BUILDERS: dict[str, Builder] = {
    "prefill_decode": prefill_decode,
    **{name: compatible(name) for name in COMPATIBLE},
    "scripted": scripted,
    "openai": openai,
    "openai-direct": openai_direct,
    "local": local,
    "anthropic": anthropic,
    "gemini": gemini,
    "azure": azure,
    "bedrock": bedrock,
}


@pytest.fixture(params=sorted(BUILDERS))
async def build(request: pytest.FixtureRequest) -> AsyncGenerator[Build]:
    async with AsyncExitStack() as stack:
        yield lambda case: BUILDERS[request.param](case, stack)


def sending(operation: Operation = "chat", *, stream: bool = True, body: Body | None = None, **given: Any) -> Sending:
    model = EMBEDDER if operation == "embedding" else "m"
    waits: dict[str, Any] = {"timeout": FAR, "idle": FAR, **given}
    full = {**(CHAT if body is None else body), "model": model, "stream": stream}
    return Sending(id="attempt", operation=operation, model=model, body=full, stream=stream, tenant="t", **waits)


async def collect(provider: Provider, what: Sending) -> list[Chunk]:
    async with aclosing(provider.send(what)) as chunks:
        return [chunk async for chunk in chunks]


async def until_partial(provider: Provider, what: Sending) -> list[Chunk]:
    """The chunks before the answer broke off; fails when it ends like a whole one."""
    seen: list[Chunk] = []
    async with asyncio.timeout(60), aclosing(provider.send(what)) as chunks:
        try:
            async for chunk in chunks:
                seen.append(chunk)  # noqa: PERF401 - the chunks before the break are what is asked for
        except Partial:
            return seen
    pytest.fail("the answer ended as if it were whole")


async def refused(bench: Bench, what: Sending) -> str | None:
    """The field named by the refusal."""
    with pytest.raises(InvalidRequest) as refusal:
        await collect(bench.provider, what)
    return refusal.value.param


def finishes(chunks: list[Chunk]) -> list[int]:
    """The index of every finish reason, in order of coming."""
    found: list[int] = []
    for chunk in chunks:
        choices: Any = chunk.data["choices"]
        found += [choice["index"] for choice in choices if choice.get("finish_reason")]
    return found


def test_every_kind_is_under_contract() -> None:
    """A provider added to the folder but not to this suite would be proven by nobody."""
    untested = set(known()) - set(BUILDERS)
    assert not untested, untested


async def test_a_stream_opens_with_a_role_and_finishes_once(build: Build) -> None:
    """Clients build their message from the first delta and stop at the finish; two of either breaks them."""
    bench = await build(Case())
    chunks = await collect(bench.provider, sending())
    first: Any = chunks[0].data["choices"]
    assert first[0]["delta"]["role"] == "assistant"
    assert finishes(chunks) == [0]
    assert [chunk.finish for chunk in chunks if chunk.finish] == ["length"]
    assert not any(chunk.final for chunk in chunks)


async def test_usage_comes_with_a_chunk_of_its_own_at_the_end(build: Build) -> None:
    """Without the upstream's own count there is no exact money, so it is asked for and handed on."""
    bench = await build(Case())
    chunks = await collect(bench.provider, sending())
    assert chunks[-1].data["choices"] == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage == read_usage(chunks[-1].data)
    assert chunks[-1].usage.completion == 12
    assert chunks[-1].usage.prompt > 0


async def test_both_of_two_choices_finish(build: Build) -> None:
    """Gateways are known to lose every choice but the first in a stream."""
    bench = await build(Case())
    if "n" in bench.lacks:
        assert await refused(bench, sending(body={**CHAT, "n": 2})) == "n"
        return
    chunks = await collect(bench.provider, sending(body={**CHAT, "n": 2}))
    assert sorted(finishes(chunks)) == [0, 1]
    folded: Any = fold(chunk.data for chunk in chunks)
    assert [choice["index"] for choice in folded["choices"]] == [0, 1]
    assert all(choice["message"]["content"] for choice in folded["choices"])
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion == 24


async def test_a_body_comes_as_one_final_chunk(build: Build) -> None:
    """What is not streamed is a stream of exactly one chunk; the path below the route knows no other form."""
    bench = await build(Case())
    chunks = await collect(bench.provider, sending(stream=False))
    assert [chunk.final for chunk in chunks] == [True]
    body: Any = chunks[0].data
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"]["role"] == "assistant"
    assert chunks[0].finish == "length"
    assert chunks[0].usage is not None
    assert chunks[0].usage.completion == 12


async def test_a_folded_stream_is_the_body(build: Build) -> None:
    """An answer kept from a stream must serve a client that wants one body, and the reverse."""
    bench = await build(Case())
    streamed: Any = fold(chunk.data for chunk in await collect(bench.provider, sending()))
    body: Any = (await collect(bench.provider, sending(stream=False)))[0].data
    assert streamed["choices"] == body["choices"]
    assert streamed["usage"] == body["usage"]


async def test_legacy_completions_of_several_prompts(build: Build) -> None:
    """`prompt` may be a list and `n` multiplies it; the answers stand in order of prompt, then of copy."""
    bench = await build(Case())
    copies = 1 if "n" in bench.lacks else 2
    body: Body = {"prompt": ["one", "two"], "n": copies, "max_tokens": 5}
    if "completion" in bench.lacks:
        assert await refused(bench, sending("completion", body=body)) == "model"
        return
    if "prompts" in bench.lacks:
        assert await refused(bench, sending("completion", body=body)) == "prompt"
        return
    whole: Any = (await collect(bench.provider, sending("completion", stream=False, body=body)))[0].data
    assert [choice["index"] for choice in whole["choices"]] == list(range(2 * copies))
    assert whole["object"] == "text_completion"
    chunks = await collect(bench.provider, sending("completion", body=body))
    assert sorted(finishes(chunks)) == list(range(2 * copies))
    folded: Any = fold(chunk.data for chunk in chunks)
    assert [choice["text"] for choice in folded["choices"]] == [choice["text"] for choice in whole["choices"]]
    for chunk in chunks:
        choices: Any = chunk.data["choices"]
        assert all(isinstance(choice["text"], str) for choice in choices)


async def test_embeddings_come_in_order_and_in_both_encodings(build: Build) -> None:
    """The official clients ask for base64 and decode little-endian float32; it must be the same vector."""
    bench = await build(Case())
    body: Body = {"input": ["first text", "second text"]}
    if "embedding" in bench.lacks:
        assert await refused(bench, sending("embedding", stream=False, body=body)) == "model"
        return
    plain: Any = (await collect(bench.provider, sending("embedding", stream=False, body=body)))[0].data
    coded: Any = (
        await collect(bench.provider, sending("embedding", stream=False, body={**body, "encoding_format": "base64"}))
    )[0].data
    assert [row["index"] for row in plain["data"]] == [0, 1]
    for row, other in zip(plain["data"], coded["data"], strict=True):
        decoded = np.frombuffer(base64.b64decode(other["embedding"]), "<f4")
        np.testing.assert_allclose(decoded, row["embedding"], rtol=1e-6)
    assert read_usage(plain) is not None


async def test_closing_the_stream_closes_the_upstream(build: Build) -> None:
    """A client that left must not keep tokens coming that somebody pays for."""
    bench = await build(Case(tpot_ms=20))
    chunks = bench.provider.send(sending())
    await anext(chunks)
    await anext(chunks)
    await chunks.aclose()
    async with asyncio.timeout(60):
        while bench.left() or not bench.closed_early():  # noqa: ASYNC110 - the other side is watched from outside
            await asyncio.sleep(0.005)
    assert bench.closed_early() == 1


async def test_failure_before_the_first_chunk_is_an_error_of_ours(build: Build) -> None:
    """Only then may the next candidate be tried, so it must be told apart from a broken answer."""
    bench = await build(Case(fails=True))
    for stream in (True, False):
        with pytest.raises(GatewayError):
            await collect(bench.provider, sending(stream=stream))


ASKS: list[tuple[Operation, Body]] = [
    ("chat", {}),
    ("chat", {"n": 2}),
    ("chat", {"n": 1, "logprobs": False, "store": False}),
    ("chat", {"logprobs": True, "top_logprobs": 2}),
    ("chat", {"logit_bias": {"5": 1}}),
    ("chat", {"seed": 5}),
    ("chat", {"prediction": {"type": "content", "content": "word"}}),
    ("chat", {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}),
    ("chat", {"functions": [{"name": "f", "parameters": {}}]}),
    ("chat", {"presence_penalty": 0.5}),
    ("completion", {"prompt": "Say something."}),
    ("embedding", {"input": "one"}),
    ("moderation", {"input": "one"}),
]


async def test_what_it_says_it_cannot_do_is_what_it_refuses(build: Build) -> None:
    """Routes leave a place out by what its provider says of itself: more would hide it, less is a needless 400."""
    bench = await build(Case())
    cannot: Cannot | None = getattr(bench.provider, "cannot", None)
    for operation, asks in ASKS:
        body = {**(CHAT if operation == "chat" else {"max_tokens": 2} if operation == "completion" else {}), **asks}
        said = "" if cannot is None else cannot(operation, body, None)
        refusal = ""
        try:
            await collect(bench.provider, sending(operation, stream=False, body=body))
        except InvalidRequest as problem:
            refusal = operation if problem.code == "unsupported_operation" else str(problem.param)
        except GatewayError:
            pass  # the service behind it is a fake that has not everything
        assert said == refusal, (operation, asks)


async def test_a_cut_stream_is_partial_and_never_whole(build: Build) -> None:
    """A cut that looks like an end poisons caches and bills."""
    bench = await build(Case(cuts=True))
    seen = await until_partial(bench.provider, sending())
    assert seen
    assert finishes(seen) == []


async def test_silence_after_the_first_chunk_is_partial(build: Build) -> None:
    """A stalled upstream holds a connection and a budget; `idle` bounds it."""
    bench = await build(Case(tpot_ms=5_000))
    seen = await until_partial(bench.provider, sending(idle=0.05))
    assert seen


async def test_silence_before_the_first_chunk_is_a_timeout(build: Build) -> None:
    """The wait for the first chunk is bounded apart, and what ends there can still fail over."""
    bench = await build(Case(ttft_ms=5_000))
    for stream in (True, False):
        async with asyncio.timeout(60):
            with pytest.raises(UpstreamFailed) as failure:
                await collect(bench.provider, sending(stream=stream, timeout=0.3))
            # On a machine that needs as long to connect it is told as that.
            assert isinstance(failure.value, UpstreamTimeout) or "cannot be reached" in str(failure.value)


async def test_many_calls_at_once_keep_apart(build: Build) -> None:
    """Shared connections and queues must never hand one call's tokens to another."""
    bench = await build(Case(tpot_ms=0.2))

    async def one(number: int, stream: bool) -> object:
        body: Body = {"messages": [{"role": "user", "content": f"question {number}"}], "max_tokens": 80}
        what = Sending(
            id=f"attempt-{number}-{stream}",
            operation="chat",
            model="m",
            body={**body, "stream": stream},
            stream=stream,
            tenant="t",
            timeout=FAR,
            idle=FAR,
        )
        chunks = await collect(bench.provider, what)
        folded: Any = fold(chunk.data for chunk in chunks)
        return folded["choices"][0]["message"]["content"]

    answers = await asyncio.gather(*(one(number, stream) for number in range(20) for stream in (True, False)))
    pairs = list(zip(answers[::2], answers[1::2], strict=True))
    assert all(streamed == whole for streamed, whole in pairs)
    assert len({streamed for streamed, _ in pairs}) > 1


async def test_models_and_readiness_are_told(build: Build) -> None:
    """The catalog and /health/ready are made of these answers."""
    bench = await build(Case())
    assert all(isinstance(name, str) for name in await bench.provider.models())
    assert bench.provider.ready() is None
    assert bench.provider.name
    assert bench.provider.billing in ("stops-on-close", "bills-anyway")
    await bench.provider.close()
