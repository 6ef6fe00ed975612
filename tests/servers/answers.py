"""Checks of what a server answers, as OpenAI's and Anthropic's own clients get it through the gateway.

Knows: what OpenAI's language promises. Does not know: which server it is, beyond what its kind can be asked for.
"""

import math
import secrets
from typing import Any

import msgspec
from openai import APIStatusError

from tests.servers.place import Check, NotThere, Place, Unlike, holds, same

_decode = msgspec.json.Decoder().decode
QUESTION = "What is time to first token?"
LONG = "Tell me of the cache and the engine and the ledger. " * 12
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
CITY = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}}, "required": ["city"]}
_FUNCTION = {"name": "get_weather", "parameters": {**CITY, "additionalProperties": False}}
LOOSE: list[dict[str, Any]] = [{"type": "function", "function": _FUNCTION}]
STRICT: list[dict[str, Any]] = [{"type": "function", "function": {**_FUNCTION, "strict": True}}]
SCHEMA = {"type": "object", "properties": {"ok": {"enum": ["yes"]}}, "required": ["ok"], "additionalProperties": False}
FORM = {"type": "json_schema", "json_schema": {"name": "r", "schema": SCHEMA, "strict": True}}


async def _refused(asked: Any) -> APIStatusError:
    try:
        await asked
    except APIStatusError as error:
        return error
    raise Unlike("answered what it was to refuse")


async def _charged(place: Place, prompt: int, completion: int) -> None:
    entry = await place.last()
    same("charged", (entry["prompt"], entry["completion"]), (prompt, completion))
    same("charged by", entry["source"], "provider")


async def whole(place: Place) -> str:
    _, plain = await place.direct(
        "chat/completions",
        {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 12, "temperature": 0},
    )
    told = await place.chat(QUESTION)
    same("text", told.choices[0].message.content, plain["choices"][0]["message"]["content"])
    same("finish", told.choices[0].finish_reason, plain["choices"][0]["finish_reason"])
    same("model", told.model, "m")
    counts = (told.usage.prompt_tokens, told.usage.completion_tokens)
    same("usage", counts, (plain["usage"]["prompt_tokens"], plain["usage"]["completion_tokens"]))
    await _charged(place, *counts)
    return f"{counts[0]} + {counts[1]} tokens"


async def streamed(place: Place) -> str:
    wanted = await place.chat(QUESTION)
    for options in ({"include_usage": True}, {}):
        chunks = [chunk async for chunk in await place.chat(QUESTION, stream=True, stream_options=options)]
        text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        same("text", text, wanted.choices[0].message.content)
        finishes = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
        same("finishes", finishes, [wanted.choices[0].finish_reason])
        usages = [chunk.usage for chunk in chunks if chunk.usage is not None]
        same("events with usage", len(usages), int(bool(options)))
        await _charged(place, wanted.usage.prompt_tokens, wanted.usage.completion_tokens)
    return "the same text, charged by its counts"


async def several(place: Place) -> str:
    try:
        told = await place.chat(QUESTION, n=2, temperature=1, seed=3)
    except APIStatusError as error:
        raise _as_refused(error, "n") from error
    same("choices", [choice.index for choice in told.choices], [0, 1])
    entry = await place.last()
    same("charged", entry["completion"], told.usage.completion_tokens)
    chunks = [chunk async for chunk in await place.chat(QUESTION, n=2, temperature=1, seed=3, stream=True)]
    same("streamed", {choice.index for chunk in chunks for choice in chunk.choices}, {0, 1})
    return f"{told.usage.completion_tokens} tokens of two"


async def logprobs(place: Place) -> str:
    told = await place.chat(QUESTION, logprobs=True, top_logprobs=2)
    tokens = told.choices[0].logprobs.content if told.choices[0].logprobs else []
    same("tokens", len(tokens), told.usage.completion_tokens)
    same("alternatives", {len(token.top_logprobs) for token in tokens}, {2})
    holds(all(token.logprob <= 0 for token in tokens), "a log probability above 0")
    same("text", "".join(token.token for token in tokens), told.choices[0].message.content)
    chunks = [chunk async for chunk in await place.chat(QUESTION, logprobs=True, top_logprobs=2, stream=True)]
    streamed_tokens = [
        token
        for chunk in chunks
        for choice in chunk.choices
        if choice.logprobs
        for token in choice.logprobs.content or []
    ]
    same("streamed tokens", len(streamed_tokens), len(tokens))
    return f"{len(tokens)} tokens"


async def seeded(place: Place) -> str:
    told = [await place.chat(LONG, temperature=1.5, seed=seed, max_tokens=24) for seed in (7, 7, 8)]
    texts = [one.choices[0].message.content for one in told]
    same("the same seed", texts[0], texts[1])
    return "another seed, another text" if texts[2] != texts[0] else "another seed, the same text"


