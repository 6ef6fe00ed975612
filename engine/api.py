"""The engine's outside: what a caller hands in, what comes back, what can go wrong.

Knows: requests, deltas, usage, the `Engine` protocol every implementation obeys (torch, sim).
Does not know: HTTP, tenants (only an opaque salt), money, torch.
"""

import re
from bisect import bisect_left
from collections.abc import AsyncGenerator, Mapping
from typing import Literal, Protocol

from msgspec import Struct

_PART = re.compile(r"bytes:((?:\\x[0-9a-f]{2})+)")
FinishReason = Literal["stop", "length", "tool_calls", "abort", "error", "deadline"]
ToolChoice = Literal["auto", "none", "required"]


class EngineError(Exception):
    """Base of what an engine raises. `InvalidRequest` is the caller's fault, `Overloaded` and `EngineFailed` are ours.

    The latter two are worth a retry, elsewhere or later.
    """


class InvalidRequest(EngineError):
    """The request can never be served. `param` names the field, `code` is OpenAI's (context_length_exceeded)."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class Overloaded(EngineError):
    """The bounded queue is full. `retry_after` in seconds, computed from the backlog."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineFailed(EngineError):
    """The engine died or lost this request; the same request may be sent elsewhere."""


class EngineLost(EngineFailed):
    """The engine's process went away with this request in it, which may have been why.

    `twice`: so did the second one, to which it was passed on.
    """

    def __init__(self, message: str = "", *, twice: bool = False) -> None:
        super().__init__(message)
        self.twice = twice


class SamplingParams(Struct, frozen=True, kw_only=True):
    """How to choose tokens. `temperature=0` is greedy; `seed=None` lets the engine draw one; `logprobs=None`: none.

    `max_tokens=0` only reads the prompt. `min_tokens`: neither an end token nor a stop string ends the answer before.
    `stop_token_ids` end it like the model's own end tokens. `prompt_logprobs`: alternatives per token of the prompt.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    ignore_eos: bool = False


# Naming one of these says that tokens are to be drawn, and how.
DRAWN = frozenset(("temperature", "top_p", "top_k", "min_p", "seed", "n"))
# What a request may leave to the model's own generation config.
CAN_BE_LEFT = DRAWN | {"repetition_penalty"}


def left_open(given: Mapping[str, object]) -> frozenset[str]:
    """Which of `CAN_BE_LEFT` an OpenAI-shaped request says nothing about. One answer is what `n` means unsaid."""
    return frozenset(name for name in CAN_BE_LEFT if given.get(name) is None or (name == "n" and given[name] == 1))


class Constraint(Struct, frozen=True):
    """What the answer must be: any JSON object (`text` is empty), JSON of a schema, a regular expression, a grammar.

    `text` of kind `schema` is JSON, of `choice` a JSON list of strings, of `grammar` Lark's or GBNF's notation. Not
    `strict`: what no grammar can hold to in a schema is left out of account instead of being refused.
    """

    kind: Literal["json", "schema", "regex", "choice", "grammar"]
    text: str = ""
    strict: bool = True


class Tools(Struct, frozen=True, kw_only=True):
    """OpenAI's function tools, as they came. `name`: the one that must be called; it makes `choice` `required`."""

    functions: list[dict[str, object]]
    choice: ToolChoice = "auto"
    name: str | None = None
    parallel: bool = True


class GenerateRequest(Struct, frozen=True, kw_only=True):
    """One sequence to generate. Exactly one of `messages` (rendered by the model's chat template), `text`, `token_ids`.

    `salt` isolates the prefix cache of tenants from each other, and service is shared evenly between them. `priority`:
    higher goes first. `deadline_ms`: queue time after which the request is dropped with finish reason `deadline`.
    `prediction`: a text the answer is likely to repeat, guessed from by speculation. `echo`: the first delta's text
    begins with the prompt. `thinking`: None leaves the chat template its own default. `left`: what `left_open`
    found, about which the model's generation config may speak. `suspected`: a process may have ended because of it, so
    it is passed on to no other.
    """

    id: str
    sampling: SamplingParams
    messages: list[dict[str, object]] | None = None
    text: str | None = None
    token_ids: list[int] | None = None
    salt: str = ""
    priority: int = 0
    deadline_ms: float | None = None
    constraint: Constraint | None = None
    tools: Tools | None = None
    prediction: str = ""
    echo: bool = False
    thinking: bool | None = None
    left: frozenset[str] = frozenset()
    suspected: bool = False


class TokenLogprob(Struct, frozen=True):
    """`top`: the most likely alternatives, best first, as (token text, logprob). Texts as `spelled_bytes` reads them.

    `logprob` is None for the first token of a prompt only: nothing stood before it.
    """

    token: str
    logprob: float | None
    top: list[tuple[str, float]]


def spelled(raw: bytes) -> str:
    """The text of a token that is a part of a character only, as OpenAI writes it: `bytes:` and each byte."""
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def spelled_bytes(token: str) -> bytes:
    """What a token of `TokenLogprob` adds to an answer. Side by side they are the answer in UTF-8."""
    found = _PART.fullmatch(token)
    return token.encode("utf-8", "replace") if found is None else bytes.fromhex(found[1].replace("\\x", ""))


