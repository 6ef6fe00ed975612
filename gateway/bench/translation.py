"""What a language costs: a request read from a client, made ready for an upstream, a piece of an answer told.

Knows: one short chat with a tool, and one of a coding agent (40 tools, a conversation of some 60 KB), in OpenAI's,
Anthropic's and the Responses API's words. Does not know: sockets, JSON beyond what a translation itself reads and
writes, caches, money. CPU of this process alone, medians of five rounds.
"""

import statistics
import time
from collections.abc import Callable

import msgspec

from gateway.call import Body
from gateway.dialects import Dialect, Voice
from gateway.dialects.messages import Messages
from gateway.dialects.plain import Plain
from gateway.dialects.responses import Responses
from gateway.providers import Sending
from gateway.stream import EventParser, parse, read_usage
from gateway.upstream import (
    anthropic_answers,
    anthropic_requests,
    bedrock_answers,
    bedrock_requests,
    gemini_answers,
    gemini_requests,
)

_ROUNDS = 5
_TURNS, _TOOLS, _RESULT = 14, 40, "line of a file that was read\n" * 70
_encode = msgspec.json.Encoder().encode
_CHUNK: Body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
_WORD: Body = {**_CHUNK, "choices": [{"index": 0, "delta": {"content": "word"}, "finish_reason": None}]}


def per(work: Callable[[], object], times: int) -> float:
    """Microseconds of CPU of one, the median over the rounds."""
    found: list[float] = []
    for _ in range(_ROUNDS):
        began = time.process_time()
        for _ in range(times):
            work()
        found.append((time.process_time() - began) / times * 1e6)
    return round(statistics.median(found), 3)


# -- requests ------------------------------------------------------------------------------------------------------


def requests(times: int) -> dict[str, dict[str, float]]:
    """By size (its bytes as JSON): what reading each dialect and writing each upstream's language takes.

    `to openai` is what nobody can save: the body as JSON. It is part of every `to`.
    """
    sizes = {"short": (short(), times), "agent": (agent(), max(20, times // 20))}
    return {f"{name}, {len(_encode(body)):,} B": _both_ways(body, count) for name, (body, count) in sizes.items()}


def _both_ways(body: Body, times: int) -> dict[str, float]:
    dialects: dict[str, tuple[Dialect, Body]] = {
        "from /v1/chat/completions": (Plain("chat"), body),
        "from /v1/messages": (Messages(), as_messages(body)),
        "from /v1/responses": (Responses(), as_responses(body)),
    }
    what = Sending(id="a", operation="chat", model="m", body=body, stream=True, tenant="t", timeout=1.0, idle=1.0)
    languages = {"anthropic": anthropic_requests, "gemini": gemini_requests, "bedrock": bedrock_requests}
    found = {
        name: per(lambda read=dialect.read, asked=asked: read(asked), times)
        for name, (dialect, asked) in dialects.items()
    }
    found["to openai"] = per(lambda: _encode(body), times)
    for name, language in languages.items():
        found[f"to {name}"] = per(lambda translated=language.translated: _encode(translated(what)), times)
    return found


def _tool(number: int) -> Body:
    field: Body = {"type": "string", "description": "What it is for, in a sentence as agents write them. " * 3}
    properties: Body = {f"field_{index}": field for index in range(4)}
    parameters: Body = {"type": "object", "properties": properties, "required": ["field_0"]}
    told: Body = {"name": f"tool_{number}", "description": "Does one thing well. " * 10, "parameters": parameters}
    return {"type": "function", "function": told}


def short() -> Body:
    """A chat of a thousand characters with one tool."""
    messages: list[Body] = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "words " * 200},
    ]
    return {"model": "m", "messages": messages, "tools": [_tool(0)], "max_completion_tokens": 64, "stream": True}


def agent() -> Body:
    """A coding agent in the middle of its work: forty tools, fourteen calls and what came of them."""
    messages: list[Body] = [{"role": "system", "content": "You are careful. " * 200}]
    for turn in range(_TURNS):
        call: Body = {"name": f"tool_{turn}", "arguments": '{"field_0":"a/path/to/a/file.py"}'}
        calls: list[Body] = [{"id": f"call_{turn}", "type": "function", "function": call}]
        said: list[Body] = [
            {"role": "user", "content": "Now look at this, too. " * 5},
            {"role": "assistant", "content": "I read it.", "tool_calls": calls},
            {"role": "tool", "tool_call_id": f"call_{turn}", "content": _RESULT},
        ]
        messages += said
    tools = [_tool(number) for number in range(_TOOLS)]
    return {"model": "m", "messages": messages, "tools": tools, "max_completion_tokens": 64, "stream": True}


def _messages_of(body: Body) -> list[Body]:
    return msgspec.convert(body["messages"], list[Body])


def _functions_of(body: Body) -> list[Body]:
    return [msgspec.convert(tool["function"], Body) for tool in msgspec.convert(body["tools"], list[Body])]


def _calls_of(message: Body) -> list[tuple[str, Body]]:
    calls = msgspec.convert(message.get("tool_calls", []), list[Body])
    return [(str(call["id"]), msgspec.convert(call["function"], Body)) for call in calls]


def as_messages(body: Body) -> Body:
    """The same as Anthropic's clients ask it."""
    turns: list[Body] = []
    for message in _messages_of(body)[1:]:
        role, content = str(message["role"]), str(message["content"])
        if role == "tool":
            result: Body = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content}
            turns.append({"role": "user", "content": [result]})
            continue
        uses: list[Body] = [
            {"type": "tool_use", "id": name, "name": call["name"], "input": parse(str(call["arguments"]).encode())}
            for name, call in _calls_of(message)
        ]
        turns.append({"role": role, "content": [{"type": "text", "text": content}, *uses]})
    tools: list[Body] = [
        {"name": of["name"], "description": of["description"], "input_schema": of["parameters"]}
        for of in _functions_of(body)
    ]
    system = _messages_of(body)[0]["content"]
    return {"model": "m", "system": system, "messages": turns, "tools": tools, "max_tokens": 64, "stream": True}


