"""The bundled engines behind OpenAI's requests: what is honoured, what is refused by name, what an error becomes."""

import asyncio
import base64
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
import numpy as np
import pytest

from cache.embedder import Encoded, EncoderDown, HashEncoder
from engine import api
from engine.api import Delta, EngineUsage, GenerateRequest, ModelInfo, TokenLogprob
from engine.pool import EnginePool
from engine.sim import SimEngine
from gateway.call import Body, Chunk, Operation
from gateway.engine_requests import ignored_fields, sequences
from gateway.errors import (
    EngineEnded,
    EngineUnavailable,
    InvalidRequest,
    NotFound,
    Overloaded,
    PromptQuarantined,
    UpstreamFailed,
    UpstreamTimeout,
)
from gateway.providers import Partial, Sending
from gateway.providers.local import LocalProvider, build
from gateway.tasks import Tasks

ASK: Body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


def sending(body: Body, operation: Operation = "chat", *, stream: bool = False, **given: Any) -> Sending:
    waits: dict[str, Any] = {"timeout": 5.0, "idle": 5.0, **given}
    model = given.pop("model", "minilm" if operation == "embedding" else "demo")
    waits.pop("model", None)
    return Sending(id="a", operation=operation, model=model, body=body, stream=stream, tenant="salt", **waits)


async def run(provider: LocalProvider, what: Sending) -> list[Chunk]:
    async with aclosing(provider.send(what)) as chunks:
        return [chunk async for chunk in chunks]


def choices(chunk: Chunk) -> list[Any]:
    found: Any = chunk.data["choices"]
    return found


async def local(engine: Any = None, encoder: Any = None) -> LocalProvider:
    engine = engine or SimEngine()
    await engine.start()
    return build({"demo": engine}, encoder, tasks=Tasks())


class Spoken(SimEngine):
    """A simulated engine that says the given deltas; an exception among them is raised."""

    def __init__(self, *said: Delta | Exception) -> None:
        super().__init__()
        self.said = said
        self.requests: list[GenerateRequest] = []

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        self.requests.append(request)
        for delta in self.said:
            if isinstance(delta, Exception):
                raise delta
            yield delta

    def info(self) -> ModelInfo | None:
        return None


USAGE = EngineUsage(prompt=7, completion=2, cached=3)
END = Delta(finish_reason="stop", usage=USAGE)

REFUSED: list[tuple[str, object]] = [
    ("tools", [{"type": "custom", "custom": {"name": "f"}}]),
    ("tools", [{"type": "web_search"}]),
    ("functions", [{"name": "f"}]),
    ("function_call", {"name": "f"}),
    ("guided_regex", 5),
    ("structured_outputs", {"nonsense": 1}),
    ("stop_token_ids", "5"),
    ("stop_token_ids", [True]),
    ("priority", "high"),
    ("chat_template_kwargs", 5),
    ("chat_template_kwargs", {"enable_thinking": "no"}),
    ("best_of", "3"),
    ("modalities", ["text", "audio"]),
    ("audio", {"voice": "alloy", "format": "mp3"}),
    ("prediction", {"type": "content", "content": 5}),
    ("web_search_options", {}),
    ("moderation", {"model": "omni-moderation-latest"}),
    ("best_of", 3),
]


@pytest.mark.parametrize("operation", ["chat", "completion"])
async def test_the_stop_string_that_ended_an_answer_is_named(operation: Operation) -> None:
    """Anthropic's clients tell `stop_sequence` from `end_turn` by it; whatever stopped, they read `end_turn`, null."""
    ask = {**(ASK if operation == "chat" else {"prompt": "hi"}), "max_tokens": 9, "stop": ["never", "b"]}
    provider = await local(SimEngine(text="a b c"))
    streamed = await run(provider, sending(ask, operation, stream=True))
    (whole,) = await run(provider, sending(ask, operation))
    assert choices(whole)[0]["stop_reason"] == "b"
    assert [choices(one)[0]["stop_reason"] for one in streamed if one.finish] == ["b"]
    (unstopped,) = await run(provider, sending({**ask, "stop": "never"}, operation))
    assert "stop_reason" not in choices(unstopped)[0]


@pytest.mark.parametrize(
    ("field", "value"),
    [("guided_regex", "("), ("structured_outputs", {"regex": "("}), ("response_format", {"type": "json_object"})],
)
async def test_a_form_is_refused_by_the_name_it_was_asked_for_by(field: str, value: object) -> None:
    """Who never wrote `response_format` looked in vain for what to mend in it."""
    said = api.InvalidRequest("The form asked for cannot be used: it is odd.", param="response_format")
    with pytest.raises(InvalidRequest) as caught:
        await run(await local(Spoken(said)), sending({**ASK, field: value}))
    assert caught.value.param == field