class EngineUsage(Struct, frozen=True, kw_only=True):
    """Tokens really computed; exact also when aborted. `cached` is the part of `prompt` found in the prefix cache.

    `drafted` tokens were guessed by speculation and `accepted` of them were right: those are part of `completion`.
    `reasoning` is the part of `completion` inside a block of reasoning.
    """

    prompt: int
    completion: int
    cached: int = 0
    drafted: int = 0
    accepted: int = 0
    reasoning: int = 0


class Timing(Struct, frozen=True, kw_only=True):
    """Milliseconds: in the queue; from submit to first token (TTFT); per further token after the first (TPOT)."""

    queue_ms: float
    ttft_ms: float
    tpot_ms: float


class ToolCallDelta(Struct, frozen=True):
    """A piece of the call `index` of an answer: its name comes whole with the first piece, then its arguments."""

    index: int
    name: str | None = None
    arguments: str = ""


class Delta(Struct, frozen=True, kw_only=True):
    """A piece of output. Exactly one terminal delta (finish_reason set, usage and timing present) ends a stream.

    `prompt_logprobs` has one entry per token of the prompt; all of them come at once. `stopped_by`: the stop string
    that ended it. `prompt_tokens`: of the whole prompt, cached ones too, on every delta of an answer that began.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallDelta] = []
    token_ids: list[int] = []
    prompt_tokens: int = 0
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stopped_by: str | None = None
    usage: EngineUsage | None = None
    timing: Timing | None = None


class ModelInfo(Struct, frozen=True, kw_only=True):
    """What is loaded. `context` is the window in tokens; `features` names optional abilities (e.g. `logprobs`)."""

    id: str
    architecture: str
    dtype: str
    context: int
    kv_capacity_tokens: int
    vocabulary: int
    has_chat_template: bool
    features: tuple[str, ...] = ()
    note: str = ""


class EngineStats(Struct, frozen=True, kw_only=True):
    """A snapshot. `heartbeat_age_s`: seconds since the step loop last turned; `loading`: why it may not turn now.

    `batch`: sequences in the last step. `step_ms`: a step's time, smoothed; `step_p50_ms`: the median of the last ones.
    `sleeping`: 0 awake, 1 without keys and values, 2 without weights too; `wake_ms`: how long the last waking took.
    `failed`: it has said that it cannot serve, and why in `loading`.
    """

    ready: bool
    loading: str = ""
    running: int = 0
    waiting: int = 0
    batch: int = 0
    kv_used: float = 0.0
    prefix_hit_rate: float = 0.0
    tokens_per_s: float = 0.0
    step_ms: float = 0.0
    step_p50_ms: float = 0.0
    heartbeat_age_s: float = 0.0
    preemptions: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    restarts: int = 0
    sleeping: int = 0
    wake_ms: float = 0.0
    failed: bool = False


class Spread(Struct, kw_only=True):
    """A histogram of seconds: how many were at most each of `bounds`, and above the last, each counted once."""

    bounds: tuple[float, ...]
    counts: list[int]
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds


class Figures(Struct, kw_only=True):
    """What an engine process has counted since it started. `met`: requests within both bounds of the SLO (seconds).

    `gap`: between a sequence's outputs; `first`: TTFT; `each`: TPOT; `queue`: until scheduled; `whole`: all of it.
    """

    first: Spread
    each: Spread
    gap: Spread
    queue: Spread
    whole: Spread
    finished: dict[str, int] = {}
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    refused: int = 0
    met: int = 0
    slo_first: float = 0.0
    slo_each: float = 0.0


class Spelled(Struct, frozen=True):
    """Tokens as text, special ones too: together, and each by itself."""

    text: str
    pieces: list[str]


class Engine(Protocol):
    """Obeyed by `engine.client.EngineClient` (torch engine in its own process) and `engine.sim.SimEngine`."""

    async def start(self) -> None:
        """Begin to connect or load; returns at once. `stats().ready` turns true when requests are served."""
        ...

    def info(self) -> ModelInfo | None:
        """None until ready."""
        ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """Raises InvalidRequest/Overloaded/EngineFailed before the first delta. Closing the generator aborts.

        InvalidRequest may come later, too, where the form that was asked for turns out to lead nowhere.
        """
        ...

    def abort(self, request_id: str) -> None:
        """End this request soon: its stream ends with finish reason `abort` and exact usage. Unknown: ignored."""
        ...

    def usage_of(self, request_id: str) -> EngineUsage | None:
        """What a lately ended request consumed, also when its generator was closed early; None while unknown."""
        ...

    async def count_tokens(self, request: GenerateRequest) -> int:
        """Prompt tokens of this request by the model's own tokenizer and template."""
        ...

    async def tokens(self, request: GenerateRequest, *, specials: bool | None = None) -> list[int]:
        """Their ids. `specials`: with what the model expects around a prompt; None: as it would be generated from.

        Raises InvalidRequest, also where no model runs.
        """
        ...

    async def spelled(self, ids: list[int]) -> Spelled:
        """What these tokens are. Raises InvalidRequest for ids that are none, also where no model runs."""
        ...

    def stats(self) -> EngineStats: ...

    def figures(self) -> dict[str, Figures]:
        """By replica (`0` where there is one): what its process has counted. Empty where nothing is counted."""
        ...

    async def stop(self) -> None: ...
