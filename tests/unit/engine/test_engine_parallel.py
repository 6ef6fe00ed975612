"""One model in two processes: the same tokens, and a clear refusal where it cannot be divided."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch

from engine.api import EngineFailed
from engine.client import EngineClient
from engine.core import EngineCore
from engine.frames import Submit
from engine.launch import launch
from engine.locate import locate
from engine.models import loader
from engine.models.linear import DenseFactory
from engine.options import Options
from engine.parallel import CannotDivide, Leader, Rank, Sharded, _Summed
from engine.quant.factory import QuantFactory
from engine.quant.linears import Quantized
from engine.resident import Resident
from engine.testing import fork_process, until, until_ready

MODEL = "tiny-random:qwen3"
PROMPTS = [[5 + at * step % 90 for at in range(70)] for step in (3, 7, 11)]


def answers(core: EngineCore, submit: Callable[..., Submit]) -> dict[object, list[int]]:
    for at, prompt in enumerate(PROMPTS):
        core.submit(at, submit(prompt, max_tokens=12))
    found: dict[object, list[int]] = {at: [] for at in range(len(PROMPTS))}
    while core.busy:
        for one in core.step():
            found[one.key] += one.output.tokens
    return found


def test_two_ranks_answer_as_one(submit: Callable[..., Submit]) -> None:
    """Shares that are cut at the wrong place give fluent nonsense: only the same tokens prove them right."""
    options = Options(threads=1, memory=2**20, sequences=4)
    alone = launch(MODEL, options, monotonic=time.monotonic)
    both = launch(MODEL, Options(threads=1, memory=2**20, sequences=4, tensor_parallel=2), monotonic=time.monotonic)
    leader = cast("Leader", both.decoder)
    assert leader.spec.heads == alone.decoder.spec.heads // 2
    try:
        assert answers(both, submit) == answers(alone, submit)
    finally:
        leader.close()
    assert [one.returncode for one in leader._followers] == [0]


def test_a_model_of_two_processes_sleeps_whole_and_notices_a_loss(submit: Callable[..., Submit]) -> None:
    """Asleep, both kept the last cache; that a follower had ended was noticed by a request, which it cost."""
    resident = Resident(
        MODEL, Options(threads=1, memory=2**20, sequences=4, tensor_parallel=2), monotonic=time.monotonic
    )
    core = resident.wake()
    leader = cast("Leader", core.decoder)
    said = answers(core, submit)
    del core
    assert resident.rest(1)
    assert leader._cache is None
    assert answers(resident.wake(), submit) == said
    resident.check()
    leader._followers[0].kill()
    leader._followers[0].wait()
    with pytest.raises(EngineFailed, match="status -9"):
        resident.check()
    with pytest.raises(EngineFailed, match="status -9"):
        resident.rest(1)
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(sys.platform != "linux", reason="only there a parent's end is told")
async def test_a_rank_that_hangs_ends_with_the_first(tmp_path: Path) -> None:
    """Stopped, or in a sum that never ends, it heard of no closed connection and kept its share of the memory, which
    the engine that was started again had to do without.
    """
    first = fork_process(MODEL, tmp_path / "e.sock", "--tensor-parallel", "2", "--memory-mib", "1")
    client = EngineClient(MODEL, tmp_path / "e.sock")
    await client.start()
    await until_ready(client)
    follower = _child_of(first.pid)
    os.kill(follower, signal.SIGSTOP)
    first.kill()
    await until(lambda: _state(follower) in ("", "Z"), "its end")  # who adopted it may not have looked yet
    await client.stop()


def _child_of(pid: int) -> int:
    """The only one."""
    [child] = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return child


def _state(pid: int) -> str:
    """As the kernel tells it; empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_ranks_hold_different_shares_of_equal_size() -> None:
    """Two ranks with the same half would add up to something that still looks like text."""
    shares = [
        loader.load(locate(MODEL), wrap=lambda inner, rank=rank: Sharded(inner, Rank(rank, 2))) for rank in (0, 1)
    ]
    every = torch.eye(shares[0].spec.hidden)  # times a matrix: the matrix, however it is kept
    for one, two in zip(shares[0].layers, shares[1].layers, strict=True):
        for name in ("qkv", "gate_up"):
            first, second = (getattr(layer, name)(every) for layer in (one, two))
            assert first.shape == second.shape
            assert not torch.equal(first, second)


@pytest.mark.parametrize("width", [64, 192, 256])
@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
def test_shares_are_rounded_as_the_whole_is(kind: str, width: int) -> None:
    """Each share had scales of its own: two processes held another model than one, and told other tokens."""
    weight = torch.randn(32, width, generator=torch.Generator().manual_seed(0))
    factory = QuantFactory(kind, DenseFactory(torch.bfloat16, torch.device("cpu")))

    def widened(made: object) -> torch.Tensor:
        return cast("Quantized", made).widened()

    factory._judged = lambda name, linear: linear  # as they were rounded: kernels are not of interest here
    shares = [cast("_Summed", Sharded(factory, Rank(rank, 2)).row("down", weight, None))._inner for rank in (0, 1)]
    assert torch.equal(torch.cat([widened(one) for one in shares], 1), widened(factory.row("down", weight, None)))


def test_what_cannot_be_divided_is_refused_before_anything_starts() -> None:
    """Two key heads among three processes: better a sentence than a crash in the first step."""
    with pytest.raises(CannotDivide, match="among 3 processes"):
        launch(MODEL, Options(threads=1, tensor_parallel=3), monotonic=time.monotonic)