@pytest.mark.parametrize(("field", "value"), REFUSED)
async def test_what_an_engine_cannot_honour_is_refused_by_name(field: str, value: object) -> None:
    """Ignoring a field that changes the answer gives a wrong answer with status 200."""
    with pytest.raises(InvalidRequest) as caught:
        await run(await local(), sending({**ASK, field: value}))
    assert (caught.value.param or "").partition("[")[0].partition(".")[0] == field
    assert caught.value.http_status == 400


@pytest.mark.parametrize(
    ("field", "value"),
    [("top_k", "5"), ("top_k", 5.5), ("min_p", "0.1"), ("repetition_penalty", True), ("min_tokens", "3"),
     ("ignore_eos", "yes"), ("prompt_logprobs", "1")],
)  # fmt: skip
async def test_a_field_of_the_wrong_type_is_not_an_absent_one(field: str, value: object) -> None:
    """Whoever writes top_k as a text would get answers drawn from everything, and never hear why."""
    with pytest.raises(InvalidRequest) as caught:
        await run(await local(), sending({**ASK, field: value}))
    assert caught.value.param == field


HARMLESS: list[tuple[str, object]] = [
    ("tools", []),
    ("tools", None),
    ("tool_choice", "none"),
    ("tool_choice", "auto"),
    ("response_format", {"type": "text"}),
    ("response_format", None),
    ("modalities", ["text"]),
    ("web_search_options", None),
    ("best_of", 1),
]


@pytest.mark.parametrize(("field", "value"), HARMLESS)
async def test_defaults_said_out_loud_are_no_reason_to_refuse(field: str, value: object) -> None:
    """Clients send every optional field, most of them as null or as its default."""
    body = {**ASK, field: value}
    assert (await run(await local(), sending(body)))[0].final
    assert ignored_fields(body) == []


