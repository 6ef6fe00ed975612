"""Many events to one body (`fold`) and one body to the events a client expects (`unfold`).

Knows: OpenAI's chat and legacy completion shapes, tool calls, log probabilities, several choices, fields it has never
heard of. Does not know: bytes, framing, which client asks.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, cast

from gateway.call import Body, Operation

# A replayed text comes in at most about this many pieces: enough to look alive, few enough to be cheap.
_MOST_PIECES = 32
_SHORTEST_PIECE = 16
_WORD = re.compile(r"\s*\S+\s*|\s+")
# Fields of a delta that are said once; every other text in a delta is a piece of a longer one.
_SAID_ONCE = frozenset({"role", "id", "type", "name", "format", "index", "signature"})
_ENVELOPE = ("id", "created", "model", "service_tier", "system_fingerprint")


def fold(events: Iterable[Body]) -> Body:
    """The one body that streamed chat or completion events amount to; a single whole body comes back as it is.

    Choices stand in order of `index`; `usage` is the last one told; fields unknown here survive. Chat choices always
    carry `message.refusal`, `logprobs` and `finish_reason`, as OpenAI's bodies do.
    """
    body: Body = {}
    choices: dict[int, Body] = {}
    chat = False
    for event in _runs(events):
        for key, value in event.items():
            if key != "choices" and (value is not None or key not in body):
                body[key] = value
        for choice in _dicts(event.get("choices")):
            if "message" in choice:
                return event
            chat = chat or "delta" in choice
            index = choice.get("index")
            place = index if isinstance(index, int) else 0
            _fold_choice(choices.setdefault(place, {"index": place}), choice)
    # An in-band null stands for "told later"; a body without usage has no such field.
    if body.get("usage") is None:
        body.pop("usage", None)
    body.pop("obfuscation", None)
    if chat or body.get("object") == "chat.completion.chunk":
        body["object"] = "chat.completion"
        body["choices"] = [_chat_choice(choices[index]) for index in sorted(choices)]
    else:
        body["choices"] = [_completion_choice(choices[index]) for index in sorted(choices)]
    return body


def _runs(events: Iterable[Body]) -> Iterator[Body]:
    """The same events, with every run of plain text that differs in nothing else as a single one.

    Such runs are nearly all of nearly every stream; taking each event apart on its own costs ten times as much.
    """
    envelope: Body | None = None
    texts: list[str] = []
    for event in events:
        text = _plain_text(event)
        around = None if text is None else {**event, "choices": None}
        if text is not None and around == envelope:
            texts.append(text)
            continue
        if envelope is not None:
            yield _run(envelope, texts)
        if text is None:
            envelope = None
            yield event
        else:
            envelope, texts = around, [text]
    if envelope is not None:
        yield _run(envelope, texts)


def _plain_text(event: Body) -> str | None:
    """The text of an event whose one choice says text and nothing else."""
    choices: Any = event.get("choices")  # every event of every stream comes by: no call of `cast` here
    if choices.__class__ is not list or len(choices) != 1:
        return None
    choice = choices[0]
    if choice.__class__ is not dict or not choice.keys() <= _OF_PLAIN_TEXT or choice.get("index") != 0:
        return None
    if choice.get("finish_reason") is not None or choice.get("logprobs") is not None:
        return None
    delta = choice.get("delta")
    if delta.__class__ is not dict or len(delta) != 1:
        return None
    text = delta.get("content")
    return text if isinstance(text, str) else None


def _run(envelope: Body, texts: list[str]) -> Body:
    return {**envelope, "choices": [{"index": 0, "delta": {"content": "".join(texts)}}]}


_OF_PLAIN_TEXT = frozenset(("index", "delta", "logprobs", "finish_reason"))


def _fold_choice(whole: Body, part: Body) -> None:
    for key, value in part.items():
        if key == "delta" and isinstance(value, dict):
            _merge(cast("Body", whole.setdefault("message", {})), cast("Body", value))
        elif key == "text" and isinstance(value, str):
            cast("list[str]", whole.setdefault("text", [])).append(value)
        elif key == "logprobs" and isinstance(value, dict):
            logprobs = whole.get("logprobs")
            if not isinstance(logprobs, dict):
                logprobs = whole["logprobs"] = {}
            _merge(cast("Body", logprobs), cast("Body", value))
        elif key != "index" and (value is not None or key not in whole):
            whole[key] = value


def _merge(whole: Body, part: Body) -> None:
    """Add a delta to what is there. Texts are gathered as lists and joined once at the end (`_joined`)."""
    for key, value in part.items():
        if value.__class__ is str and (text := whole.get(key)).__class__ is _Text:
            cast("_Text", text).append(cast("str", value))  # nearly every piece of nearly every answer
        elif key == "tool_calls":
            _merge_calls(cast("dict[int, Body]", whole.setdefault(key, {})), value)
        elif value is None:
            whole.setdefault(key, None)
        elif key in _SAID_ONCE:
            whole[key] = whole.get(key) or value
        else:
            whole[key] = _grown(whole.get(key), value)


def _grown(have: object, value: object) -> object:
    if isinstance(value, str):
        text = have if isinstance(have, _Text) else _Text()
        text.append(value)
        return text
    if isinstance(value, list):
        # The first list is copied, so extending it never changes an event.
        items = cast("list[object]", have if isinstance(have, list) else [])
        items.extend(cast("list[object]", value))
        return items
    if isinstance(value, dict):
        inner = cast("Body", have if isinstance(have, dict) else {})
        _merge(inner, cast("Body", value))
        return inner
    return value


class _Text(list[str]):
    """Pieces of one text."""


def _merge_calls(calls: dict[int, Body], parts: object) -> None:
    """Tool calls are told apart by `index`; a server that leaves it out means the position in the list."""
    for position, part in enumerate(_dicts(parts)):
        index = part.get("index")
        place = index if isinstance(index, int) else position
        _merge(calls.setdefault(place, {}), {key: value for key, value in part.items() if key != "index"})


def _joined(value: object) -> object:
    if isinstance(value, _Text):
        return "".join(value)
    if isinstance(value, dict):
        return {key: _joined(item) for key, item in cast("Body", value).items()}
    return value


def _chat_choice(choice: Body) -> Body:
    message = cast("Body", choice.get("message", {}))
    calls = cast("dict[int, Body] | None", message.pop("tool_calls", None))
    folded = cast("Body", _joined(message))
    content = folded.pop("content", None)
    if calls:
        content = content or None
    whole: Body = {"role": folded.pop("role", "assistant"), "content": content, "refusal": folded.pop("refusal", None)}
    whole["refusal"] = whole["refusal"] or None
    if calls:
        whole["tool_calls"] = [_joined(calls[index]) for index in sorted(calls)]
    rest = {key: value for key, value in choice.items() if key not in ("index", "message", "logprobs", "finish_reason")}
    return {
        "index": choice["index"],
        "message": whole | folded,
        "logprobs": _joined(choice.get("logprobs")),
        "finish_reason": choice.get("finish_reason"),
        **rest,
    }


def _completion_choice(choice: Body) -> Body:
    rest = {key: value for key, value in choice.items() if key not in ("index", "text", "logprobs", "finish_reason")}
    return {
        "index": choice["index"],
        "text": "".join(cast("list[str]", choice.get("text", []))),
        "logprobs": _joined(choice.get("logprobs")),
        "finish_reason": choice.get("finish_reason"),
        **rest,
    }


def unfold(body: Body, operation: Operation, *, include_usage: bool) -> list[Body]:
    """The events a client expects for one canonical body: role first, then content in pieces, one finish per choice.

    With `include_usage` every event says `"usage": null` and a last one has no choices and the usage.
    """
    chat = operation == "chat"
    head: Body = {"id": body.get("id"), "object": "chat.completion.chunk" if chat else "text_completion"}
    head |= {key: body[key] for key in _ENVELOPE[1:] if key in body}
    tail: Body = {"usage": None} if include_usage else {}
    events: list[Body] = []
    for choice in _dicts(body.get("choices")):
        parts = _chat_parts(choice) if chat else _completion_parts(choice)
        events.extend({**head, "choices": [part], **tail} for part in parts)
    if include_usage:
        events.append({**head, "choices": [], "usage": body.get("usage")})
    return events


def _chat_parts(choice: Body) -> Iterator[Body]:
    index = choice.get("index", 0)
    message = cast("Body", choice.get("message") or {})
    content, refusal, calls = message.get("content"), message.get("refusal"), _dicts(message.get("tool_calls"))
    logprobs = cast("Body | None", choice.get("logprobs"))

    def part(delta: Body, said: Body | None = None) -> Body:
        return {"index": index, "delta": delta, "logprobs": said, "finish_reason": None}

    opening: Body = {"role": message.get("role", "assistant"), "content": None if content is None else ""}
    yield part({**opening, "refusal": None})
    # What holds all of it in another dialect's words goes first: who reads that needs nothing else.
    for key in sorted(message, key=lambda name: not name.startswith("native_")):
        if key not in ("role", "content", "refusal", "tool_calls") and message[key] not in (None, []):
            yield part({key: message[key]})
    if isinstance(content, str) and content:
        for text, said in _with_logprobs(content, logprobs, "content"):
            yield part({"content": text}, said)
    elif content and not isinstance(content, str):
        yield part({"content": content})
    if isinstance(refusal, str) and refusal:
        for text, said in _with_logprobs(refusal, logprobs, "refusal"):
            yield part({"refusal": text}, said)
    for place, call in enumerate(calls):
        yield from (part({"tool_calls": [piece]}) for piece in _call_parts(place, call))
    known = ("index", "message", "logprobs", "finish_reason")
    rest = {key: value for key, value in choice.items() if key not in known}
    yield {"index": index, "delta": {}, "logprobs": None, "finish_reason": choice.get("finish_reason"), **rest}


def _call_parts(place: int, call: Body) -> Iterator[Body]:
    """Id and name come once, in the first piece; clients that concatenate would double a repeated one."""
    kind = "custom" if call.get("type") == "custom" else "function"
    long = "input" if kind == "custom" else "arguments"
    inner = cast("Body", call.get(kind) or {})
    yield {"index": place, **call, kind: {**inner, long: ""}}
    text = inner.get(long)
    if isinstance(text, str):
        for piece in _pieces(text):
            yield {"index": place, kind: {long: piece}}


def _completion_parts(choice: Body) -> Iterator[Body]:
    index, text = choice.get("index", 0), choice.get("text")
    known = ("index", "text", "logprobs", "finish_reason")
    rest = {key: value for key, value in choice.items() if key not in known}
    logprobs = choice.get("logprobs")
    if isinstance(text, str) and text:
        # The lists of a legacy logprobs object belong together, so a text that has them goes in one piece.
        for piece in [text] if logprobs else _pieces(text):
            yield {"index": index, "text": piece, "logprobs": logprobs, "finish_reason": None}
    yield {"index": index, "text": "", "logprobs": None, "finish_reason": choice.get("finish_reason"), **rest}


def _with_logprobs(text: str, logprobs: Body | None, kind: str) -> Iterator[tuple[str, Body | None]]:
    """Pieces of `text`, each with the log probabilities of its own tokens; one piece when tokens and text disagree."""
    tokens = _dicts(logprobs.get(kind)) if logprobs else []
    if not tokens:
        for piece in _pieces(text):
            yield piece, None
        return
    texts = [token.get("token") for token in tokens]
    other = "refusal" if kind == "content" else "content"
    if not all(isinstance(item, str) for item in texts) or "".join(cast("list[str]", texts)) != text:
        yield text, {kind: tokens, other: None}
        return
    step = max(1, -(-len(tokens) // _MOST_PIECES))
    for start in range(0, len(tokens), step):
        yield "".join(cast("list[str]", texts[start : start + step])), {kind: tokens[start : start + step], other: None}


def _pieces(text: str) -> list[str]:
    """Runs of words whose concatenation is `text`."""
    size = max(_SHORTEST_PIECE, len(text) // _MOST_PIECES)
    pieces: list[str] = []
    start = 0
    for word in _WORD.finditer(text):
        if word.end() - start >= size:
            pieces.append(text[start : word.end()])
            start = word.end()
    if start < len(text):
        pieces.append(text[start:])
    return pieces


def _dicts(value: object) -> list[Body]:
    if not isinstance(value, list):
        return []
    return [cast("Body", item) for item in cast("list[object]", value) if isinstance(item, dict)]
