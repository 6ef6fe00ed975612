"""Answers that are given up at the worst moment: whatever was begun is let go of, so its money is settled once."""

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.attempts import Attempts, Live, Trial
from gateway.call import Chunk
from gateway.catalog import Target
from gateway.deployments import Deployments
from gateway.dispatch import Dispatcher
from gateway.flights import Ended, Landing
from gateway.tasks import Tasks
from gateway.unwanted import look_over
from policies.money import Usage

ROLE = Chunk({"choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]})


class Racing(Dispatcher):
    """Answers begin when `begun` is set; what is let go of is noted."""

    def __init__(self, live: Live) -> None:
        self._tasks = Tasks()
        self._monotonic = lambda: 0.0
        self._deployments = Deployments(monotonic=self._monotonic)
        self._live = live
        self.begun = asyncio.Event()
        self.dropped: list[Live] = []

    def _hedge_after(self, trial: Trial) -> float | None:
        return 60.0

    async def _one(self, trial: Trial, landing: Landing) -> Live:
        await self.begun.wait()
        return self._live

    async def drop(self, live: Live, ended: Ended = "cancelled", usage: Usage | None = None) -> None:
        self.dropped.append(live)


def _live(rest: AsyncGenerator[Chunk, None] | None = None) -> Live:
    return cast("Live", SimpleNamespace(first=ROLE, rest=rest, step=SimpleNamespace(why="")))


async def test_a_first_attempt_that_begins_as_its_client_leaves_is_let_go_of() -> None:
    """Its answer would be nobody's: the place at its provider taken, the money held, until the process ends."""
    live = _live()
    dispatcher = Racing(live)
    trial: Any = SimpleNamespace(call=SimpleNamespace(id="1"))
    asked = Tasks().spawn(dispatcher._try(trial, Target("b", "m"), Landing()), "asked")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    dispatcher.begun.set()
    await asyncio.sleep(0)  # the attempt has its answer, and whoever waits for it has not been told yet
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert dispatcher.dropped == [live]


async def test_an_answer_that_is_looked_over_as_its_client_leaves_is_let_go_of() -> None:
    """It has begun and has not said a word: nobody else knows of it yet."""
    looked = asyncio.Event()

    async def silent() -> AsyncGenerator[Chunk, None]:
        looked.set()
        await asyncio.Event().wait()
        yield ROLE

    dropped: list[tuple[Ended, Usage | None]] = []

    async def drop(_: Live, ended: Ended, usage: Usage | None) -> None:
        dropped.append((ended, usage))

    looking = Tasks().spawn(look_over(_live(silent()), ["refusal"], drop), "looking")
    await looked.wait()
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking
    assert dropped == [("cancelled", None)]


def test_an_answer_gives_back_its_place_once() -> None:
    """Who lets go of it may be interrupted and do so again; a provider's gate must not get wider by that."""
    gate = asyncio.Semaphore(1)
    live: Any = SimpleNamespace(gate=gate, hold=SimpleNamespace(ended=True, amount=7))
    assert Attempts.settle(cast("Attempts", None), live, None, "cancelled", Usage(), "") == 7
    assert gate._value == 1
