"""What an engine generates as OpenAI's events: roles, pieces, log probabilities, finish reasons, usage.

Knows: deltas and the shapes of chat and legacy completion events. Does not know: how sequences run, sockets, prices.
"""

import codecs
import hashlib
from collections.abc import Iterator
from typing import cast

from engine.api import Delta, EngineUsage, ModelInfo, TokenLogprob, ToolCallDelta, spelled_bytes
from gateway import __version__
from gateway.call import Body, Chunk, Computed
from gateway.engine_requests import Sequence
from gateway.providers import Sending
from policies.money import Usage

# JSON has no minus infinity; OpenAI writes this for a token that cannot be.
_IMPOSSIBLE = -9999.0
_utf8 = codecs.getincrementaldecoder("utf-8")


class Answer:
    """Events of one call, made from its sequences' deltas as they come, in any order."""

    def __init__(self, sending: Sending, found: list[Sequence], created: int, fingerprint: str | None = None) -> None:
        self._chat = sending.operation == "chat"
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        prefix = "chatcmpl" if self._chat else "cmpl"
        self._head: Body = {
            "id": f"{prefix}-{sending.id}",
            "object": kind,
            "created": created,
            "model": sending.model,
        }
        if fingerprint is not None:
            self._head["system_fingerprint"] = fingerprint
        self._found = found
        self._begun: set[int] = set()
        self._offset: dict[int, int] = {}
        self._characters: dict[int, codecs.IncrementalDecoder] = {}  # some tokens are a part of one
        self._usage: dict[int, EngineUsage] = {}
        self.computed: Computed | None = None  # of the sequence that ended first
        self._attempt = sending.id
        self._wants_prompt = sending.body.get("prompt_logprobs") is not None
        self._prompts = len({one.prompt for one in found})
        self._read: dict[int, int] = {}  # tokens of each prompt, and below of each answer so far
        self._written: dict[int, int] = {}

    def chunks(self, sequence: Sequence, delta: Delta) -> Iterator[Chunk]:
        """The events of one delta: the opening before the first, one finish after the last, text in between."""
        index = sequence.index
        if delta.prompt_tokens:
            self._read[sequence.prompt] = delta.prompt_tokens
        if index not in self._begun:
            self._begun.add(index)
            yield from self._opening(sequence)
        self._written[index] = self._written.get(index, 0) + len(delta.token_ids)
        for said in self._pieces(index, delta):
            yield self._chunk({"index": index, **said, "finish_reason": None})
        if delta.finish_reason is not None:
            if delta.usage is not None:
                self._usage[index] = delta.usage
            if delta.timing is not None and self.computed is None:
                queue, first = delta.timing.queue_ms, delta.timing.ttft_ms
                self.computed = Computed(queue, max(0.0, first - queue))
            end: Body = {"delta": {}} if self._chat else {"text": ""}
            choice: Body = {"index": index, **end, "logprobs": None, "finish_reason": delta.finish_reason}
            if delta.stopped_by is not None:
                choice["stop_reason"] = delta.stopped_by  # vLLM's field; Anthropic's clients are told by it
            yield self._chunk(choice, delta.finish_reason)

    def last(self) -> Chunk:
        """The event that tells the usage."""
        usage = self.usage()
        body: Body = {**self._head, "choices": [], "usage": usage_body(usage, *self.guessed())}
        return Chunk(body, usage, computed=self.computed)

    def note(self, index: int, usage: EngineUsage) -> None:
        """What the engine says of a sequence that broke off."""
        self._usage[index] = usage

    def usage(self) -> Usage:
        """Tokens so far, as the engine counts them: a prompt counts once however many choices it has."""
        prompts = {
            found.prompt: self._usage[found.index] for found in reversed(self._found) if found.index in self._usage
        }
        return Usage(
            prompt=sum(usage.prompt for usage in prompts.values()),
            cached=sum(usage.cached for usage in prompts.values()),
            completion=sum(usage.completion for usage in self._usage.values()),
            reasoning=sum(usage.reasoning for usage in self._usage.values()),
        )

    def guessed(self) -> tuple[int, int]:
        """Tokens that speculation got right, and got wrong."""
        right = sum(usage.accepted for usage in self._usage.values())
        return right, sum(usage.drafted for usage in self._usage.values()) - right

    def _opening(self, sequence: Sequence) -> Iterator[Chunk]:
        if not self._chat:
            return
        delta: Body = {"delta": {"role": "assistant", "content": "", "refusal": None}}
        choice: Body = {"index": sequence.index, **delta, "logprobs": None, "finish_reason": None}
        yield self._chunk(choice)

    def _chunk(self, choice: Body, finish: str | None = None) -> Chunk:
        """An event of one choice; what was used up to here goes beside it."""
        return Chunk({**self._head, "choices": [choice]}, None, finish, so_far=self._so_far())

    def _so_far(self) -> Usage | None:
        """None until every prompt was read. What of them was cached is known when their answers end."""
        if len(self._read) < self._prompts:
            return None
        return Usage(prompt=sum(self._read.values()), completion=sum(self._written.values()))

    def _pieces(self, index: int, delta: Delta) -> Iterator[Body]:
        """The events of one delta: scores of the prompt, reasoning, text, calls; one kind each."""
        if delta.prompt_logprobs is not None:
            yield from self._prompt(index, delta.prompt_logprobs)
        if not self._chat:
            if delta.text or delta.logprobs:
                said = None if delta.logprobs is None else self._legacy(index, delta.logprobs)
                yield {"text": delta.text, "logprobs": said}
            return
        logprobs: Body | None = None
        if delta.logprobs is not None:
            logprobs = {"content": [_chat_logprob(token) for token in delta.logprobs], "refusal": None}
        if delta.reasoning:
            yield {"delta": {"reasoning_content": delta.reasoning}, "logprobs": None}
        if delta.text or delta.logprobs:
            yield {"delta": {"content": delta.text}, "logprobs": logprobs}
        if delta.tool_calls:
            calls = [self._call(index, call) for call in delta.tool_calls]
            yield {"delta": {"tool_calls": calls}, "logprobs": None}

    def _call(self, index: int, call: ToolCallDelta) -> Body:
        if call.name is None:
            return {"index": call.index, "function": {"arguments": call.arguments}}
        name = f"call_{self._attempt}_{index}_{call.index}"
        function = {"name": call.name, "arguments": call.arguments}
        return {"index": call.index, "id": name, "type": "function", "function": function}

    def _prompt(self, index: int, tokens: list[TokenLogprob]) -> Iterator[Body]:
        """vLLM's field where that was asked for; else the legacy `echo` with `logprobs`."""
        if self._wants_prompt:
            scores = [None if token.logprob is None else _score(token) for token in tokens]
            yield {**({"delta": {}} if self._chat else {"text": ""}), "prompt_logprobs": scores, "logprobs": None}
        else:
            yield {"text": "", "logprobs": self._legacy(index, tokens)}

    def _legacy(self, index: int, tokens: list[TokenLogprob]) -> Body:
        offset, characters = self._offset.get(index, 0), self._characters.setdefault(index, _utf8("replace"))
        offsets: list[int] = []
        for token in tokens:
            offsets.append(offset)
            offset += len(characters.decode(spelled_bytes(token.token)))
        self._offset[index] = offset
        return {
            "tokens": [token.token for token in tokens],
            "token_logprobs": [_finite(token.logprob) for token in tokens],
            "top_logprobs": [_alternatives(token) for token in tokens],
            "text_offset": offsets,
        }


