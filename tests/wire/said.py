"""What a recorded answer says, read apart from the product's own readers: the other side of the comparison.

Knows: where OpenAI's language, Anthropic's, Google's and Bedrock's keep words, thoughts, calls of tools and counts.
Does not know: how the gateway reads them, whole answers from streamed ones (a stream is a list of events).
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

decode = msgspec.json.Decoder().decode


class Said(Struct, kw_only=True):
    """`calls`: name and arguments, in order. `prompt` includes what was cached, `completion` what was thought."""

    text: str = ""
    thought: str = ""
    calls: list[tuple[str, Any]] = []
    prompt: int = 0
    completion: int = 0
    cached: int = 0
    ended: bool = False


def said(kind: str, raw: bytes, media: str) -> Said:
    """Raises ValueError for what no answer holds."""
    bodies = list(_bodies(raw, media))
    if kind == "anthropic":
        return _anthropic(bodies)
    if kind == "gemini":
        return _gemini(bodies)
    if kind == "responses":
        return _responses(bodies)
    return _bedrock(bodies) if kind == "bedrock" else _openai(bodies)


def broken_off(kind: str, raw: bytes, media: str) -> str:
    """What an answer that began well says of its own failure; nothing where it did not fail."""
    for body in _bodies(raw, media):
        for name, told in body.items():
            if name == "error" and told:
                return str(told.get("message") if isinstance(told, dict) else told)
            if kind == "bedrock" and name.endswith("Exception"):
                return str(told.get("message"))
    return ""


def _bodies(raw: bytes, media: str) -> Iterator[Any]:
    if "amazon.eventstream" in media:
        yield from _frames(raw)
    elif "event-stream" in media:
        for line in raw.replace(b"\r\n", b"\n").split(b"\n"):
            data = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data != b"[DONE]":
                yield decode(data)
    else:
        yield decode(raw)


def _frames(raw: bytes) -> Iterator[Any]:
    """AWS's event frames: lengths, headers, payload; checksums are the product's business."""
    while raw:
        total, heads = int.from_bytes(raw[:4], "big"), int.from_bytes(raw[4:8], "big")
        head, payload = raw[12 : 12 + heads], raw[12 + heads : total - 4]
        kind = head.partition(b":event-type\x07")[2]
        yield {kind[2 : 2 + int.from_bytes(kind[:2], "big")].decode(): decode(payload)}
        raw = raw[total:]


def _openai(bodies: Iterable[Any]) -> Said:
    found, calls = Said(), dict[int, list[str]]()
    for body in bodies:
        for choice in body.get("choices") or []:
            if choice.get("index"):
                continue
            told = choice.get("message") or choice.get("delta") or {}
            content = told.get("content") or ""
            parts: list[Any] = [{"text": content}] if isinstance(content, str) else content
            for part in parts:
                found.text += part.get("text") or ""
                found.thought += "".join(piece.get("text") or "" for piece in part.get("thinking") or [])
            found.thought += told.get("reasoning_content") or told.get("reasoning") or ""
            for place, call in enumerate(told.get("tool_calls") or []):
                if not call.get("function"):
                    continue
                one = calls.setdefault(call.get("index", place), ["", ""])
                one[0] = one[0] or call["function"].get("name") or ""
                arguments = call["function"].get("arguments") or ""
                one[1] += arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
            found.ended = found.ended or bool(choice.get("finish_reason"))
        if usage := body.get("usage"):
            found.prompt = usage.get("prompt_tokens") or 0
            found.completion = usage.get("completion_tokens") or 0
            details = usage.get("prompt_tokens_details") or {}
            found.cached = details.get("cached_tokens") or usage.get("cached_tokens") or 0
    found.calls = [(name, arguments_of(text)) for name, text in calls.values()]
    return found


def _anthropic(bodies: Iterable[Any]) -> Said:
    found, written = Said(), dict[int, str]()
    blocks: list[Any] = []
    usage: dict[str, Any] = {}
    for body in bodies:
        told = body.get("message") or body
        blocks += told.get("content") or []
        if body.get("content_block"):
            blocks.append(body["content_block"])
        usage |= {name: count for name, count in (told.get("usage") or {}).items() if count is not None}
        delta = body.get("delta") or {}
        found.text += delta.get("text") or ""
        found.thought += delta.get("thinking") or ""
        if delta.get("type") == "input_json_delta":
            written[len(blocks) - 1] = written.get(len(blocks) - 1, "") + delta["partial_json"]
        found.ended = found.ended or bool(delta.get("stop_reason") or told.get("stop_reason"))
    for place, block in enumerate(blocks):
        if block["type"] == "text":
            found.text += block["text"]
        elif block["type"] == "thinking":
            found.thought += block["thinking"]
        elif block["type"] == "tool_use":
            found.calls.append((block["name"], arguments_of(written[place]) if place in written else block["input"]))
    # To shorten a conversation costs tokens that the totals leave out.
    for told in (usage, *(row for row in usage.get("iterations") or [] if row.get("type") == "compaction")):
        read = told.get("cache_read_input_tokens") or 0
        found.cached += read
        found.prompt += (told.get("input_tokens") or 0) + read + (told.get("cache_creation_input_tokens") or 0)
        found.completion += told.get("output_tokens") or 0
    return found


def _responses(bodies: Iterable[Any]) -> Said:
    """A response, or the one that its last event holds."""
    found, whole = Said(), dict[str, Any]()
    for body in bodies:
        whole = body.get("response") or (body if "output" in body else whole)
    for item in whole.get("output") or []:
        parts: list[Any] = item.get("content") or []
        if item["type"] == "message":
            found.text += "".join(part.get("text") or "" for part in parts)
        elif item["type"] == "reasoning":
            found.thought += "".join(part["text"] for part in [*(item.get("summary") or []), *parts])
        elif item["type"] == "function_call":
            found.calls.append((item["name"], arguments_of(item["arguments"])))
        elif item["type"] == "custom_tool_call":
            found.calls.append((item["name"], {"input": item["input"]}))
    usage: dict[str, Any] = whole.get("usage") or {}
    found.prompt = usage.get("input_tokens") or 0
    found.completion = usage.get("output_tokens") or 0
    found.cached = (usage.get("input_tokens_details") or {}).get("cached_tokens") or 0
    found.ended = bool(whole.get("status"))
    return found


def _gemini(bodies: Iterable[Any]) -> Said:
    found, usage = Said(), dict[str, Any]()
    for body in bodies:
        for candidate in body.get("candidates") or []:
            for part in (candidate.get("content") or {}).get("parts") or []:
                if part.get("thought"):
                    found.thought += part.get("text") or ""
                else:
                    found.text += part.get("text") or ""
                if "functionCall" in part:
                    found.calls.append((part["functionCall"]["name"], part["functionCall"].get("args") or {}))
            found.ended = found.ended or bool(candidate.get("finishReason"))
        usage |= body.get("usageMetadata") or {}
        found.ended = found.ended or bool((body.get("promptFeedback") or {}).get("blockReason"))
        if usage:
            found.prompt = (usage.get("promptTokenCount") or 0) + (usage.get("toolUsePromptTokenCount") or 0)
            found.completion = (usage.get("candidatesTokenCount") or 0) + (usage.get("thoughtsTokenCount") or 0)
            found.cached = usage.get("cachedContentTokenCount") or 0
    return found


def _bedrock(bodies: Iterable[Any]) -> Said:
    found, started = Said(), dict[int, tuple[str, str]]()
    usage: dict[str, Any] = {}
    for body in bodies:
        for block in ((body.get("output") or {}).get("message") or {}).get("content") or []:
            found.text += block.get("text") or ""
            found.thought += ((block.get("reasoningContent") or {}).get("reasoningText") or {}).get("text") or ""
            if "toolUse" in block and block["toolUse"].get("type") != "server_tool_use":
                found.calls.append((block["toolUse"]["name"], block["toolUse"]["input"]))
        start, delta = body.get("contentBlockStart"), body.get("contentBlockDelta")
        tool = (start or {}).get("start", {}).get("toolUse")
        if start and tool and tool.get("type") != "server_tool_use":
            started[start["contentBlockIndex"]] = (tool["name"], "")
        if delta:
            told, place = delta["delta"], delta["contentBlockIndex"]
            found.text += told.get("text") or ""
            found.thought += (told.get("reasoningContent") or {}).get("text") or ""
            if "toolUse" in told and place in started:
                name, text = started[place]
                started[place] = (name, text + told["toolUse"]["input"])
        found.ended = found.ended or bool(body.get("stopReason") or (body.get("messageStop") or {}).get("stopReason"))
        usage = body.get("usage") or (body.get("metadata") or {}).get("usage") or usage
    found.calls += [(name, arguments_of(text)) for name, text in started.values()]
    found.cached = usage.get("cacheReadInputTokens") or 0
    found.prompt = (usage.get("inputTokens") or 0) + found.cached + (usage.get("cacheWriteInputTokens") or 0)
    found.completion = usage.get("outputTokens") or 0
    return found


def arguments_of(text: str) -> Any:
    """What a call was made with; the text itself where a model wrote no JSON."""
    try:
        return decode(text.encode() or b"{}")
    except msgspec.DecodeError:
        return text
