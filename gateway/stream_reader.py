"""An upstream's event stream as chunks: when it has begun, when it is whole, and when it broke.

Knows: OpenAI's terminal rule, the waits, the bounds of the parser. Does not know: who the upstream is, how it was
reached, what an answer costs.
"""

from collections.abc import Callable
from typing import Any, Literal, cast

from msgspec import Struct
from msgspec.structs import replace

from gateway.call import Body, Chunk
from gateway.errors import UpstreamTimeout
from gateway.providers import Partial, Sending
from gateway.stream import DONE_DATA, EventParser, StreamGarbage, parse, read_usage
from gateway.transport import BrokenOff, Exchange, TimedOut
from gateway.transport.refusal import in_band_message, in_doubt
from policies.money import Usage

CountsAlong = Literal["", "each", "all"]


class StreamRules(Struct, frozen=True, kw_only=True):
    """What a provider knows about all its streams. `clean` takes secrets out of an upstream's words.

    `counts_along`: it was asked to count in every event, which is not for clients unless they asked for it too; what
    `each` choice has used, or `all` of them.
    With `needs_done=False` the end of the connection will do for `[DONE]`, for servers that never send it. `tell` puts
    an event into OpenAI's words, in place, where a service has others.
    """

    name: str
    needs_done: bool = True
    counts_along: CountsAlong = ""
    tell: Callable[[Body], None] | None = None
    clean: Callable[[str], str] = str


