"""Small cores that are stepped by hand, and what they should answer."""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import pytest
import torch

from engine import host
from engine.api import SamplingParams
from engine.attention import KVCache, pack
from engine.blocks import blocks_for
from engine.core import EngineCore
from engine.frames import Submit
from engine.locate import locate
from engine.models import loader
from engine.models.decoder import Decoder
from engine.scheduler import Limits, Work
from engine.sequence import Sequence
from engine.testing import Forked, fork_command

torch.set_num_threads(1)  # threads of a model this small only wait for each other


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `open_engine` starts is forked from a process that has torch loaded: for who asks what an engine does."""

    async def started(line: Iterable[str]) -> Forked:
        return fork_command(list(line))

    monkeypatch.setattr(host, "started", started)


@pytest.fixture(scope="session")
def decoder() -> Decoder:
    return loader.load(locate("tiny-random:qwen3?seed=3"), "float32")


@pytest.fixture
def make_core(decoder: Decoder, clock: Clock) -> Callable[..., EngineCore]:
    def make(blocks: int = 64, queue: int = 1000, **limits: int) -> EngineCore:
        return EngineCore("tiny", decoder, blocks=blocks, limits=Limits(**limits), queue=queue, monotonic=clock)

    return make


@pytest.fixture(scope="session")
def submit() -> Callable[..., Submit]:
    def make(tokens: list[int], **changes: Any) -> Submit:
        outer: dict[str, Any] = {"seed": 1, "eos": [], "salt": "", "priority": 0, "deadline_ms": None, "handle": 0}
        outer |= {name: changes.pop(name) for name in list(changes) if name in outer}
        sampling: dict[str, Any] = {"max_tokens": 8, "temperature": 0.0}
        return Submit(tokens=tokens, sampling=SamplingParams(**(sampling | changes)), **outer)

    return make


@pytest.fixture(scope="session")
def oracle(decoder: Decoder) -> Callable[[list[int], int], list[int]]:
    """Greedy continuation by the plainest use of the decoder: everything anew for every token, nothing shared."""
    known: dict[tuple[int, ...], int] = {}
    keys = count()

    def following(tokens: list[int]) -> int:
        blocks = blocks_for(len(tokens))
        cache = KVCache(decoder.spec.layers, blocks, decoder.spec.kv_heads, decoder.spec.head)
        one = Sequence(
            key=next(keys),
            tokens=tokens,
            prompt=len(tokens),
            sampling=SamplingParams(max_tokens=1),
            seed=0,
            eos=frozenset(),
            salt="",
            priority=0,
            arrival=0,
            submitted=0.0,
            blocks=list(range(1, blocks + 1)),
        )
        return int(torch.argmax(decoder.forward(pack([Work(one, len(tokens))]), cache)[0]))

    def continuation(prompt: list[int], length: int) -> list[int]:
        tokens = list(prompt)
        while len(tokens) < len(prompt) + length:
            key = tuple(tokens)
            if key not in known:
                known[key] = following(tokens)
            tokens.append(known[key])
        return tokens[len(prompt) :]

    return continuation