def fingerprint(info: ModelInfo | None) -> str | None:
    """OpenAI's `system_fingerprint`: the same seed may give another answer once it changes. None: not known yet."""
    if info is None:
        return None
    said = "\0".join((__version__, info.id, info.architecture, info.dtype, info.note))
    return f"fp_{hashlib.blake2b(said.encode(), digest_size=5).hexdigest()}"


def whole(body: Body, usage: Usage, computed: Computed | None = None) -> Chunk:
    """One folded body as the only chunk of an answer that is not streamed."""
    choices = cast("list[Body]", body["choices"])
    finish = choices[-1].get("finish_reason") if choices else None
    return Chunk(body, usage, cast("str | None", finish), final=True, computed=computed)


def usage_body(usage: Usage, right: int = 0, wrong: int = 0) -> Body:
    """`right` and `wrong`: tokens of predictions and other guesses; only the right ones are part of the answer."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.total,
        "prompt_tokens_details": {"cached_tokens": usage.cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning,
            "audio_tokens": 0,
            "accepted_prediction_tokens": right,
            "rejected_prediction_tokens": wrong,
        },
    }


def _chat_logprob(token: TokenLogprob) -> Body:
    top = [{"token": text, "logprob": _finite(value), "bytes": list(spelled_bytes(text))} for text, value in token.top]
    return {
        "token": token.token,
        "logprob": _finite(token.logprob),
        "bytes": list(spelled_bytes(token.token)),
        "top_logprobs": top,
    }


def _alternatives(token: TokenLogprob) -> Body | None:
    """By their text, the token itself always among them; None for a first token, which follows nothing."""
    if token.logprob is None:
        return None
    found: Body = {text: _finite(value) for text, value in token.top}
    found.setdefault(token.token, _finite(token.logprob))
    return found


def _score(token: TokenLogprob) -> Body:
    """vLLM's entry of a prompt token."""
    found = _alternatives(token) or {}
    return {text: {"logprob": value, "decoded_token": text} for text, value in found.items()}


def _finite(value: float | None) -> float | None:
    return None if value is None else max(_IMPOSSIBLE, value)