async def stopped(place: Place) -> str:
    told = await place.chat(QUESTION, stop=["first"], max_tokens=30)
    same("text", told.choices[0].message.content.rstrip(), "Time to")
    same("finish", told.choices[0].finish_reason, "stop")
    return f"stop_reason {told.choices[0].model_extra.get('stop_reason')!r}"


async def _called(place: Place, stream: bool, **more: Any) -> None:
    # A model that was taught no tools would fill the room between braces with line ends, were they not made dear.
    asked: dict[str, Any] = {"tools": STRICT, "max_tokens": 120, "frequency_penalty": 2.0, **more}
    if stream:
        held: dict[int, dict[str, str]] = {}
        finish = None
        async for chunk in await place.chat("Weather in Oslo?", stream=True, **asked):
            for choice in chunk.choices:
                finish = choice.finish_reason or finish
                for piece in choice.delta.tool_calls or []:
                    call = held.setdefault(piece.index, {"id": "", "name": "", "arguments": ""})
                    call["id"] += piece.id or ""
                    call["name"] += (piece.function.name if piece.function else "") or ""
                    call["arguments"] += (piece.function.arguments if piece.function else "") or ""
        calls = list(held.values())
    else:
        told = await place.chat("Weather in Oslo?", **asked)
        finish = told.choices[0].finish_reason
        calls = [
            {"id": call.id, "name": call.function.name, "arguments": call.function.arguments}
            for call in told.choices[0].message.tool_calls or []
        ]
    same("calls", [call["name"] for call in calls], ["get_weather"])
    holds(calls[0]["id"], "a call without an id")
    holds(_decode(calls[0]["arguments"])["city"] in ("Oslo", "Rome"), "arguments outside of the schema")
    holds(finish in ("tool_calls", "stop"), f"finish {finish}")


async def tool_auto(place: Place) -> str:
    if place.kind not in ("vllm", "prefill_decode"):
        raise NotThere("a model that calls by itself would be needed")
    body = {"extra_body": {"structured_outputs": {"choice": [CALL]}}, "tools": LOOSE, "tool_choice": "auto"}
    for stream in (False, True):
        await _called(place, stream, **body)
    return "whole and streamed"


async def tool_required(place: Place) -> str:
    for stream in (False, True):
        await _called(place, stream, tool_choice="required")
    return "whole and streamed"


async def tool_named(place: Place) -> str:
    for stream in (False, True):
        await _called(place, stream, tool_choice={"type": "function", "function": {"name": "get_weather"}})
    return "whole and streamed"


async def formed(place: Place) -> str:
    told = await place.chat(QUESTION, response_format=FORM, max_tokens=60)
    same("object", _decode(told.choices[0].message.content), {"ok": "yes"})
    return "as the schema has it"


async def completed(place: Place) -> str:
    asked: dict[str, Any] = {"model": "m", "max_tokens": 3, "temperature": 0}
    create = place.client.completions.create
    plain = await create(prompt="Time to first token is", **asked)
    prompts = [f"{LONG}{word}" for word in ("A cache is", "The ledger of an engine is")]
    apart = [(await create(prompt=prompt, **asked)).choices[0].text for prompt in prompts]
    try:
        pair = await create(prompt=prompts, **asked)
    except APIStatusError as error:
        raise _as_refused(error, "several prompts") from error
    same("choices", [choice.index for choice in pair.choices], [0, 1])
    if place.kind != "dynamo":  # its mocker draws words
        same("two prompts at once", [choice.text for choice in pair.choices], apart)
    entry = await place.last()
    same("charged", entry["completion"], pair.usage.completion_tokens if pair.usage else None)
    chunks = [chunk async for chunk in await create(prompt="Time to first token is", stream=True, **asked)]
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    same("streamed", text, plain.choices[0].text)
    return f"{len(chunks)} events"


async def echoed(place: Place) -> str:
    asked: dict[str, Any] = {"model": "m", "max_tokens": 3, "temperature": 0, "prompt": "Time to first token is"}
    try:
        told = await place.client.completions.create(**asked, echo=True, logprobs=1)
    except APIStatusError as error:
        raise _as_refused(error, "echo") from error
    if not told.choices[0].text.startswith(asked["prompt"]):
        raise Unlike("it did not echo, and said nothing")
    found = told.choices[0].logprobs
    holds(found and found.token_logprobs and len(found.token_logprobs) > 3, "no log probabilities of the prompt")
    return f"{len(found.token_logprobs or []) if found else 0} tokens"


async def suffixed(place: Place) -> str:
    error = await _refused(place.client.completions.create(model="m", prompt="a", suffix="b", max_tokens=3))
    same("status", error.status_code, 400)
    return f"refused: {error.body['message']:.60}" if isinstance(error.body, dict) else ""


async def embedded(place: Place) -> str:
    try:
        told = await place.client.embeddings.create(model="m", input=["one", "two"], encoding_format="float")
    except APIStatusError as error:
        raise _as_refused(error, "embeddings") from error
    same("vectors", len(told.data), 2)
    return f"{len(told.data[0].embedding)} numbers, length {math.hypot(*told.data[0].embedding):.3f}"


