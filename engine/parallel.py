"""One model across several processes: each holds a share of every matrix, and they add up what they get.

Knows: which rows and columns a rank keeps, when ranks must agree. Does not know: models beyond their linears, requests:
rank 0 runs the scheduler and everything else; the others repeat its forward passes.

Columns of attention and feed-forward are divided by heads and channels, rows of the matrices after them likewise; one
sum over ranks follows each (Megatron-LM, arXiv 1909.08053). Embedding, head and norms are whole everywhere, so rank 0
has the logits at once. The backend is torch.distributed's: gloo between processors, NCCL between GPUs.
"""

import argparse
import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import msgspec
import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor, distributed

from engine.api import EngineError, EngineFailed
from engine.attention import Batch, Cache, KVCache, Span, Tile
from engine.blocks import BLOCK
from engine.locate import locate
from engine.models import loader
from engine.models.decoder import Decoder
from engine.models.linear import ALL, Linear, LinearFactory, Table
from engine.models.spec import Spec, read_spec
from engine.options import Options

_PR_SET_PDEATHSIG = 1
_JOIN = timedelta(minutes=5)
_IDLE = timedelta(days=365)  # followers wait for work as long as there is none


class CannotDivide(EngineError):
    """The model's heads or channels are no multiple of the number of processes. The message names them."""


class Rank(Struct, frozen=True):
    """This process among `world`."""

    rank: int
    world: int


class _Summed:
    """A share of a matrix whose products are added over all ranks."""

    def __init__(self, inner: Linear) -> None:
        self._inner = inner
        self.multiple = inner.multiple

    def __call__(self, x: Tensor) -> Tensor:
        y = self._inner(x).contiguous()
        distributed.all_reduce(y)
        return y

    @property
    def bytes(self) -> int:
        return self._inner.bytes


class Sharded:
    """Obeys engine.models.linear.LinearFactory: hands this rank's share to `inner`, which may be a quantizing one."""

    def __init__(self, inner: LinearFactory, me: Rank) -> None:
        self._inner = inner
        self._me = me

    def local(self, spec: Spec) -> Spec:
        """Raises CannotDivide."""
        world = self._me.world
        divisible(spec, world)
        return replace(
            self._inner.local(spec),
            heads=spec.heads // world,
            kv_heads=spec.kv_heads // world,
            feed_forward=spec.feed_forward // world,
        )

    def column(self, name: str, parts: list[Tensor], biases: list[Tensor] | None) -> Linear:
        own = [self._share(part) for part in parts]
        return self._inner.column(name, own, None if biases is None else [self._share(bias) for bias in biases])

    def row(self, name: str, weight: Tensor, bias: Tensor | None, own: slice = ALL) -> Linear:
        """The bias is added once: by rank 0."""
        assert own == ALL, "divided here, and only here"
        width = weight.shape[1] // self._me.world
        own = slice(self._me.rank * width, (self._me.rank + 1) * width)
        return _Summed(self._inner.row(name, weight, bias if self._me.rank == 0 else None, own))

    def table(self, name: str, weight: Tensor) -> Table:
        return self._inner.table(name, weight)

    def _share(self, whole: Tensor) -> Tensor:
        return whole.chunk(self._me.world)[self._me.rank].contiguous()


def divisible(spec: Spec, world: int) -> None:
    """Raises CannotDivide."""
    for name, count in (("heads", spec.heads), ("kv_heads", spec.kv_heads), ("feed_forward", spec.feed_forward)):
        if count % world:
            raise CannotDivide(f"{count} {name} cannot be divided among {world} processes.")


class _Cache(Struct, tag="cache"):
    """Make an empty cache of so many blocks, in place of the last one."""

    blocks: int
    dtype: str


class _Pass(Struct, tag="pass"):
    """One forward pass. `spans`: for each sequence its blocks and its tiles."""

    ids: list[int]
    positions: list[int]
    slots: list[int]
    rows: list[int]
    spans: list[tuple[list[int], list[Tile]]]
    length: int


class _End(Struct, tag="end"):
    """There will be no more work."""


_Word = _Cache | _Pass | _End
_decode = msgspec.msgpack.Decoder(_Word)