async def test_parts_that_are_no_text_are_refused_where_they_stand() -> None:
    """The path tells a client which of twenty parts it was."""
    image = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
    parts = [{"role": "system", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": "a"}, image]}]
    with pytest.raises(InvalidRequest) as caught:
        await run(await local(), sending({**ASK, "messages": parts}))
    assert caught.value.param == "messages[1].content[1]"


def test_unknown_fields_are_named_and_nothing_else() -> None:
    """`x-nearhit-ignored` is made of this list."""
    body = {**ASK, "repetition_penalti": 1.1, "best_off": {}, "top_k": 3, "zzz": None, "user": "u", "metadata": {}}
    assert ignored_fields(body) == LocalProvider.ignored_fields(body) == ["best_off", "repetition_penalti"]
    options: dict[str, object] = {"include_usage": True, "continuous_usage_stats": False}
    assert ignored_fields({**ASK, "stream_options": options}) == []
    assert ignored_fields({**ASK, "verbosity": "medium", "reasoning_effort": "none"}) == []
    assert ignored_fields({**ASK, "verbosity": "low", "reasoning_effort": "high"}) == ["reasoning_effort", "verbosity"]
    kwargs = {"enable_thinking": False, "thinking_budget": 5}
    assert ignored_fields({**ASK, "chat_template_kwargs": kwargs}) == ["chat_template_kwargs.thinking_budget"]
    options |= {"include_obfuscation": True}
    assert ignored_fields({**ASK, "stream_options": options}) == ["stream_options.include_obfuscation"]
    options |= {"include_obfuscation": False}
    options["continuous_usage_stats"] = True
    assert ignored_fields({**ASK, "stream_options": options}) == []


def test_every_sampling_field_reaches_the_engine() -> None:
    """A field that is accepted and dropped is worse than one that is refused."""
    body: Body = {
        **ASK,
        "max_completion_tokens": 9,
        "max_tokens": None,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 4,
        "min_p": 0.1,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "logit_bias": {"5": -100},
        "seed": 11,
        "stop": "END",
        "logprobs": True,
        "top_logprobs": 2,
        "ignore_eos": True,
        "repetition_penalty": 1.1,
        "min_tokens": 3,
        "stop_token_ids": [7],
        "prompt_logprobs": 1,
        "prediction": {"type": "content", "content": [{"type": "text", "text": "like this"}]},
        "chat_template_kwargs": {"enable_thinking": False},
    }
    (found,) = sequences(sending(body))
    assert found.request.sampling == api.SamplingParams(
        max_tokens=9,
        temperature=0.0,
        top_p=0.5,
        top_k=4,
        min_p=0.1,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        logit_bias={5: -100.0},
        seed=11,
        stop=("END",),
        logprobs=2,
        ignore_eos=True,
        repetition_penalty=1.1,
        min_tokens=3,
        stop_token_ids=(7,),
        prompt_logprobs=1,
    )
    assert (found.request.prediction, found.request.thinking) == ("like this", False)
    assert found.request.salt == "salt"
    assert found.request.messages == body["messages"]


def test_nulls_mean_the_default() -> None:
    """Every optional field may be null in OpenAI's language."""
    fields = ["max_tokens", "temperature", "top_p", "n", "stop", "seed", "presence_penalty", "logit_bias", "logprobs"]
    (found,) = sequences(sending({"messages": ASK["messages"], **dict.fromkeys(fields)}))
    assert found.request.sampling == api.SamplingParams(max_tokens=4_096)


def test_what_a_request_leaves_open_is_told_to_the_engine() -> None:
    """Only so can a model's own generation config speak, and only where the client did not (null, n of 1)."""
    (plain,) = sequences(sending({"messages": ASK["messages"], "top_p": None, "n": 1}))
    assert plain.request.left == api.CAN_BE_LEFT
    (drawn, _) = sequences(sending({"messages": ASK["messages"], "temperature": 1, "repetition_penalty": 1, "n": 2}))
    assert drawn.request.left == {"top_p", "top_k", "min_p", "seed"}


def test_choices_of_one_seed_differ_and_are_repeatable() -> None:
    """The same seed for all of n would answer n times the same; no seed stays none."""
    seeds = [found.request.sampling.seed for found in sequences(sending({**ASK, "n": 3, "seed": 5}))]
    assert len(set(seeds)) == 3
    assert seeds == [found.request.sampling.seed for found in sequences(sending({**ASK, "n": 3, "seed": 5}))]
    assert {found.request.sampling.seed for found in sequences(sending({**ASK, "n": 2}))} == {None}


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", [("a", None)]),
        (["a", "b"], [("a", None), ("b", None)]),
        ([1, 2], [(None, [1, 2])]),
        ([[1], [2, 3]], [(None, [1]), (None, [2, 3])]),
    ],
)
def test_prompts_in_all_four_forms(prompt: object, expected: list[tuple[str | None, list[int] | None]]) -> None:
    """A list of numbers is one prompt, a list of anything else is one each."""
    found = sequences(sending({"prompt": prompt}, "completion"))
    assert [(one.request.text, one.request.token_ids) for one in found] == expected
    assert {one.request.sampling.max_tokens for one in found} == {16}


async def test_echo_puts_the_prompt_first() -> None:
    """lm-eval reads its prompt back, with the log probability of every token of it but the first."""
    whole: Any = (await run(await local(), sending({"prompt": "Once", "echo": True}, "completion")))[0].data
    assert whole["choices"][0]["text"].startswith("OnceThis is")
    body: Body = {"prompt": "Once upon a time", "echo": True, "logprobs": 1, "max_tokens": 2}
    scored: Any = (await run(await local(), sending(body, "completion")))[0].data["choices"]
    logprobs = scored[0]["logprobs"]
    assert scored[0]["text"] == "".join(logprobs["tokens"])
    assert scored[0]["text"].startswith("Once upon a time")
    assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
    assert logprobs["token_logprobs"][1:] == [0.0] * (len(logprobs["tokens"]) - 1)
    assert logprobs["text_offset"][:3] == [0, 4, 9]


FORMS: list[tuple[Body, api.Constraint | None]] = [
    ({"response_format": {"type": "json_object"}}, api.Constraint("json")),
    (
        {"response_format": {"type": "json_object", "schema": {"type": "null"}}},  # Together's and llama.cpp's way
        api.Constraint("schema", '{"type":"null"}', strict=False),
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string"}}}},
        api.Constraint("schema", '{"type":"string"}', strict=False),
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"strict": True, "schema": {"type": "string"}}}},
        api.Constraint("schema", '{"type":"string"}'),
    ),
    ({"guided_json": '{"type":"null"}'}, api.Constraint("schema", '{"type":"null"}')),
    ({"guided_regex": "a+"}, api.Constraint("regex", "a+")),
    ({"guided_choice": ["a", "b"]}, api.Constraint("choice", '["a","b"]')),
    ({"structured_outputs": {"grammar": 'start: "a"', "json": None}}, api.Constraint("grammar", 'start: "a"')),
    ({"response_format": {"type": "text"}}, None),
]


