"""An OpenAI-compatible upstream that says what a test tells it to, over a real socket, with delays and prices to match.

As a judge it reads the items it is shown, as a model would, and says of each what the test's rule says.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tests.unit.upstream.raw_upstream import Heard, RawUpstream, raw_upstream

Rule = Callable[[dict[str, str]], str]


class Speaker:
    """`say`: what a question is answered; `rule`: what a judge says of an item; `reply`: in place of all verdicts.

    `go` holds judging answers back while it is cleared; `judged` counts the items, `asked` the questions.
    """

    def __init__(self) -> None:
        self.say: Callable[[str], str] = lambda _: "In the oven at 220 degrees."
        self.rule: Rule = lambda item: "same" if item["first"] == item["second"] else "different"
        self.reply: str | None = None
        self.go = asyncio.Event()
        self.go.set()
        self.judged = 0
        self.prompts = 0
        self.asked: list[str] = []

    async def answer(self, writer: asyncio.StreamWriter, heard: Heard) -> None:
        body = msgspec.json.decode(heard.body)
        last = body["messages"][-1]["content"]
        if body["model"] == "judge":
            self.prompts += 1
            told = self.reply if self.reply is not None else self._verdicts(last)
            await self.go.wait()
        else:
            self.asked.append(last)
            told = self.say(last)
        writer.write(_response(body, told))

    def _verdicts(self, shown: str) -> str:
        items = msgspec.json.decode(shown.partition("\n")[2])
        self.judged += len(items)
        return msgspec.json.encode([self.rule(item) for item in items]).decode()


@asynccontextmanager
async def speaking() -> AsyncGenerator[tuple[Speaker, RawUpstream]]:
    """A speaker and where it listens."""
    speaker = Speaker()
    async with raw_upstream(speaker.answer) as upstream:
        yield speaker, upstream
        speaker.go.set()


def _response(body: dict[str, Any], told: str) -> bytes:
    usage = {"prompt_tokens": len(str(body["messages"])) // 4, "completion_tokens": len(told) // 4 + 1}
    usage["total_tokens"] = sum(usage.values())
    choice = {"index": 0, "message": {"role": "assistant", "content": told}, "finish_reason": "stop"}
    whole = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body["model"]}
    sent = msgspec.json.encode(whole | {"choices": [choice], "usage": usage})
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(sent)}\r\n\r\n"
    return head.encode() + sent