class ChunkReader:
    """Until the first chunk failures are UpstreamFailed or UpstreamTimeout, after it they are Partial.

    Whole is an answer in which every choice that began has a finish reason and after which `[DONE]` came. What stood
    before a failure is always given out first, however the bytes were cut into packets.
    """

    def __init__(
        self,
        rules: StreamRules,
        exchange: Exchange,
        sending: Sending,
        *,
        deadline: float,
        monotonic: Callable[[], float],
    ) -> None:
        """The first chunk must come by `deadline`, in the clock's seconds."""
        self._rules = rules
        self._exchange = exchange
        self._idle = sending.idle
        self._monotonic = monotonic
        self._last = 0.0
        self._deadline = deadline
        self._parser = EventParser()
        self._begun = False
        self._done = False
        self._failure: StreamGarbage | None = None
        self._open: set[int] = set()
        self._finished: set[int] = set()
        self._usage: Usage | None = None
        self._hushed = bool(rules.counts_along) and not wants_counts(sending.body)
        self._counts: dict[int, int] = {}  # tokens written so far, by choice
        self._prompts = len(prompts_of(sending.body))

    async def more(self) -> list[Chunk]:
        """The chunks of the next packets, at least one; none when the answer is whole."""
        while not self._done:
            if self._failure is not None:
                raise self._broken(str(self._failure)) from self._failure
            packet = await self._packet()
            if not packet:
                self._end()
                break
            chunks = self._chunks(packet)
            if chunks:
                self._begun = True
                self._last = self._monotonic()
                return chunks
            self._check_clock()
        return []

    async def _packet(self) -> bytes:
        wait = self._idle if self._begun else max(0.001, self._deadline - self._monotonic())
        try:
            return await self._exchange.piece(wait)
        except TimedOut as error:
            raise self._late() from error
        except BrokenOff as error:
            raise self._broken(f"broke off its answer: {error}") from error

    def _chunks(self, packet: bytes) -> list[Chunk]:
        chunks: list[Chunk] = []
        try:
            for data in self._parser.feed(packet):
                if data == DONE_DATA:
                    if self._open or not self._finished:
                        raise StreamGarbage("said [DONE] before every choice had finished")
                    self._done = True
                    break
                chunk = self._chunk(parse(data))
                if chunk.usage is None or chunk.finish is None:
                    chunks.append(chunk)
                else:
                    chunks += _apart(chunk)
        except StreamGarbage as error:
            self._failure = error
        return chunks

    def _chunk(self, body: Body) -> Chunk:
        choices: Any = body.get("choices")  # every event comes by: no call of `cast` here
        if body.get("error") or choices.__class__ is not list:
            choices = self._none_but_usage(body)
        if self._rules.tell is not None:
            self._rules.tell(body)
        finish = None
        for choice in choices:
            if choice.__class__ is not dict:
                raise StreamGarbage("sent a choice that is not an object")
            finish = self._note(choice) or finish
        usage = read_usage(body) if body.get("usage") is not None else None
        if usage is not None and choices and self._rules.counts_along:
            so_far = self._so_far(choices, usage)
            if not self._hushed:
                return Chunk(body, usage, finish, so_far=so_far)
            del body["usage"]
            return Chunk(body, None, finish, so_far=so_far)
        if usage is not None:
            self._usage = usage
        return Chunk(body, usage, finish)

    def _none_but_usage(self, body: Body) -> list[Any]:
        """Some servers leave `choices` out where they tell the usage: nothing else was said. Raises StreamGarbage."""
        if body.get("error") or body.get("choices") is not None or not isinstance(body.get("usage"), dict):
            raise StreamGarbage(f"failed: {self._rules.clean(in_band_message(body))}")
        found: list[Any] = []
        body["choices"] = found
        return found

    def _so_far(self, choices: list[dict[str, Any]], usage: Usage) -> Usage | None:
        """What all of the answer has used. Of several prompts an event tells its own, and who knows what of the others
        has been read.
        """
        if self._prompts > 1:
            return None
        if self._rules.counts_along == "all":
            return usage
        self._counts[choices[0].get("index", 0)] = usage.completion
        if len(self._counts) == 1:
            return usage
        return replace(usage, completion=sum(self._counts.values()))

    def _note(self, choice: Body) -> str | None:
        index = choice.get("index", 0)
        finish = choice.get("finish_reason")
        if not isinstance(index, int):
            raise StreamGarbage("sent a choice without an index")
        if isinstance(finish, str):
            self._finished.add(index)
            self._open.discard(index)
            return finish
        if index not in self._finished:
            self._open.add(index)
        return None

    def _end(self) -> None:
        whole = self._finished and not self._open
        if not whole or (self._rules.needs_done and not self._parser.done_at_end()):
            raise self._broken("closed the connection before its answer was whole")
        self._done = True

    def _check_clock(self) -> None:
        """Comments keep a connection alive, not an answer: the waits are for chunks."""
        limit = self._last + self._idle if self._begun else self._deadline
        if self._monotonic() > limit and not self._done and self._failure is None:
            raise self._late()

    def _late(self) -> Exception:
        if self._begun:
            return Partial(f"{self._rules.name} sent nothing for {self._idle:g} s", self._usage)
        return UpstreamTimeout(f"{self._rules.name} sent nothing in time")

    def _broken(self, what: str) -> Exception:
        message = f"{self._rules.name} {what}"
        return Partial(message, self._usage) if self._begun else in_doubt(message)


def wants_counts(body: Body) -> bool:
    """Whether a client has asked for counts in every event, as vLLM and SGLang tell them."""
    options = body.get("stream_options")
    return isinstance(options, dict) and bool(cast("Body", options).get("continuous_usage_stats"))


def prompts_of(body: Body) -> list[object]:
    """What a completion is asked to go on with, where that is several prompts; a list of numbers is one."""
    prompt = body.get("prompt")
    prompts = cast("list[object]", prompt) if isinstance(prompt, list) else []
    return prompts if len(prompts) > 1 and not isinstance(prompts[0], int) else []


def _apart(chunk: Chunk) -> list[Chunk]:
    """Usage stands in an event of its own, after the finish; some send it with the finish."""
    first = {name: value for name, value in chunk.data.items() if name != "usage"}
    last: Body = {**first, "choices": [], "usage": chunk.data["usage"]}
    return [Chunk(first, None, chunk.finish), Chunk(last, chunk.usage)]
