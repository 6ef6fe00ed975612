"""What the kernels become for an H200, compiled ahead of time on a machine without one."""

import os
import subprocess
import sys

import msgspec
import pytest

from engine.kernels.compiled import Facts

_ORDINARY = ("decode, 2 heads a group", "prefill, 128 rows", "vector")


def compiled(*names: str) -> dict[str, Facts]:
    """In a process of its own: here Triton interprets."""
    told = subprocess.run(
        [sys.executable, "-m", "engine.kernels.compiled", *names],
        env=os.environ  # noqa: TID251  (a child whose Triton compiles)
        | {"TRITON_INTERPRET": "0", "TRITON_DEFAULT_FP_FUSION": "1"},
        capture_output=True,
        check=True,
    )
    facts = [msgspec.json.decode(line, type=Facts) for line in told.stdout.splitlines()]
    return {one.name: one for one in facts}


def hold(facts: dict[str, Facts]) -> None:
    """What every kernel must keep: no register in memory, and tensor cores and wide copies where there are such."""
    for name, one in facts.items():
        assert one.spills == 0, one
        assert one.stack == 0, one
        if name.startswith("prefill") or name == "matrix":
            assert one.hgmma > 0, f"{one}: no wgmma"
        if name.startswith("decode"):
            assert one.hmma > 0, one
        if name.startswith(("decode", "prefill", "vector", "matrix", "add and norm", "gate", "rotate")):
            assert one.wide >= 2, f"{one}: copies are narrow"
        if name.startswith("decode") and "pages" not in name:
            assert one.asynchronous >= 16, f"{one}: keys and values are not fetched ahead"


def test_the_kernels_that_decide_speed() -> None:
    """A lost alignment or an array too many is 2 to 10 times slower, and nothing else shows it without a GPU."""
    facts = compiled(*_ORDINARY)
    assert set(facts) == set(_ORDINARY)
    hold(facts)
    assert facts["vector"].wide == facts["vector"].copies


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_every_kernel_and_variant() -> None:
    """All shapes that the engine launches."""
    facts = compiled()
    assert len(facts) >= 20
    hold(facts)
