"""An answer told in OpenAI's chat events, whatever language it came in.

Knows: how a choice opens (role), goes on (text, reasoning, calls in pieces) and finishes once; the usage event.
Does not know: any upstream's events.
"""

from collections.abc import Iterable

from gateway.call import Body, Chunk
from gateway.stream import fold, read_finish, read_usage


class Telling:
    """The events of one answer, in order. `created` is seconds since the epoch."""

    def __init__(self, model: str, created: float) -> None:
        self.head: Body = {
            "id": "",
            "object": "chat.completion.chunk",
            "created": int(created),
            "model": model,
        }
        self._open: set[int] = set()
        self._said: set[int] = set()
        self._calls: dict[int, int] = {}
        self._finished: set[int] = set()

    @property
    def begun(self) -> bool:
        return bool(self._open)

    @property
    def finished(self) -> bool:
        """Whether every choice that began has finished, and there was one."""
        return bool(self._finished) and self._open <= self._finished

    def is_finished(self, choice: int = 0) -> bool:
        return choice in self._finished

    def calls(self, choice: int = 0) -> int:
        """How many calls a choice has made so far."""
        return self._calls.get(choice, 0)

    def text(self, text: str, choice: int = 0) -> list[Chunk]:
        if not text:
            return []
        self._said.add(choice)
        return [*self._opened(choice, ""), self._event({"content": text}, choice)]

    def more(self, delta: Body, choice: int = 0) -> list[Chunk]:
        """A delta that is neither text nor a call: reasoning, say."""
        return [*self._opened(choice, None), self._event(delta, choice)]

    def scored(self, content: list[Body], choice: int = 0) -> list[Chunk]:
        """How likely its tokens were, in OpenAI's words; nothing where nobody says."""
        if not content:
            return []
        told: Body = {"index": choice, "delta": {}, "finish_reason": None}
        told["logprobs"] = {"content": content, "refusal": None}
        return [*self._opened(choice, ""), Chunk({**self.head, "choices": [told]})]

    def call(self, call_id: str, name: str, choice: int = 0, extra: Body | None = None) -> tuple[int, list[Chunk]]:
        """Begin a call: its place among the calls of its choice. Id and name are told here and never again."""
        place = self._calls.get(choice, 0)
        self._calls[choice] = place + 1
        begun: Body = {
            "index": place,
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": ""},
            **(extra or {}),
        }
        return place, [*self._opened(choice, None), self._event({"tool_calls": [begun]}, choice)]

    def arguments(self, place: int, text: str, choice: int = 0) -> list[Chunk]:
        if not text:
            return []
        return [self._event({"tool_calls": [{"index": place, "function": {"arguments": text}}]}, choice)]

    def finish(self, reason: str, choice: int = 0, extra: Body | None = None) -> list[Chunk]:
        """The one finish of a choice. A choice that said nothing at all has an empty text."""
        if choice in self._finished:
            return []
        opened = self._opened(choice, "")
        delta: Body = {} if choice in self._said or self._calls.get(choice) or opened else {"content": ""}
        self._finished.add(choice)
        told: Body = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": reason, **(extra or {})}
        return [*opened, Chunk({**self.head, "choices": [told]}, None, reason)]

    def usage(self, usage: Body | None, extra: Body | None = None) -> list[Chunk]:
        """The last event; none when the upstream told no usage."""
        if usage is None:
            return []
        body: Body = {**self.head, "choices": [], **(extra or {}), "usage": usage}
        return [Chunk(body, read_usage(body))]

    def _opened(self, choice: int, content: str | None) -> list[Chunk]:
        if choice in self._open:
            return []
        self._open.add(choice)
        return [self._event({"role": "assistant", "content": content, "refusal": None}, choice)]

    def _event(self, delta: Body, choice: int) -> Chunk:
        told: Body = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}
        return Chunk({**self.head, "choices": [told]})


def whole(chunks: Iterable[Chunk]) -> Chunk:
    """Events as the one body they amount to, for an answer that is not streamed."""
    body = fold(chunk.data for chunk in chunks)
    return Chunk(body, read_usage(body), read_finish(body), final=True)
