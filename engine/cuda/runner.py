"""Runs planned steps on a GPU: decode steps as recorded graphs, all others as they come.

Knows: frames, the forward pass, who draws which rows. Does not know: why a step was planned, what comes of its tokens.

Rows that ask for nothing but a temperature are drawn on the device by a kernel, inside the graph; all others by
`engine.sampler`, whose noise the kernel repeats. `launch` returns while the device computes; `Step.finish` waits.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.attention import KVCache
from engine.blocks import BLOCK
from engine.cuda.forward import Forward
from engine.cuda.frame import Cut, Frame, Sizes, sizes_of
from engine.cuda.graphs import Recorder, bucket
from engine.cuda.table import BlockTable
from engine.runner import Reading, Step
from engine.sampler import Pick, Row, sample
from engine.scheduler import Work

SPLIT = 256  # keys of a range in deterministic mode: the same for every batch
SHORT = 128  # keys of a range where there are few rows
_BUSY = 264  # programs that keep 132 multiprocessors at work
_TILE = 128  # rows, times the heads of a group, of a prompt's tile


def cut_for(rows: int, heads: int, kv_heads: int, *, deterministic: bool) -> Cut:
    """How to cut the work of so many single rows. Few rows: many short ranges, so that every multiprocessor has one."""
    prompt = max(1, _TILE // (heads // kv_heads))
    programs = min(64, -(-_BUSY // max(1, rows * kv_heads)))
    if deterministic:
        return Cut(SPLIT, programs, prompt)
    if programs == 1:
        return Cut(prompt=prompt)
    return Cut(SHORT if programs > 8 else SPLIT, programs, prompt)


class _Drawn(NamedTuple):
    """What a step leaves on the device: a token and its log probability per row."""

    tokens: Tensor
    logprobs: Tensor


class _Plain:
    """A step whose tokens were drawn on the device; they are on their way to the host."""

    def __init__(self, drawn: _Drawn, rows: int) -> None:
        self._rows = rows
        on_gpu = drawn.tokens.is_cuda
        self._tokens = torch.empty(len(drawn.tokens), dtype=torch.int32, pin_memory=on_gpu)
        self._tokens.copy_(drawn.tokens, non_blocking=True)
        self._done = torch.cuda.Event() if on_gpu else None
        if self._done is not None:
            self._done.record()

    def finish(self) -> list[Pick]:
        if self._done is not None:
            self._done.synchronize()
        tokens: list[int] = self._tokens[: self._rows].tolist()
        return [Pick(token if token >= 0 else None, None) for token in tokens]


class _Sampled:
    """A step whose tokens the general sampler draws."""

    def __init__(self, logits: Tensor, rows: list[Row]) -> None:
        self._logits, self._rows = logits, rows

    def finish(self) -> list[Pick]:
        return sample(self._logits, self._rows)


class CudaRunner:
    """Obeys engine.runner.Runner. `sequences`: the most of a step."""

    def __init__(
        self, forward: Forward, cache: KVCache, table: BlockTable, recorder: Recorder, *, sequences: int
    ) -> None:
        self.cache = cache
        self.forward = forward
        self.table = table
        self._recorder = recorder
        self._sequences = sequences
        self._recorded: dict[int, tuple[Frame, Callable[[], _Drawn]]] = {}
        self.replayed = 0
        self.eager = 0

    @property
    def device(self) -> torch.device:
        return self.table.blocks.device

    @property
    def blocks(self) -> int:
        """Blocks of the cache that sequences may use."""
        return self.cache.layers[0].shape[1] // BLOCK - 1

    @property
    def parts(self) -> int:
        """A device is not interrupted."""
        return 1

    def read(self, plan: list[Work], rows: list[Row]) -> Reading:
        """Nobody may ask for it: `parts` is one."""
        raise NotImplementedError("a device computes a step whole")

    def prepare(self, sizes: Sequence[int]) -> None:
        """Record decode steps of these sizes now, so that no request waits for it."""
        for size in sizes:
            if size <= self._sequences:
                self._graph(size)

    @torch.inference_mode()
    def launch(self, plan: list[Work], rows: list[Row]) -> Step:
        places = self.table.update(plan)
        plain = all(is_plain(row) for row in rows)
        size = bucket(len(plan), self._sequences) if plain and decodes(plan) else None
        if size is not None and self._fits(plan, size):
            frame, replay = self._graph(size)
            frame.fill(plan, rows, places)
            self.replayed += 1
            return _Plain(replay(), len(rows))
        self.eager += 1
        cut = self.cut(sum(1 for work in plan if work.begin >= work.sequence.prompt))
        frame = Frame(sizes_of(plan, cut), self.device, cut)
        frame.fill(plan, rows, places)
        logits = self.forward(frame.inputs)
        if plain and rows:
            return _Plain(_Drawn(*self.forward.kernels.sample(logits, frame.inputs.noise)), len(rows))
        return _Sampled(logits, rows)

    def cut(self, rows: int) -> Cut:
        """How a step with so many single rows is cut."""
        spec = self.forward.spec
        cut = cut_for(rows, spec.heads, spec.kv_heads, deterministic=self.forward.deterministic)
        return cut._replace(room=self.forward.room)

    def _fits(self, plan: list[Work], size: int) -> bool:
        """Whether the room for partial results that graphs know is enough for contexts this long."""
        cut = self.cut(size)
        return sum(cut.parts(work.end) for work in plan) <= self.forward.room

    def _graph(self, size: int) -> tuple[Frame, Callable[[], _Drawn]]:
        if size not in self._recorded:
            frame = Frame(Sizes(size, size, size), self.device, self.cut(size))
            frame.fill([], [], [])

            def body() -> _Drawn:
                return _Drawn(*self.forward.kernels.sample(self.forward(frame.inputs), frame.inputs.noise))

            self._recorded[size] = (frame, self._recorder(body))
        return self._recorded[size]


def decodes(plan: list[Work]) -> bool:
    """Whether every sequence computes the one token it generated last."""
    return all(work.tokens == 1 and work.wanted == 1 and work.begin >= work.sequence.prompt for work in plan)


def is_plain(row: Row) -> bool:
    """Whether nothing but temperature stands between the logits and the token, and nobody asks for more than it."""
    sampling = row.sampling
    filtered = sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0
    return not filtered and not row.changed and row.score is None and row.wanted is None