def _as_refused(error: APIStatusError, what: str) -> Exception:
    """A refusal that a client can read, or Unlike."""
    body = error.body if isinstance(error.body, dict) else {}
    if error.status_code in (400, 404, 422, 501) and body.get("message"):
        return NotThere(f"{what}: {error.status_code} {body['message']:.60}")
    return Unlike(f"{what}: {error.status_code} {body}")


async def refusals(place: Place) -> str:
    schema = {"name": "r", "schema": {"type": "nonsense"}}
    said: list[str] = []
    for name, wanted, asked in (
        ("too long", (400, "context_length_exceeded"), lambda: place.chat("word " * 6_000)),
        ("unknown model", (404, "model_not_found"), lambda: place.chat(QUESTION, model="gone")),
        ("no schema", (400, None), lambda: place.chat(QUESTION, response_format={**FORM, "json_schema": schema})),
        ("no token", (400, None), lambda: place.chat(QUESTION, logit_bias={"99999999": 5})),
    ):
        try:
            error = await _refused(asked())
        except Unlike:
            holds(name != "too long", "a prompt that is too long was answered")
            said.append(f"{name}: answered")
            continue
        body: dict[str, Any] = error.body if isinstance(error.body, dict) else {}
        same(f"{name}: fields", set(body), {"message", "type", "param", "code"})
        same(name, (error.status_code, body["code"]), wanted)
    lines = await place.gateway.entries()
    holds(all(line["source"] == "provider" for line in lines if line["amount_nano"]), "a refusal was charged")
    return "; ".join(said) or "four of them, in OpenAI's shape, not charged"


async def limited(place: Place) -> str:
    await place.chat(QUESTION, max_tokens=None, max_completion_tokens=5)
    entry = await place.last()
    same("tokens", entry["completion"], 5)
    return "max_completion_tokens"


async def cached(place: Place) -> str:
    """Reads the prefix of a prompt again, and not for another tenant."""
    text = f"{secrets.token_hex(8)} {LONG}"  # what an earlier run has left there is of no use
    await place.chat(text)
    told = await place.chat(text)
    entry = await place.last()
    details = told.usage.prompt_tokens_details
    hit = (details.cached_tokens if details else 0) or 0
    same("ledger", entry["cached"], hit)
    other = await place.gateway.new_key("other")
    apart = await place.client.with_options(api_key=other).chat.completions.create(
        model="m", messages=[{"role": "user", "content": text}], max_tokens=12, temperature=0
    )
    details = apart.usage.prompt_tokens_details if apart.usage else None
    if place.kind in ("llamacpp", "openai"):
        raise NotThere(f"{hit} of {told.usage.prompt_tokens} tokens, and tenants are not kept apart")
    same("of another tenant", (details.cached_tokens if details else 0) or 0, 0)
    if not hit:
        raise NotThere("it tells no cached tokens")
    return f"{hit} of {told.usage.prompt_tokens} tokens; of another tenant 0"


async def responses(place: Place) -> str:
    wanted = await place.chat(QUESTION, max_tokens=16)
    told = await place.client.responses.create(model="m", input=QUESTION, max_output_tokens=16, temperature=0)
    same("text", told.output_text, wanted.choices[0].message.content)
    text, kinds = "", list[str]()
    async for event in await place.client.responses.create(
        model="m", input=QUESTION, max_output_tokens=16, temperature=0, stream=True
    ):
        kinds.append(event.type)
        text += event.delta if event.type == "response.output_text.delta" else ""
    same("streamed", text, told.output_text)
    return f"{told.usage.output_tokens if told.usage else 0} tokens, {len(kinds)} events"


async def messages(place: Place) -> str:
    wanted = await place.chat(QUESTION, max_tokens=16)
    asked: dict[str, Any] = {"model": "m", "max_tokens": 16, "extra_body": {"temperature": 0}}
    asked["messages"] = [{"role": "user", "content": QUESTION}]
    told = await place.messages.messages.create(**asked)
    same("text", told.content[0].text, wanted.choices[0].message.content)
    async with place.messages.messages.stream(**asked) as stream:
        text = "".join([piece async for piece in stream.text_stream])
    same("streamed", text, told.content[0].text)
    return f"{told.usage.output_tokens} tokens, {told.stop_reason}"


CHECKS: dict[str, Check] = {
    "a chat, whole": whole,
    "streams, with usage and without": streamed,
    "two choices": several,
    "log probabilities": logprobs,
    "a seed": seeded,
    "a stop string": stopped,
    "a limit of tokens": limited,
    "a tool it chose": tool_auto,
    "a tool that is required": tool_required,
    "a tool by name": tool_named,
    "a JSON schema": formed,
    "completions": completed,
    "the prompt echoed": echoed,
    "a suffix": suffixed,
    "embeddings": embedded,
    "refusals": refusals,
    "cached prompts, tenants apart": cached,
    "/v1/responses": responses,
    "/v1/messages": messages,
}
