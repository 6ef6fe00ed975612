"""From the engine's token ids to the deltas a reader sees.

Knows: incremental decoding, stop strings, log probabilities as text. Does not know: sockets, models.
"""

from engine.api import Delta, SamplingParams, TokenLogprob
from engine.frames import Choice, Output
from engine.stops import StopMatcher
from engine.tokenizer import Detokenizer, TextTokenizer


class Answer:
    """One answer. Tokens that the engine computed past a stop string are counted in `token_ids` but not shown."""

    def __init__(self, tokenizer: TextTokenizer, sampling: SamplingParams, eos: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopMatcher(sampling.stop)
        self._wants_logprobs = sampling.logprobs is not None
        self._eos = eos

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found."""
        return self._stops.found

    def push(self, output: Output) -> Delta:
        """The delta for `output`; terminal when that is."""
        text = ""
        shown = 0
        for token in output.tokens:
            if self.stopped:
                break
            shown += 1
            if token not in self._eos:
                text += self._stops.push(self._detokenizer.push(token))
        if output.finish is not None and not self.stopped:
            text += self._stops.push(self._detokenizer.flush())
            text += self._stops.flush()
        logprobs = (
            [
                self._logprob(token, choice)
                for token, choice in zip(output.tokens[:shown], (output.choices or [])[:shown], strict=True)
            ]
            if self._wants_logprobs
            else None
        )
        return Delta(
            text=text,
            token_ids=output.tokens,
            logprobs=logprobs,
            finish_reason="stop" if output.finish is not None and self.stopped else output.finish,
            usage=output.usage,
            timing=output.timing,
        )

    def _logprob(self, token: int, choice: Choice) -> TokenLogprob:
        show = self._tokenizer.show
        return TokenLogprob(token=show(token), logprob=choice.logprob, top=[(show(one), lp) for one, lp in choice.top])