class Leader(Decoder):
    """Rank 0's decoder as the engine uses it: every forward pass is first told to the followers."""

    def __init__(self, own: Decoder, followers: list[subprocess.Popen[bytes]]) -> None:
        super().__init__(own.spec, own.embed, own.layers, own.norm, own.head)
        self.dtype, self.notes = own.dtype, own.notes
        self._followers = followers
        self._cache: KVCache | None = None

    @property
    def parts(self) -> int:
        """Followers repeat whole passes."""
        return 1

    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        """Logits, as of the whole model. Raises EngineFailed when a follower is gone: the whole engine is then."""
        assert isinstance(cache, KVCache)
        with self._together():
            if cache is not self._cache:
                _tell(_Cache(cache.layers[0].shape[1] // BLOCK - 1, cache.dtype))
                self._cache = cache
            _tell(_pass_of(batch))
            return super().forward(batch, cache)

    def forget(self) -> None:
        """Nobody will use the last cache again: its memory is given up everywhere. Raises EngineFailed as above."""
        if self._cache is not None:
            with self._together():
                _tell(_Cache(0, self._cache.dtype))
            self._cache = None

    def check(self) -> None:
        """Raises EngineFailed when a follower is gone, so that it is noticed before the next request."""
        ended = [one.returncode for one in self._followers if one.poll() is not None]
        if ended:
            raise EngineFailed(f"A process of this model ended with status {ended[0]}.")

    @contextmanager
    def _together(self) -> Generator[None, None, None]:
        """Around what all ranks do: where that fails because one of them is gone, it is said so."""
        try:
            yield
        except RuntimeError:
            self.check()
            raise

    def close(self) -> None:
        """Let the followers end."""
        _tell(_End())
        for one in self._followers:
            one.wait()
        distributed.destroy_process_group()


def lead(model: str, options: Options) -> Decoder:
    """Start `options.tensor_parallel - 1` followers, load this process's share. Raises EngineError."""
    world = options.tensor_parallel
    divisible(read_spec(loader.read_config(locate(model))), world)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = ["--model", model, "--world", str(world), "--port", str(port), "--dtype", options.dtype]
    line += ["--quant", options.quant, "--context", str(options.context or 0), "--threads", str(options.threads or 1)]
    line += ["--parent", str(os.getpid())]
    python = [sys.executable, "-P"] if sys.flags.safe_path else [sys.executable]  # our packages, as we were told
    followers = [
        subprocess.Popen([*python, "-m", "engine.parallel", "--rank", str(rank), *line])  # noqa: S603  (ours)
        for rank in range(1, world)
    ]
    try:
        return Leader(_share(model, options, _join(Rank(0, world), port)), followers)
    except BaseException:
        for one in followers:
            one.kill()
            one.wait()
        raise


def _join(me: Rank, port: int) -> Rank:
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(me.rank)
    address = f"tcp://127.0.0.1:{port}"
    distributed.init_process_group(backend, init_method=address, rank=me.rank, world_size=me.world, timeout=_JOIN)
    _control.append(distributed.new_group(backend="gloo", timeout=_IDLE))
    return me


_control: list[Any] = []  # the group that words travel in: between processors also where sums travel between GPUs


def _share(model: str, options: Options, me: Rank) -> Decoder:
    device = f"cuda:{me.rank}" if torch.cuda.is_available() else "cpu"
    return loader.load(
        locate(model),
        options.dtype,
        options.context,
        options.quant,
        device=device,
        wrap=lambda inner: Sharded(inner, me),
    )


def _tell(word: _Word) -> None:
    """To every follower, without pickle: how long, then what."""
    data = torch.frombuffer(bytearray(msgspec.msgpack.encode(word)), dtype=torch.uint8)
    distributed.broadcast(torch.tensor([data.numel()]), 0, group=_control[-1])
    distributed.broadcast(data, 0, group=_control[-1])


def _told() -> _Word:
    size = torch.zeros(1, dtype=torch.int64)
    distributed.broadcast(size, 0, group=_control[-1])
    data = torch.empty(int(size), dtype=torch.uint8)
    distributed.broadcast(data, 0, group=_control[-1])
    return _decode.decode(bytes(data.tolist()))


def _pass_of(batch: Batch) -> _Pass:
    columns = (batch.ids, batch.positions, batch.slots, batch.rows)
    ids, positions, slots, rows = (column.tolist() for column in columns)
    spans = [(span.blocks, span.tiles) for span in batch.spans]
    return _Pass(ids, positions, slots, rows, spans, batch.length)


def _batch_of(word: _Pass, device: torch.device) -> Batch:
    spans = [Span(blocks, tiles) for blocks, tiles in word.spans]
    columns = (word.ids, word.positions, word.slots, word.rows)
    ids, positions, slots, rows = (torch.tensor(column, dtype=torch.int64, device=device) for column in columns)
    return Batch(ids, positions, slots, rows, spans, word.length)


def follow(decoder: Decoder, device: torch.device) -> None:
    """Repeat rank 0's passes until it says that there are no more; raises RuntimeError when it went away."""
    spec = decoder.spec
    cache: KVCache | None = None
    while not isinstance(word := _told(), _End):
        if isinstance(word, _Cache):
            cache = KVCache(spec.layers, word.blocks, spec.kv_heads, spec.head, word.dtype, str(device))
        else:
            assert cache is not None
            decoder.forward(_batch_of(word, device), cache)


def _end_with(parent: int) -> None:
    """Be killed when rank 0 ends, on Linux. One that hangs in a sum hears of no closed connection, and would keep its
    share of the memory that the next rank 0 needs.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before this was asked for
        sys.exit(1)


def main(argv: list[str] | None = None) -> int:
    """A follower; `lead` starts it."""
    parser = argparse.ArgumentParser(prog="python -m engine.parallel")
    parser.add_argument("--model", required=True)
    for name in ("rank", "world", "port", "context", "threads", "parent"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--quant", required=True)
    given = parser.parse_args(argv)
    _end_with(given.parent)
    torch.set_num_threads(given.threads)
    options = Options(dtype=given.dtype, quant=given.quant, context=given.context or None)
    decoder = _share(given.model, options, _join(Rank(given.rank, given.world), given.port))
    try:
        follow(decoder, torch.device(f"cuda:{given.rank}" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:  # rank 0 went away: so does this one
        sys.stderr.write(f"rank {given.rank} ends: {error}\n")
        return 1
    distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
