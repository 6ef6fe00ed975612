"""From the engine's token ids to the deltas a reader sees.

Knows: incremental decoding, stop strings, reasoning, tool calls, log probabilities as text. Does not know: sockets,
models, what a request must look like.
"""

from msgspec import Struct
from msgspec.structs import replace

from engine.api import Delta, EngineUsage, FinishReason, SamplingParams, TokenLogprob, ToolCallDelta
from engine.frames import Choice, Output
from engine.reasoning import ThinkReader
from engine.stops import StopMatcher
from engine.tokenizer import Detokenizer, TextTokenizer
from engine.toolreader import ToolReader


class Reading(Struct, frozen=True):
    """How an answer is to be read. `eos` ends it; `marks`: special tokens that are shown, since readers look for them.

    `prompt`: its token ids, when their log probabilities were asked for. `opening` is shown before the answer.
    `before`: the last tokens of a text that the answer continues. `read`: how many tokens the prompt has.
    """

    eos: frozenset[int]
    marks: frozenset[int] = frozenset()
    thinking: ThinkReader | None = None
    tools: ToolReader | None = None
    prompt: list[int] = []
    opening: str = ""
    before: list[int] = []
    read: int = 0


class Answer:
    """One answer. It ends with the token that completes a stop string.

    The engine is told of it too late: what it computed meanwhile depends on how busy both are. It is neither shown nor
    part of the usage, so the same request costs the same every time.
    """

    def __init__(self, tokenizer: TextTokenizer, sampling: SamplingParams, reading: Reading) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, reading.before)
        self._stops = StopMatcher(sampling.stop)
        self._sampling = sampling
        self._reading = reading
        self._opening = reading.opening
        self._unscored = reading.prompt
        self._scores: list[Choice] = []
        self._seen = 0  # tokens of the answer
        self._reasoned = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found."""
        return self._stops.found

    def push(self, output: Output) -> Delta:
        """The delta for `output`; terminal when that is."""
        shown, text, reasoning = 0, "", ""
        for token in output.tokens:
            if self.stopped:
                break
            shown += 1
            more_reasoning, more = self._token(token)
            reasoning += more_reasoning
            text += more
        if output.finish is not None:
            more_reasoning, more = self._end()
            reasoning += more_reasoning
            text += more
        text, calls = self._calls(text, output.finish)
        opening, self._opening = self._opening, ""
        return Delta(
            text=opening + text,
            reasoning=reasoning,
            tool_calls=calls,
            token_ids=output.tokens[:shown],
            prompt_tokens=self._reading.read,
            logprobs=self._logprobs(output, shown),
            prompt_logprobs=self._prompt_logprobs(output),
            finish_reason=self._reason(output.finish),
            stopped_by=None if output.finish is None else self._stops.matched or None,
            usage=self._usage(output.usage),
            timing=output.timing,
        )

    def _token(self, token: int) -> tuple[str, str]:
        """(reasoning, text) that became certain with it."""
        self._seen += 1
        if token in self._reading.eos:
            return "", ""
        if token in self._reading.marks:
            piece = self._detokenizer.flush() + self._tokenizer.show(token)
            self._detokenizer = Detokenizer(self._tokenizer)
        else:
            piece = self._detokenizer.push(token)
        thinking = self._reading.thinking
        reasoning, piece = ("", piece) if thinking is None else thinking.push(piece)
        self._reasoned += thinking is not None and thinking.inside
        if self._seen <= self._sampling.min_tokens:
            return reasoning, piece  # too early for a stop string to end it
        return reasoning, self._stops.push(piece)

    def _end(self) -> tuple[str, str]:
        if self.stopped:
            return "", ""
        rest, reasoning, thinking = self._detokenizer.flush(), "", self._reading.thinking
        if thinking is not None:
            reasoning, rest = thinking.push(rest)
            more_reasoning, more = thinking.flush()
            reasoning, rest = reasoning + more_reasoning, rest + more
        return reasoning, self._stops.push(rest) + self._stops.flush()

    def _calls(self, text: str, finish: FinishReason | None) -> tuple[str, list[ToolCallDelta]]:
        """Text without the calls in it, and the calls."""
        tools = self._reading.tools
        if tools is None:
            return text, []
        said = tools.push(text)
        return "".join(said.text) + (tools.flush() if finish is not None else ""), said.calls

    def _reason(self, finish: FinishReason | None) -> FinishReason | None:
        if finish is None:
            return None
        if finish == "stop" and self._reading.tools is not None and self._reading.tools.called:
            return "tool_calls"
        return "stop" if self.stopped else finish

    def _usage(self, usage: EngineUsage | None) -> EngineUsage | None:
        if usage is None:
            return None
        if self.stopped:
            usage = replace(usage, completion=self._seen, accepted=min(usage.accepted, self._seen))
        return replace(usage, reasoning=self._reasoned)

    def _logprobs(self, output: Output, shown: int) -> list[TokenLogprob] | None:
        if self._sampling.logprobs is None:
            return None
        pairs = zip(output.tokens[:shown], (output.choices or [])[:shown], strict=True)
        return [self._logprob(token, choice) for token, choice in pairs]

    def _prompt_logprobs(self, output: Output) -> list[TokenLogprob] | None:
        """All of them at once, as soon as all are there."""
        self._scores += output.scores or []
        prompt = self._unscored
        if not prompt or len(self._scores) < len(prompt) - 1:
            return None
        self._unscored = []
        first = TokenLogprob(token=self._tokenizer.spell(prompt[0]), logprob=None, top=[])
        return [first, *(self._logprob(*pair) for pair in zip(prompt[1:], self._scores, strict=True))]

    def _logprob(self, token: int, choice: Choice) -> TokenLogprob:
        spell = self._tokenizer.spell
        top = [(spell(one), logprob) for one, logprob in choice.top]
        return TokenLogprob(token=spell(token), logprob=choice.logprob, top=top)