@pytest.mark.parametrize(("fields", "expected"), FORMS)
def test_every_way_to_ask_for_a_form(fields: Body, expected: api.Constraint | None) -> None:
    """OpenAI's field and vLLM's old and new ones mean the same thing."""
    (found,) = sequences(sending({**ASK, **fields}))
    assert found.request.constraint == expected


def test_two_forms_at_once_are_refused() -> None:
    """An answer cannot obey both, and choosing for the client would be a guess."""
    with pytest.raises(InvalidRequest):
        sequences(sending({**ASK, "guided_regex": "a", "response_format": {"type": "json_object"}}))


def test_tools_and_how_they_may_be_chosen() -> None:
    """auto, none, required, one by name, and the narrowing `allowed_tools` all reach the engine."""
    function: Body = {"name": "f", "parameters": {"type": "object"}}
    offered = [{"type": "function", "function": function}, {"type": "function", "function": {"name": "g"}}]

    def asked(choice: object, **more: object) -> api.Tools | None:
        return sequences(sending({**ASK, "tools": offered, "tool_choice": choice, **more}))[0].request.tools

    both: list[dict[str, object]] = [function, {"name": "g"}]
    assert asked(None) == api.Tools(functions=both)
    assert asked("none") == api.Tools(functions=both, choice="none")
    assert asked("required", parallel_tool_calls=False) == api.Tools(functions=both, choice="required", parallel=False)
    named = {"type": "function", "function": {"name": "g"}}
    assert asked(named) == api.Tools(functions=both, choice="required", name="g")
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    assert asked(allowed) == api.Tools(functions=[{"name": "g"}], choice="required")


async def test_calls_and_reasoning_in_openais_shape() -> None:
    """Agents act on tool calls and clients show reasoning apart; both come in pieces and as one body."""
    said = (
        Delta(reasoning="Let me "),
        Delta(reasoning="see."),
        Delta(tool_calls=[api.ToolCallDelta(0, "f", '{"a"')]),
        Delta(tool_calls=[api.ToolCallDelta(0, None, ": 1}"), api.ToolCallDelta(1, "g", "{}")]),
        Delta(
            finish_reason="tool_calls",
            usage=api.EngineUsage(prompt=1, completion=9, reasoning=4, drafted=5, accepted=3),
        ),
    )
    chunk = (await run(await local(Spoken(*said)), sending(ASK)))[0]
    whole: Any = chunk.data
    message = whole["choices"][0]["message"]
    assert message["reasoning_content"] == "Let me see."
    assert message["content"] is None
    calls = [(call["function"]["name"], call["function"]["arguments"], call["type"]) for call in message["tool_calls"]]
    assert calls == [("f", '{"a": 1}', "function"), ("g", "{}", "function")]
    assert len({call["id"] for call in message["tool_calls"]}) == 2
    assert whole["choices"][0]["finish_reason"] == "tool_calls"
    assert whole["usage"]["completion_tokens_details"] == {
        "reasoning_tokens": 4,
        "audio_tokens": 0,
        "accepted_prediction_tokens": 3,
        "rejected_prediction_tokens": 2,
    }
    assert chunk.usage is not None
    assert chunk.usage.reasoning == 4


def test_a_client_steps_back_but_never_ahead() -> None:
    """Priorities come from whoever runs the gateway; a client's own word may only make it wait longer."""
    for fields, expected in (({"priority": 5}, -5), ({"priority": -5}, 0), ({"service_tier": "flex"}, -1), ({}, 0)):
        assert sequences(sending({**ASK, **fields}))[0].request.priority == expected


