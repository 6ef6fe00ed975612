"""The event loop held up on purpose: whoever does it is named while it lasts."""

import time

import pytest

from gateway import watchdog
from gateway.watchdog import Stall, Watchdog

PATIENCE = 60.0


def somebody_computes(told: list[Stall], asked: str) -> int:
    """Until it was noticed, however little of the machine this process is given."""
    end = time.monotonic() + PATIENCE
    while not told and time.monotonic() < end:
        pass
    return len(asked)


async def test_who_holds_the_loop_up_is_named() -> None:
    """Without it a slow guard or a large body shows as lag of everybody, and nobody knows whose."""
    told: list[Stall] = []
    watching = Watchdog(told.append)
    watching.start()
    asked = " ".join(["what", "was", "asked"])
    somebody_computes(told, asked)
    watching.stop()
    assert "somebody_computes" in told[0].calls
    assert asked not in told[0].calls
    assert told[0].seconds >= 0.25


async def test_one_stall_is_told_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that is slow all the time must not fill the log's disk."""
    monkeypatch.setattr(watchdog, "_STANDS", 0.3)
    told: list[Stall] = []
    watching = Watchdog(told.append, pause=3_600.0)
    watching.start()
    somebody_computes(told, "")
    time.sleep(0.8)  # noqa: ASYNC251 - a call that waits, and long enough to be told were nothing told yet
    watching.stop()
    assert len(told) == 1
