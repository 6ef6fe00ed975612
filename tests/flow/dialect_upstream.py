"""An OpenAI-compatible upstream that answers what a test hands it: a text, tool calls, thoughts, whole or as events.

It keeps the bodies it was sent, so that a test sees what a dialect became.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tests.unit.upstream.raw_upstream import Heard, RawUpstream, raw_upstream

USAGE = {
    "prompt_tokens": 21,
    "completion_tokens": 9,
    "total_tokens": 30,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


class Script:
    """`text`, `thought`, `calls` as (id, name, arguments): said in this order. `stalls`: never comes to its end.

    `wait`: nothing is answered before it is set, but the first `at_once`.
    """

    def __init__(self) -> None:
        self.text = "In the oven at 220 degrees."
        self.thought = ""
        self.calls: list[tuple[str, str, str]] = []
        self.finish = ""
        self.stalls = False
        self.breaks = False
        self.refuses: tuple[str, dict[str, Any]] | None = None
        self.sent: list[dict[str, Any]] = []
        self.wait: asyncio.Event | None = None
        self.at_once = 0

    async def answer(self, writer: asyncio.StreamWriter, heard: Heard) -> None:
        body = msgspec.json.decode(heard.body)
        self.sent.append(body)
        if self.wait is not None and len(self.sent) > self.at_once:
            await self.wait.wait()
        if self.refuses is not None:
            status, error = self.refuses
            raw = msgspec.json.encode({"error": error})
            writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(raw)}\r\n\r\n".encode() + raw)
        elif body.get("stream"):
            await self._stream(writer, body["model"])
        else:
            raw = msgspec.json.encode(self._whole(body["model"]))
            head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
            writer.write(head.encode() + raw)

    def _reason(self) -> str:
        return self.finish or ("tool_calls" if self.calls else "stop")

    def _whole(self, model: str) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.text or None}
        if self.thought:
            message["reasoning_content"] = self.thought
        if self.calls:
            message["tool_calls"] = [
                {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
                for id_, name, arguments in self.calls
            ]
        choice = {"index": 0, "message": message, "finish_reason": self._reason()}
        return {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": model,
            "choices": [choice],
            "usage": USAGE,
        }

    def _deltas(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        found += [{"reasoning_content": piece} for piece in _pieces(self.thought)]
        found += [{"content": piece} for piece in _pieces(self.text)]
        for index, (id_, name, arguments) in enumerate(self.calls):
            opening = {"index": index, "id": id_, "type": "function", "function": {"name": name, "arguments": ""}}
            found.append({"tool_calls": [opening]})
            found += [
                {"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in _pieces(arguments)
            ]
        return found

    async def _stream(self, writer: asyncio.StreamWriter, model: str) -> None:
        head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": model}
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for delta in self._deltas():
            writer.write(_chunk({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}))
        await writer.drain()
        if self.breaks:
            writer.close()
            return
        while self.stalls:
            await asyncio.sleep(0.01)
            writer.write(_chunk({**head, "choices": [{"index": 0, "delta": {"content": "."}, "finish_reason": None}]}))
            await writer.drain()
        writer.write(_chunk({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": self._reason()}]}))
        writer.write(_chunk({**head, "choices": [], "usage": USAGE}))
        writer.write(_framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")


def _pieces(text: str) -> list[str]:
    return [text[start : start + 5] for start in range(0, len(text), 5)]


def _framed(raw: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(raw), raw)


def _chunk(body: dict[str, Any]) -> bytes:
    return _framed(b"data: " + msgspec.json.encode(body) + b"\n\n")


@asynccontextmanager
async def scripted() -> AsyncGenerator[tuple[Script, RawUpstream]]:
    """A script and where it is played."""
    script = Script()
    async with raw_upstream(script.answer) as upstream:
        yield script, upstream
        script.stalls = False