def as_responses(body: Body) -> Body:
    """The same as clients of the Responses API ask it."""
    items: list[Body] = []
    for message in _messages_of(body)[1:]:
        role, content = str(message["role"]), str(message["content"])
        if role == "tool":
            items.append({"type": "function_call_output", "call_id": message["tool_call_id"], "output": content})
            continue
        kind = "output_text" if role == "assistant" else "input_text"
        items.append({"type": "message", "role": role, "content": [{"type": kind, "text": content}]})
        items += [{"type": "function_call", "call_id": name, **call} for name, call in _calls_of(message)]
    tools: list[Body] = [{"type": "function", "strict": False, **of} for of in _functions_of(body)]
    instructions = _messages_of(body)[0]["content"]
    return {"model": "m", "instructions": instructions, "input": items, "tools": tools, "stream": True}


# -- answers -------------------------------------------------------------------------------------------------------


def events(times: int) -> dict[str, float]:
    """A streamed event that carries a token: an upstream's, bytes to a chunk; a client's, a chunk to bytes."""
    found = {f"from {name}": per(work, times) for name, work in _heard().items()}
    return found | {
        f"to {name}": per(lambda tell=voice.events: tell(_WORD), times) for name, voice in _voices().items()
    }


def _heard() -> dict[str, Callable[[], object]]:
    ours = b"data: %b\n\n" % _encode(_WORD)
    claude = _encode({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "word"}})
    google = _encode({"candidates": [{"content": {"parts": [{"text": "word"}], "role": "model"}, "index": 0}]})
    amazon = _encode(
        {"event": "contentBlockDelta", "body": {"contentBlockIndex": 0, "delta": {"text": "word"}, "p": "abcdef"}}
    )
    opened = anthropic_answers.Events("m", 1.0)
    opened.feed(_encode({"type": "message_start", "message": {"id": "i", "usage": {"input_tokens": 1}}}))
    opened.feed(_encode({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}))
    gemini = gemini_answers.Events("m", 1.0)
    bedrock = bedrock_answers.Events("m", 1.0, "a")
    parser = EventParser()

    def openai() -> None:
        for data in parser.feed(ours):
            read_usage(parse(data))

    return {
        "openai": openai,
        "anthropic": lambda: opened.feed(claude),
        "gemini": lambda: gemini.feed(google),
        "bedrock": lambda: bedrock.feed(amazon),
    }


def _voices() -> dict[str, Voice]:
    """In the middle of a text."""
    chat = short()
    found: dict[str, Voice] = {}
    for name, asked in (
        ("/v1/messages", Messages().read(as_messages(chat))),
        ("/v1/responses", Responses().read(as_responses(chat))),
    ):
        assert asked.voice is not None
        asked.voice.events(_WORD)
        found[name] = asked.voice
    return found
