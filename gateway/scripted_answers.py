"""What the scripted upstream says: a pure function of the request, with its exact token counts.

Knows: deterministic words, vectors, lengths and misfortunes. Does not know: sockets, time, bills.
It is not a model: the words are drawn from a fixed list by a hash of the prompt.
"""

import base64
import hashlib
from typing import Literal, NamedTuple, cast

import numpy as np
from msgspec import Struct

from gateway.call import Body, Operation
from policies.money import Usage

Misfortune = Literal["none", "error", "limit", "cut"]

_PROSE = """
the a this that one each any some time day way part place case point fact form line light water air fire stone
river field road house door window table paper letter word name number order answer question reason result cause
change growth value price cost measure weight length distance speed force heat sound color shape surface edge
north south east west near far high low left right early late long short small large great new old good clear
plain simple exact whole half full empty open close warm cold dry bright dark quiet strong quick slow steady is
was has had will can may must does gives takes makes holds keeps moves turns brings carries follows leads meets
finds shows tells asks reads writes counts draws builds grows falls rises starts ends stays goes comes runs
stands and or but so then also only again often always never once here there where when why how with without
into from over under between after before through along across about against during since until toward within
beyond
"""
WORDS = _PROSE.split()
_FIRST = [word.capitalize() for word in WORDS]
_REST = [f" {word}" for word in WORDS]
_WORDS_PER_TABLE = len(WORDS)
_LONGEST = 1 << 20
# A limit up to this length is filled exactly; beyond it (a gateway's default, say) the answer keeps its own length.
_FILLED = 1_024


class Request(Struct):
    """The fields of any operation that matter here; all others are accepted and mean nothing."""

    model: str
    messages: list[Body] = []
    prompt: object = ""
    input: object = ""
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: Body | None = None
    logprobs: object = None
    kv_transfer_params: Body | None = None
    bootstrap_room: int | None = None
    dimensions: int | None = None
    encoding_format: str | None = None


class Lines(Struct, frozen=True):
    """What is said instead of drawn words, and how it ends; None leaves both to the prompt."""

    say: str | None = None
    finish: str | None = None


_DRAWN = Lines()


class Answer(NamedTuple):
    """One choice: its tokens as text and why it ends."""

    tokens: list[str]
    finish: str


class Script(NamedTuple):
    """All choices and the prompt's tokens."""

    answers: list[Answer]
    prompt_tokens: int

    def usage(self) -> Usage:
        return Usage(prompt=self.prompt_tokens, completion=sum(len(answer.tokens) for answer in self.answers))


def script(request: Request, operation: Operation, fixed: int | None = None, lines: Lines = _DRAWN) -> Script:
    """The whole answer. `fixed`: a natural length in tokens instead of one that depends on the prompt (8 to 39).

    A natural end says `stop`. A limit below the natural length cuts with `length`; one above it and up to 1024 is
    filled exactly and still says `stop`; `ignore_eos` fills any limit and says `length`.
    """
    prompts = [_chat_text(request.messages)] if operation == "chat" else texts(request.prompt)
    limit = request.max_completion_tokens or request.max_tokens
    answers = [
        _said(lines, _answer(f"{prompt}\0{copy}" if copy else prompt, limit, fixed, greedy=bool(request.ignore_eos)))
        for prompt in prompts
        for copy in range(request.n or 1)
    ]
    return Script(answers, sum(count(prompt) for prompt in prompts))


def _said(lines: Lines, drawn: Answer) -> Answer:
    tokens = drawn.tokens
    if lines.say is not None:
        first, *rest = lines.say.split(" ")
        tokens = [first, *(f" {word}" for word in rest)]
    finish = lines.finish or ("stop" if lines.say is not None else drawn.finish)
    return Answer(tokens, finish)


def token_logprobs(tokens: list[str], logprob: float) -> Body:
    """Every token as sure as that."""
    rows = [{"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": []} for token in tokens]
    return {"content": rows, "refusal": None}


def _answer(seed: str, limit: int | None, fixed: int | None, *, greedy: bool) -> Answer:
    hashed = hashlib.blake2b(seed.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    natural = fixed or 8 + hashed[0] % 32
    length, finish = natural, "stop"
    if limit is not None and (limit < natural or greedy):
        length, finish = max(1, min(limit, _LONGEST)), "length"
    elif limit is not None and fixed is None and limit <= _FILLED:
        length = limit
    drawn = hashlib.shake_128(hashed).digest(length)
    tokens = [_REST[byte % _WORDS_PER_TABLE] for byte in drawn]
    tokens[0] = _FIRST[drawn[0] % _WORDS_PER_TABLE]
    return Answer(tokens, finish)


def texts(given: object) -> list[str]:
    """Prompts or inputs as texts; token ids are written out as numbers, which is deterministic and enough here."""
    if isinstance(given, str):
        return [given]
    items = cast("list[object]", given) if isinstance(given, list) else [given]
    if not items or isinstance(items[0], int):
        return [_numbers(items)]
    return [item if isinstance(item, str) else _numbers(item) for item in items]


def _numbers(ids: object) -> str:
    return " ".join(map(str, cast("list[object]", ids))) if isinstance(ids, list) else str(ids)


def count(text: str) -> int:
    """Prompt tokens of a text: a token per four characters, begun ones counted."""
    return (len(text) + 3) // 4


def _chat_text(messages: list[Body]) -> str:
    pieces: list[str] = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            pieces.append(content)
        elif content is not None:
            pieces.append(str(content))
    return "\n".join(pieces)


def vector(text: str, dimensions: int | None) -> list[float] | str:
    """A unit vector of `dimensions` (384) numbers that depends on the text only."""
    return _unit(text, dimensions or 384).tolist()


def vector_base64(text: str, dimensions: int | None) -> str:
    """The same vector as little-endian float32 in base64."""
    return base64.b64encode(_unit(text, dimensions or 384).astype("<f4").tobytes()).decode()


def _unit(text: str, dimensions: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    drawn = hashlib.shake_128(text.encode("utf-8", "surrogatepass")).digest(2 * dimensions)
    raw = np.frombuffer(drawn, "<i2").astype(np.float32) + np.float32(0.5)
    return raw / np.float32(np.linalg.norm(raw))


def misfortune(seed: int, counter: int, fail_rate: float, cut_rate: float) -> tuple[Misfortune, float]:
    """What goes wrong with call number `counter`, and a fraction in [0, 1) that says when.

    The same seed, the same fate. Of the failures three in four are a 500, one is a 429.
    """
    drawn = hashlib.blake2b(
        counter.to_bytes(8, "big"), digest_size=24, key=seed.to_bytes(8, "big", signed=True)
    ).digest()
    first, second, third = (int.from_bytes(drawn[at : at + 8], "big") / 2**64 for at in (0, 8, 16))
    if first < fail_rate:
        return ("limit" if second < 0.25 else "error"), third
    return ("cut" if second < cut_rate else "none"), third
