"""What every engine promises, asked of the simulated one and of the torch engine in its own process."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from engine.api import (
    Delta,
    Engine,
    EngineUsage,
    GenerateRequest,
    InvalidRequest,
    SamplingParams,
)
from engine.client import EngineClient
from engine.sim import SimEngine
from engine.testing import fork_process, until, until_ready

LONG = "The quick brown fox jumps over the lazy dog. " * 10
KINDS = ("sim", "qwen3", "llama")


@pytest.fixture(scope="module")
def sockets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """One process per family for all tests of this file: they also prove that clients may come and go."""
    folder = tmp_path_factory.mktemp("engines")
    found = {family: folder / f"{family}.sock" for family in ("qwen3", "llama")}
    started = [fork_process(f"tiny-random:{family}", path) for family, path in found.items()]
    yield found
    for process in started:
        process.terminate()
    assert [process.ended() for process in started] == [0, 0]


@pytest.fixture(params=KINDS)
async def engine(request: pytest.FixtureRequest, sockets: dict[str, Path]) -> AsyncGenerator[Engine, None]:
    if request.param == "sim":
        sim = SimEngine(tpot_ms=1, text=LONG, context=2048)
        await sim.start()
        yield sim
        await sim.stop()
        return
    client = EngineClient(f"tiny-random:{request.param}", sockets[request.param])
    await client.start()
    await until_ready(client)
    yield client
    await client.stop()


def ask(id: str = "r", **changes: Any) -> GenerateRequest:
    sampling: dict[str, Any] = {"max_tokens": 24, "seed": 5, "ignore_eos": True}
    prompt: dict[str, Any] = {"messages": [{"role": "user", "content": "Say something about foxes, please."}]}
    for name in ("messages", "text", "token_ids"):
        if name in changes:
            prompt = {name: changes.pop(name)}
    outer = {name: changes.pop(name) for name in ("salt", "priority", "deadline_ms") if name in changes}
    return GenerateRequest(id=id, sampling=SamplingParams(**(sampling | changes)), **prompt, **outer)


async def everything(engine: Engine, request: GenerateRequest) -> list[Delta]:
    return [delta async for delta in engine.generate(request)]


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


async def usage(engine: Engine, request_id: str) -> EngineUsage:
    await until(lambda: engine.usage_of(request_id) is not None, "the usage")
    found = engine.usage_of(request_id)
    assert found is not None
    return found


async def until_idle(engine: Engine) -> None:
    await until(lambda: engine.stats().running + engine.stats().waiting == 0, "an idle engine")


async def test_ends_exactly_once_with_exact_usage(engine: Engine) -> None:
    """A gateway bills by the terminal delta: there must be one, last, with the tokens that really came."""
    request = ask()
    deltas = await everything(engine, request)
    assert [delta.finish_reason is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    last = deltas[-1]
    assert last.finish_reason == "length"
    assert last.usage is not None
    assert last.timing is not None
    assert last.usage.completion == sum(len(delta.token_ids) for delta in deltas) == 24
    assert last.usage.prompt == await engine.count_tokens(request) > 0
    assert engine.usage_of("r") == last.usage
    assert all(delta.usage is None for delta in deltas[:-1])
    assert last.timing.ttft_ms >= last.timing.queue_ms >= 0


async def test_tokens_are_those_that_are_read(engine: Engine) -> None:
    """Whoever cuts a prompt by them must hit the same place; where no model runs there are none to make up."""
    request = ask(text=LONG)
    if isinstance(engine, SimEngine):
        with pytest.raises(InvalidRequest):
            await engine.tokens(request)
        return
    ids = await engine.tokens(request)
    assert len(ids) == await engine.count_tokens(request) > 0
    told = await engine.spelled(await engine.tokens(request, specials=False))
    assert told.text == "".join(told.pieces) == LONG
    with pytest.raises(InvalidRequest):
        await engine.spelled([10**9])


async def test_same_seed_same_answer_alone_or_in_company(engine: Engine) -> None:
    """A cached answer stands for a fresh one only if others in the batch change nothing."""
    alone = text(await everything(engine, ask("alone")))
    company = [everything(engine, ask(f"r{at}", seed=5 if at == 3 else at + 100)) for at in range(9)]
    answers = await asyncio.gather(*company)
    assert text(answers[3]) == alone


async def test_closing_aborts_and_usage_stays_exact(engine: Engine) -> None:
    """A client that leaves must stop costing at once, and what it did cost must still be known."""
    async with aclosing(engine.generate(ask("left", max_tokens=1500))) as deltas:
        received = 0
        async for delta in deltas:
            received += len(delta.token_ids)
            if received >= 5:
                break
    spent = await usage(engine, "left")
    assert 5 <= spent.completion < 1500
    assert spent.prompt == await engine.count_tokens(ask())
    await until_idle(engine)


async def test_closing_before_the_first_delta(engine: Engine) -> None:
    """A generator that nobody ever asked has cost nothing and left nothing behind."""
    deltas = engine.generate(ask("never"))
    await deltas.aclose()
    assert engine.usage_of("never") is None
    assert engine.stats().running == 0


async def test_cancelling_the_reader_aborts(engine: Engine) -> None:
    """A disconnect reaches an engine as the cancellation of the task that reads it."""
    started = asyncio.Event()

    async def read() -> None:
        async with aclosing(engine.generate(ask("cut", max_tokens=1500))) as deltas:
            async for _ in deltas:
                started.set()

    async with asyncio.TaskGroup() as group:
        reader = group.create_task(read())
        await started.wait()
        reader.cancel()
    spent = await usage(engine, "cut")
    assert 1 <= spent.completion < 1500
    await until_idle(engine)


async def test_abort_ends_the_stream_with_its_usage(engine: Engine) -> None:
    """`abort` is for those who still read: they get a terminal delta like everybody else, and neighbours go on."""
    neighbour = asyncio.gather(everything(engine, ask("other", max_tokens=60)))
    deltas: list[Delta] = []
    async for delta in engine.generate(ask("stopped", max_tokens=1500)):
        deltas.append(delta)
        if len(deltas) == 3:
            engine.abort("stopped")
            engine.abort("nobody")
    assert deltas[-1].finish_reason == "abort"
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.completion == sum(len(delta.token_ids) for delta in deltas)
    [other] = await neighbour
    assert other[-1].finish_reason == "length"
    assert sum(len(delta.token_ids) for delta in other) == 60


async def test_a_slow_reader_loses_nothing(engine: Engine) -> None:
    """An engine never waits for a client; what the client missed comes merged."""
    quick = text(await everything(engine, ask("quick", max_tokens=100)))
    slow: list[Delta] = []
    async for delta in engine.generate(ask("slow", max_tokens=100)):
        slow.append(delta)
        await asyncio.sleep(0.03)
    assert text(slow) == quick
    assert sum(len(delta.token_ids) for delta in slow) == 100


async def test_stop_string_is_never_shown(engine: Engine) -> None:
    """Neither the stop string nor its beginning may reach a reader, and the reason is `stop`."""
    whole = text(await everything(engine, ask("whole", max_tokens=80)))
    stop = whole[30:33]
    deltas = await everything(engine, ask("stopped", max_tokens=1500, stop=(stop,)))
    assert text(deltas) == whole[: whole.index(stop)]
    assert deltas[-1].finish_reason == "stop"
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.completion == sum(len(delta.token_ids) for delta in deltas) < 1500  # it did not run on


async def test_logprobs_one_per_token(engine: Engine) -> None:
    """Clients zip log probabilities with tokens: there must be as many, best alternatives first."""
    deltas = await everything(engine, ask(logprobs=3, temperature=0.0))
    probs = [one for delta in deltas for one in delta.logprobs or []]
    assert len(probs) == sum(len(delta.token_ids) for delta in deltas)
    for one in probs:
        values = [value for _, value in one.top]
        assert values == sorted(values, reverse=True)
        assert one.logprob == values[0] <= 0  # greedy takes the likeliest
    plain = await everything(engine, ask("plain"))
    assert all(delta.logprobs is None for delta in plain)


POISON: list[tuple[str, dict[str, Any]]] = [
    ("no tokens", {"max_tokens": 0}),
    ("negative temperature", {"temperature": -1.0}),
    ("not a number", {"temperature": float("nan")}),
    ("infinite", {"presence_penalty": float("inf")}),
    ("top_p over one", {"top_p": 1.5}),
    ("top_k under its least", {"top_k": -2}),
    ("bias on no token", {"logit_bias": {10**9: 1.0}}),
    ("bias too strong", {"logit_bias": {1: 1e9}}),
    ("too many logprobs", {"logprobs": 500}),
    ("empty stop", {"stop": ("",)}),
    ("top_k beyond any float", {"top_k": 10**400}),
    ("empty messages", {"messages": []}),
    ("empty prompt", {"text": ""}),
    ("no ids", {"token_ids": []}),
    ("an id under zero", {"token_ids": [1, -1]}),
    ("an id beyond the vocabulary", {"token_ids": [10**6]}),
    ("an id beyond any integer", {"token_ids": [2**70]}),
]


@pytest.mark.parametrize("what", [name for name, _ in POISON])
async def test_refuses_what_can_never_be_served(what: str) -> None:
    """The simulated engine refuses like the real one (asked together below), so gateway tests can trust it."""
    sim = SimEngine()
    await sim.start()
    with pytest.raises(InvalidRequest):
        await everything(sim, ask(**dict(POISON)[what]))


async def test_poison_leaves_the_engine_alive(engine: Engine) -> None:
    """One bad request may not hurt those beside it or after it."""
    beside = asyncio.gather(everything(engine, ask("beside", max_tokens=60)))
    await asyncio.sleep(0)
    for name, changes in POISON:
        with pytest.raises(InvalidRequest):
            await everything(engine, ask(name, **changes))
    [deltas] = await beside
    assert deltas[-1].finish_reason == "length"
    assert (await everything(engine, ask("after")))[-1].finish_reason == "length"


async def test_any_integer_is_a_seed(engine: Engine) -> None:
    """OpenAI names no bounds, and a number that no frame can carry must not end in an error of ours."""
    for seed in (2**200, -5):
        one, two = [await everything(engine, ask(f"{seed}-{at}", seed=seed, temperature=1.0)) for at in range(2)]
        assert one[-1].finish_reason == "length"
        assert text(one) == text(two)


async def test_window(engine: Engine) -> None:
    """A prompt over the window is the client's mistake; a prompt that leaves little room just gets a short answer."""
    info = engine.info()
    assert info is not None
    with pytest.raises(InvalidRequest) as refused:
        await everything(engine, ask(token_ids=[1] * (info.context + 1)))
    assert refused.value.code == "context_length_exceeded"
    # LiteLLM, and agents that shorten a conversation by themselves, know a full window by OpenAI's words.
    assert f"maximum context length is {info.context} tokens" in str(refused.value)
    with pytest.raises(InvalidRequest) as refused:
        await everything(engine, ask("huge", text="a b c d " * 100_000))
    assert refused.value.code == "context_length_exceeded"
    assert "maximum context length is" in str(refused.value)
    deltas = await everything(engine, ask("tight", token_ids=[1] * (info.context - 7), max_tokens=500))
    assert deltas[-1].finish_reason == "length"
    assert deltas[-1].usage == EngineUsage(prompt=info.context - 7, completion=7)
    assert {delta.prompt_tokens for delta in deltas if delta.token_ids} == {info.context - 7}


async def test_text_and_ids_are_prompts_too(engine: Engine) -> None:
    """Text completions and pre-tokenized prompts go the same way."""
    for request in (ask("text", text="Once upon a time"), ask("ids", token_ids=[5, 6, 7, 8])):
        deltas = await everything(engine, request)
        assert deltas[-1].usage is not None
        assert deltas[-1].usage.prompt == await engine.count_tokens(request)
        assert deltas[-1].usage.completion == 24


async def test_half_a_character_is_no_reason_to_fail(engine: Engine) -> None:
    """JSON may carry half a surrogate pair; it is a strange prompt, not a broken engine."""
    deltas = await everything(engine, ask(text="a\ud800b"))
    assert deltas[-1].finish_reason == "length"


async def test_says_what_it_is(engine: Engine) -> None:
    """Operators must see that a simulated or random model answers."""
    info = engine.info()
    assert info is not None
    assert info.note
    assert info.context >= 2048
    assert engine.stats().ready
