"""What the device runs launch, compiled for sm_90 and checked against its limits without one."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

pytest.importorskip("triton")

_PROGRAM = """
import sys, msgspec
from engine.device_bench import ahead

def compile_all():
    told = msgspec.json.encode([ahead.compile_task(name) for name in sys.argv[1:]])
    sys.stdout.buffer.write(told + b"\\n")
    sys.stdout.flush()
"""
_ONCE = _PROGRAM + "compile_all()\n"
# Forked before anything is compiled: what the first one has in memory is no help to the second.
_TWICE = """
import os
cache = os.environ["TRITON_CACHE_DIR"]
first = os.fork()
if not first:
    compile_all()
    os._exit(0)
assert os.waitpid(first, 0)[1] == 0
print(len(os.listdir(cache)), flush=True)
compile_all()
"""
_REFUSED = """
import torch
from engine.kernels import ahead, fast, Weights
with ahead.no_device():
    weights = Weights(torch.empty(64 * 70_000, 64, device="meta", dtype=torch.bfloat16))
    try:
        fast.matrix(torch.empty(3, 64, device="meta", dtype=torch.bfloat16), weights)
    except ahead.GridTooWide:
        print("too wide")
"""


def _run(program: str, cache: Path, *names: str) -> bytes:
    """In a process of its own: here Triton interprets."""
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache)}  # noqa: TID251  (of a child)
    return subprocess.run(
        [sys.executable, "-c", program, *names], env=environment, capture_output=True, check=True
    ).stdout


class Runs(NamedTuple):
    """What two processes said, one after the other, over one cache, and how many entries the first left in it."""

    first: Any
    entries: int
    second: Any
    refused: bytes


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A process that loads torch and Triton takes seconds before it compiles anything: they are loaded once."""
    cache = tmp_path_factory.mktemp("cache")
    told = _run(_PROGRAM + _TWICE + _REFUSED, cache, "Qwen3-0.6B").splitlines()
    (first,), entries, (second,) = map(msgspec.json.decode, told[:3])
    return Runs(first, entries, second, told[3])


def test_a_step_of_a_real_model_is_compiled_without_a_device(runs: Runs) -> None:
    """A kernel that asks for more than a device has fails on its first launch there, and nowhere else."""
    assert runs.first["fault"] is None
    assert runs.first["kernels"] >= 10
    assert runs.first["fresh"] == runs.entries
    assert 0 < runs.first["shared"] <= 232_448
    assert runs.second["fault"] is None
    assert runs.second["fresh"] == 0, "what was compiled is found again: it can be carried"


def test_a_grid_that_no_device_takes_is_refused(runs: Runs) -> None:
    """65,535 programs in the second and third direction: a launch with more is an error that no interpreter knows."""
    assert runs.refused == b"too wide"


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_every_part_of_the_runs_is_compiled(tmp_path: Path) -> None:
    """Three models, pages of three types, weights of three, with and without the deterministic mode."""
    names = _run("import sys\nfrom engine.device_bench import ahead\nprint('\\n'.join(ahead._tasks()))", tmp_path)
    parts = names.decode().splitlines()
    told = msgspec.json.decode(_run(_ONCE, tmp_path, *parts))
    assert [one["fault"] for one in told] == [None] * len(parts)
    assert max(one["shared"] for one in told) <= 232_448
