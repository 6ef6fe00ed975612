"""The requests of each case, ready as bytes.

Knows: prompts that can never match each other, prompts that mean the same, HTTP/1.1. Does not know: who is asked.
"""

import itertools
import random
from collections.abc import Callable, Iterator

import msgspec

_encode = msgspec.json.Encoder().encode
_SOME_NOUNS = """
river mountain violin harbour lantern glacier orchard compass kettle feather cathedral sparrow engine meadow anchor
library tunnel volcano pepper blanket falcon mirror hammer island candle turbine garden marble saddle whistle
"""
_SOME_VERBS = """
paints repairs follows forgets measures sells hides polishes translates borrows weighs photographs
"""
_NOUNS, _VERBS = _SOME_NOUNS.split(), _SOME_VERBS.split()
_SOME_TOPICS = """
time to first token;photosynthesis;a mortgage;the Doppler effect;inflation;a prime number;plate tectonics;a haiku;
osmosis;a black hole;compound interest;the water cycle;a sonnet;machine translation;a semiconductor;natural selection;
a blockchain;the greenhouse effect;a firewall;quantum entanglement;a vaccine;the Pythagorean theorem;a supply chain;
gravity;an ecosystem;a compiler;the stock market;a comet;fermentation;a constitution;dark matter;an earthquake;
a metaphor;the immune system;a hash table;entropy;a symphony;double-entry bookkeeping;a glacier;the placebo effect;
a database index;continental drift;a monsoon;herd immunity;a fractal;the gold standard;an isotope;a coral reef;
game theory;a catalyst;a tariff;magnetism;an algorithm;a solar eclipse;literacy;a patent;the carbon cycle;a nebula
"""
TOPICS = [topic.strip() for topic in _SOME_TOPICS.replace("\n", "").split(";")]
_OPENINGS = ("", "Please tell me: ", "Quick question: ", "Hello! ", "One question: ", "I wonder: ", "Hi, ", "Tell me, ")
_FRAMES = ("what is {}", "what's {}", "What exactly is {}")
_ENDINGS = ("?", "? Thanks", "? Please", "? Thank you!")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests go: `model` as that server knows it, `key` as its bearer token."""

    name: str
    host: str
    port: int
    model: str
    key: str = "none"
    path: str = "/v1"
    pid: int | None = None

    @property
    def where(self) -> tuple[str, int]:
        return self.host, self.port


def chat(target: Target, prompt: str, *, stream: bool = False) -> bytes:
    """One request, complete. Without an output limit, because an answer that was cut off is never kept."""
    body: dict[str, object] = {"model": target.model, "messages": [{"role": "user", "content": prompt}]}
    if stream:
        body["stream"] = True
    raw = _encode(body)
    head = (
        f"POST {target.path}/chat/completions HTTP/1.1\r\nhost: {target.host}:{target.port}\r\n"
        f"authorization: Bearer {target.key}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(raw)}\r\n\r\n"
    )
    return head.encode() + raw


def fresh(seed: int) -> Iterator[str]:
    """Sentences of no common meaning, each once: no cache may answer one with another's answer."""
    draw = random.Random(seed)  # noqa: S311 - repeatable prompts, nothing secret
    for number in itertools.count():
        nouns, verbs = draw.sample(_NOUNS, 3), draw.sample(_VERBS, 2)
        yield f"{nouns[0]} {verbs[0]} {nouns[1]} {draw.randrange(10**9)} {verbs[1]} {nouns[2]} {number}"


def question(topic: str) -> str:
    """The wording that is asked first and kept."""
    return f"What is {topic}?"


def wordings() -> list[str]:
    """Other ways to ask it, with `{}` for the topic."""
    found = [f"{a}{b}{c}" for a, b, c in itertools.product(_OPENINGS, _FRAMES, _ENDINGS)]
    return [text for text in found if text.lower() != question("{}").lower()]


def cycle(requests: list[bytes]) -> Callable[[], bytes]:
    return itertools.cycle(requests).__next__
