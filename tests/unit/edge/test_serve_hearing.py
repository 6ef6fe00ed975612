"""A worker that stands still is noticed by its silence, and nobody else is."""

import asyncio
import fcntl
import os
from collections.abc import Generator

import pytest

from gateway.serve_hearing import Beating, Hearing


@pytest.fixture
def pipe() -> Generator[tuple[int, int], None, None]:
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


def looked_after(hearing: Hearing, begin: float, end: float) -> None:
    """The supervisor's turns, two a second."""
    for turn in range(int((end - begin) * 2) + 1):
        hearing.listen(begin + turn / 2)


def test_silence_is_counted_from_the_last_word(pipe: tuple[int, int]) -> None:
    """A worker that speaks is not silent, one that never served has no silence: it may load for minutes."""
    hearing = Hearing(pipe[0])
    os.write(pipe[1], b"7\n8\n")
    looked_after(hearing, 100.0, 130.0)
    os.write(pipe[1], b"8\n")
    looked_after(hearing, 130.5, 150.5)
    assert (hearing.silent(7, 150.5), hearing.silent(8, 150.5), hearing.silent(9, 150.5)) == (50.5, 20.0, 0.0)
    assert [hearing.serves(pid) for pid in (7, 8, 9, None)] == [True, True, False, False]
    hearing.forget_all_but([8])
    assert [hearing.serves(pid) for pid in (7, 8)] == [False, True]


def test_nobody_was_silent_while_the_supervisor_did_not_look(pipe: tuple[int, int]) -> None:
    """A machine that was suspended, or a supervisor that was stopped, would have killed every worker on waking."""
    hearing = Hearing(pipe[0])
    os.write(pipe[1], b"7\n")
    looked_after(hearing, 100.0, 110.0)
    hearing.listen(1_000.0)
    assert hearing.silent(7, 1_000.0) == 10.0


async def test_a_worker_never_waits_for_a_supervisor_that_does_not_read(pipe: tuple[int, int]) -> None:
    """A full pipe would have stopped the loop of every worker for ever."""
    full = fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, 4_096)
    os.write(pipe[1], b"1\n" * (full // 2))
    async with asyncio.timeout(5):
        Beating(pipe[1])
        await asyncio.sleep(0)
    assert os.read(pipe[0], 1 << 20) == b"1\n" * (full // 2)


async def test_a_beat_is_the_workers_process_id(pipe: tuple[int, int]) -> None:
    """It is how a successor is told from the worker before it."""
    Beating(pipe[1])
    hearing = Hearing(pipe[0])
    hearing.listen(0.0)
    assert hearing.serves(os.getpid())