async def test_log_probabilities_in_both_shapes() -> None:
    """Chat has a list of objects with bytes, legacy has four parallel lists; minus infinity is no JSON."""
    token = TokenLogprob("ä", float("-inf"), [("ä", -0.5), ("b", float("-inf"))])
    engine = Spoken(Delta(text="ä", logprobs=[token]), Delta(text="ä", logprobs=[token]), END)
    chat: Any = (await run(await local(engine), sending({**ASK, "logprobs": True})))[0].data
    said = chat["choices"][0]["logprobs"]
    assert said["refusal"] is None
    assert len(said["content"]) == 2
    assert said["content"][0] == {
        "token": "ä",
        "logprob": -9999.0,
        "bytes": [195, 164],
        "top_logprobs": [
            {"token": "ä", "logprob": -0.5, "bytes": [195, 164]},
            {"token": "b", "logprob": -9999.0, "bytes": [98]},
        ],
    }
    legacy: Any = (await run(await local(engine), sending({"prompt": "x", "logprobs": 1}, "completion")))[0].data
    assert legacy["choices"][0]["logprobs"] == {
        "tokens": ["ä", "ä"],
        "token_logprobs": [-9999.0, -9999.0],
        "top_logprobs": [{"ä": -0.5, "b": -9999.0}] * 2,
        "text_offset": [0, 1],
    }
    rare = Spoken(Delta(text="c", logprobs=[TokenLogprob("c", -3.0, [("a", -0.5)])]), END)
    told: Any = (await run(await local(rare), sending({"prompt": "x", "logprobs": 1}, "completion")))[0].data
    assert told["choices"][0]["logprobs"]["top_logprobs"] == [{"a": -0.5, "c": -3.0}]  # what was said is always there


async def test_offsets_count_characters_not_tokens() -> None:
    """Behind a character of several tokens every `text_offset` pointed too far into the text."""
    parts = [TokenLogprob(token, -1.0, []) for token in ("h", "bytes:\\xc3", "bytes:\\xa9", "llo", "!")]
    engine = Spoken(Delta(text="hé", logprobs=parts[:3]), Delta(text="llo!", logprobs=parts[3:]), END)
    legacy: Any = (await run(await local(engine), sending({"prompt": "x", "logprobs": 0}, "completion")))[0].data
    assert legacy["choices"][0]["logprobs"]["text_offset"] == [0, 1, 1, 2, 5]
    chat: Any = (await run(await local(engine), sending({**ASK, "logprobs": True})))[0].data
    told = [byte for token in chat["choices"][0]["logprobs"]["content"] for byte in token["bytes"]]
    assert bytes(told).decode() == "héllo!"


async def test_usage_counts_a_prompt_once_and_every_choice() -> None:
    """Two choices of one prompt read it once; two prompts are two."""
    provider = await local(Spoken(Delta(text="a"), END))
    chunk = (await run(provider, sending({**ASK, "n": 2})))[0]
    assert chunk.usage is not None
    assert (chunk.usage.prompt, chunk.usage.cached, chunk.usage.completion) == (7, 3, 4)
    told: Any = chunk.data["usage"]
    assert told["prompt_tokens_details"]["cached_tokens"] == 3
    assert told["total_tokens"] == 11
    chunk = (await run(provider, sending({"prompt": ["a", "b"], "n": 2}, "completion")))[0]
    assert chunk.usage is not None
    assert (chunk.usage.prompt, chunk.usage.completion) == (14, 8)


async def test_an_answer_names_what_made_it() -> None:
    """Who sets `seed` compares `system_fingerprint` to know whether the same answer can be had again."""
    found = [(await run(await local(), sending({**ASK, "seed": 1})))[0] for _ in range(2)]
    events = await run(await local(), sending({**ASK, "seed": 1}, stream=True))
    names = {chunk.data["system_fingerprint"] for chunk in (*found, *events)}
    assert len(names) == 1
    assert str(names.pop()).startswith("fp_")


async def test_a_text_with_the_end_comes_before_the_finish() -> None:
    """Clients take the finish chunk for empty; text that rides on it is lost by some."""
    provider = await local(Spoken(Delta(text="last words", finish_reason="length", usage=USAGE)))
    chunks = await run(provider, sending(ASK, stream=True))
    choices: Any = [chunk.data["choices"] for chunk in chunks]
    assert choices[1][0]["delta"] == {"content": "last words"}
    assert choices[2][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    assert choices[3] == []


ERRORS: list[tuple[Exception, type[Exception]]] = [
    (api.InvalidRequest("too long", param="messages", code="context_length_exceeded"), InvalidRequest),
    (api.Overloaded("full", retry_after=2.6), Overloaded),
    (api.EngineFailed("died"), UpstreamFailed),
]


@pytest.mark.parametrize(("raised", "expected"), ERRORS)
@pytest.mark.parametrize("n", [1, 2])
async def test_an_engines_errors_before_the_first_token(raised: Exception, expected: type[Exception], n: int) -> None:
    """Each becomes the one of ours that says whose fault it is and whether another may be tried."""
    with pytest.raises(expected) as caught:
        await run(await local(Spoken(raised)), sending({**ASK, "n": n}, stream=True))
    error: Any = caught.value
    if isinstance(raised, api.InvalidRequest):
        assert (error.param, error.code, error.http_status) == ("messages", "context_length_exceeded", 400)
    if isinstance(raised, api.Overloaded):
        assert dict(error.headers)["retry-after"] == "3"


@pytest.mark.parametrize(
    "end", [api.EngineFailed("died"), Delta(finish_reason="abort", usage=USAGE), Delta(finish_reason="error")]
)
@pytest.mark.parametrize("n", [1, 2])
async def test_an_answer_that_breaks_is_partial_when_streamed_and_a_failure_when_not(
    end: Delta | Exception, n: int
) -> None:
    """Nobody has seen anything of a body yet, so it may still be made elsewhere."""
    provider = await local(Spoken(Delta(text="a"), end))
    with pytest.raises(Partial):
        await run(provider, sending({**ASK, "n": n}, stream=True))
    with pytest.raises(UpstreamFailed):
        await run(provider, sending({**ASK, "n": n}))


async def test_one_slow_token_of_a_body_is_found_by_idle() -> None:
    """A body that is not streamed still shows its progress to us: `timeout` is for the first token, not for all."""
    provider = await local(SimEngine(tpot_ms=40))
    whole = await run(provider, sending({**ASK, "max_tokens": 5}, timeout=0.1, idle=2.0))
    assert whole[0].final
    with pytest.raises(UpstreamTimeout):
        await run(provider, sending(ASK, timeout=2.0, idle=0.01))


async def test_usage_of_an_attempt_that_was_closed_early() -> None:
    """Leaving early is billed by what was really generated, which only the engine knows."""
    provider = await local(SimEngine(tpot_ms=5))
    chunks = provider.send(sending({**ASK, "max_tokens": 50}, stream=True))
    for _ in range(4):
        await anext(chunks)
    await chunks.aclose()
    usage = provider.usage_of("a")
    assert usage is not None
    assert 1 <= usage.completion < 50
    assert provider.usage_of("unknown") is None


async def test_an_unknown_model_names_the_known() -> None:
    """A typo should be answered with what would have been right."""
    with pytest.raises(NotFound, match="demo"):
        await run(await local(), sending(ASK, model="dmeo"))


async def test_readiness_names_what_is_missing() -> None:
    """/health/ready repeats these words while an engine loads."""
    engine = SimEngine()
    provider = build({"demo": engine}, None, tasks=Tasks())
    assert "demo" in (provider.ready() or "")
    await engine.start()
    assert provider.ready() is None
    assert await provider.models() == ["demo"]


async def test_choices_run_side_by_side() -> None:
    """n answers one after the other would take n times as long; the engine batches them."""
    provider = await local(SimEngine(ttft_ms=100))
    async with asyncio.timeout(0.35):
        chunk = (await run(provider, sending({**ASK, "n": 8})))[0]
    choices: Any = chunk.data["choices"]
    assert [choice["index"] for choice in choices] == list(range(8))


def vectors(chunk: Chunk) -> np.ndarray[Any, Any]:
    rows: Any = chunk.data["data"]
    return np.array([row["embedding"] for row in rows])


async def test_shortened_vectors_are_unit_vectors() -> None:
    """Cosine search expects them normalised, also after `dimensions` cut them."""
    provider = await local(encoder=HashEncoder())
    full = vectors((await run(provider, sending({"input": ["a b", "c"]}, "embedding")))[0])
    short = vectors((await run(provider, sending({"input": ["a b", "c"], "dimensions": 8}, "embedding")))[0])
    assert full.shape == (2, 384)
    assert short.shape == (2, 8)
    np.testing.assert_allclose(np.linalg.norm(short, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(short[0] * np.linalg.norm(full[0, :8]), full[0, :8], atol=1e-6)
    for dimensions in (0, 385):
        with pytest.raises(InvalidRequest) as caught:
            await run(provider, sending({"input": "a", "dimensions": dimensions}, "embedding"))
        assert caught.value.param == "dimensions"


async def test_a_text_beyond_the_window_is_averaged_not_cut() -> None:
    """Encoders cut silently: two long texts that differ at their end would be the same vector."""
    encoder = HashEncoder(window=16)
    provider = await local(encoder=encoder)
    start = "same words at the beginning " * 30
    rows = vectors((await run(provider, sending({"input": [start + "x" * 5, start + "y" * 5, start]}, "embedding")))[0])
    assert 0.5 < float(rows[0] @ rows[1]) < 0.999_999
    chunk = (await run(provider, sending({"input": start}, "embedding")))[0]
    assert chunk.usage is not None
    assert chunk.usage.prompt > 150
    with pytest.raises(InvalidRequest) as caught:
        await run(provider, sending({"input": ["a", "b" * 40_000]}, "embedding"))
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "input[1]"


async def test_token_ids_are_read_with_the_encoders_own_tokenizer() -> None:
    """Clients that tokenize themselves get an answer for ids that exist here, and a clear no for others."""
    provider = await local(encoder=HashEncoder())
    chunk = (await run(provider, sending({"input": [[7592, 2088], [4]]}, "embedding")))[0]
    hello = (await run(provider, sending({"input": "hello world"}, "embedding")))[0]
    assert len(vectors(chunk)) == 2
    np.testing.assert_allclose(vectors(chunk)[0], vectors(hello)[0])
    with pytest.raises(InvalidRequest) as caught:
        await run(provider, sending({"input": [[1], [99_999]]}, "embedding"))
    assert caught.value.param == "input[1]"


async def test_base64_is_little_endian_float32() -> None:
    """openai-python and -node ask for it by default and decode it so."""
    provider = await local(encoder=HashEncoder())
    rows: Any = (await run(provider, sending({"input": "a b", "encoding_format": "base64"}, "embedding")))[0].data[
        "data"
    ]
    plain = vectors((await run(provider, sending({"input": "a b"}, "embedding")))[0])
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(rows[0]["embedding"]), "<f4"), plain[0].astype("f4"))


class Away(HashEncoder):
    """An encoder whose process is not there."""

    async def encode(self, texts: Any) -> Encoded:
        raise EncoderDown("encoder-loading")

    def status(self) -> str | None:
        return "loading"


async def test_an_encoder_that_loads_says_try_again() -> None:
    """503 with retry-after, which every client understands, and its state in readiness."""
    provider = await local(encoder=Away())
    with pytest.raises(Overloaded) as caught:
        await run(provider, sending({"input": "a"}, "embedding"))
    assert dict(caught.value.headers)["retry-after"]
    assert provider.ready() == "encoder: loading"
    with pytest.raises(NotFound):
        await run(await local(), sending({"input": "a"}, "embedding"))


class Fragile(SimEngine):
    """Its process ends, with all that are in it, when it reads a prompt that says so; the next one is there at once."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = 0
        self.inside: dict[str, asyncio.Event] = {}

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        ended = self.inside[request.id] = asyncio.Event()
        if "poison" in str(request.messages):
            self.ends += 1
            for one in self.inside.values():
                one.set()
        try:
            await asyncio.wait_for(ended.wait(), 0.2)
        except TimeoutError:
            yield Delta(text="ok", finish_reason="stop", usage=EngineUsage(prompt=1, completion=1))
            return
        finally:
            del self.inside[request.id]
        raise api.EngineLost("Request lost: it went away.")


def said(text: str, name: str) -> Sending:
    body: Body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4}
    return msgspec.structs.replace(sending(body), id=name)


async def test_a_prompt_that_ends_the_engine_twice_is_not_asked_again() -> None:
    """Nobody else suffers for it more than twice, and who was there by chance, and tries again, is answered."""
    engine = Fragile()
    provider = await local(engine)
    crowd = [*(said(f"question {n}", f"q{n}") for n in range(4)), said("poison", "bad")]
    first = await asyncio.gather(*(run(provider, one) for one in crowd), return_exceptions=True)
    assert {type(one) for one in first} == {EngineUnavailable}
    again = await asyncio.gather(*(run(provider, one) for one in crowd), return_exceptions=True)
    assert isinstance(again[-1], EngineUnavailable)
    assert all(isinstance(one, list) for one in again[:-1]), "who is suspected runs alone"
    assert engine.ends == 2
    last = await asyncio.gather(*(run(provider, one) for one in crowd), return_exceptions=True)
    assert isinstance(last[-1], PromptQuarantined)
    assert last[-1].http_status == 422
    assert all(isinstance(one, list) for one in last[:-1])
    assert engine.ends == 2
    with pytest.raises(PromptQuarantined):
        await run(provider, msgspec.structs.replace(said("poison", "other"), stream=True))


async def test_a_prompt_that_ends_processes_of_a_pool_ends_three_of_them_at_most() -> None:
    """Passed on as a suspect as well it ended four before it was shut out, and its client tried again at once."""
    engines = [Fragile() for _ in range(4)]
    provider = await local(EnginePool(engines))
    with pytest.raises(EngineEnded) as caught:
        await run(provider, said("poison", "bad"))
    assert (caught.value.http_status, caught.value.code) == (500, "engine_ended")
    assert ("x-should-retry", "false") in caught.value.headers
    assert isinstance(await run(provider, said("a question", "well")), list)
    with pytest.raises(EngineUnavailable):
        await run(provider, said("poison", "again"))
    with pytest.raises(PromptQuarantined):
        await run(provider, said("poison", "once more"))
    assert sum(engine.ends for engine in engines) == 3


async def test_a_suspect_that_is_found_guilty_is_not_let_in_by_those_who_wait_with_it() -> None:
    """A client that sends it six times at once would end the process six times more."""
    engine = Fragile()
    provider = await local(engine)
    with pytest.raises(EngineUnavailable):
        await run(provider, said("poison", "bad"))
    crowd = [said("poison", f"bad{n}") for n in range(6)]
    told = await asyncio.gather(*(run(provider, one) for one in crowd), return_exceptions=True)
    assert sorted(type(one).__name__ for one in told) == ["EngineUnavailable"] + ["PromptQuarantined"] * 5
    assert engine.ends == 2


async def test_equal_prompts_that_were_there_at_once_were_there_once() -> None:
    """Of several tenants, or votes of one request: the process has ended once, and another did it."""
    engine = Fragile()
    provider = await local(engine)
    crowd = [*(said("the same", f"q{n}") for n in range(3)), said("poison", "bad")]
    await asyncio.gather(*(run(provider, one) for one in crowd), return_exceptions=True)
    await asyncio.gather(*(run(provider, one) for one in crowd), return_exceptions=True)
    last = await asyncio.gather(*(run(provider, one) for one in crowd), return_exceptions=True)
    assert [type(one).__name__ for one in last] == ["list"] * 3 + ["PromptQuarantined"]
    assert engine.ends == 2


async def test_a_suspect_waits_for_its_turn_no_longer_than_it_may() -> None:
    """Several were there when the process ended: run one at a time, they must not wait for ever."""
    engine = Fragile()
    provider = await local(engine)
    crowd = [said("one", "a"), said("two", "b"), said("poison", "bad")]
    await asyncio.gather(*(run(provider, one) for one in crowd), return_exceptions=True)
    hurried = msgspec.structs.replace(crowd[1], timeout=0.05)
    one, two = await asyncio.gather(run(provider, crowd[0]), run(provider, hurried), return_exceptions=True)
    assert isinstance(one, list)
    assert isinstance(two, UpstreamTimeout)


class Narrow(SimEngine):
    """A simulated engine that has room for so many requests at once."""

    def __init__(self, room: int) -> None:
        super().__init__(tpot_ms=1.0)
        self.room, self.now, self.most = room, 0, 0

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        if self.now >= self.room:
            raise api.Overloaded("no room", retry_after=1.0)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            async with aclosing(super().generate(request)) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            self.now -= 1


@pytest.mark.parametrize("body", [{"prompt": ["p"] * 9}, {"prompt": ["p", "q", "r"], "n": 3}])
async def test_more_prompts_than_may_wait_are_answered_one_after_another(body: Body) -> None:
    """An idle engine refused 300 prompts in one call, as a full one does, and would have for ever."""
    engine = Narrow(2)
    (whole,) = await run(await local(engine), sending({**body, "max_tokens": 3}, "completion"))
    assert [choice["index"] for choice in choices(whole)] == list(range(9))
    assert all(choice["text"] for choice in choices(whole))
    assert (engine.most, whole.usage and whole.usage.completion) == (2, 27)


async def test_a_call_that_gets_no_room_at_all_is_turned_away() -> None:
    """Where others have the room there is nothing of its own to wait for: it must hear when to come again."""
    with pytest.raises(Overloaded):
        await run(await local(Narrow(0)), sending({"prompt": ["p"] * 9, "max_tokens": 3}, "completion"))


async def test_what_was_never_begun_keeps_no_secret_of_what_was() -> None:
    """Who leaves a call of many prompts pays for those that ran: what waited for room has no usage to wait for."""
    provider = await local(Narrow(2))
    async with aclosing(
        provider.send(sending({"prompt": ["p"] * 9, "max_tokens": 400}, "completion", stream=True))
    ) as it:
        await anext(it)
    found = await provider.consumed("a")
    assert found is not None
    assert found.completion > 0
