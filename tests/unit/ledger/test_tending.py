"""What keeps a process alive in the eyes of the others."""

import asyncio
from typing import cast

import pytest
from sqlalchemy.exc import OperationalError

from gateway.errors import Overloaded
from gateway.ledger.book import Book
from gateway.ledger.leases import Leases
from gateway.ledger.recovery import Recovery
from gateway.ledger.tending import Pulse, Tender
from gateway.tasks import Tasks
from tests.clock import FrozenClock


class SlowBook:
    """A database that takes a moment, counts, and can be away."""

    def __init__(self) -> None:
        self.beats = 0
        self.away = False

    async def beat(self, boot: str, now: float, oldest: float | None = None) -> tuple[float, int]:
        self.beats += 1
        await asyncio.sleep(0)
        if self.away:
            raise OperationalError("UPDATE boot", {}, Exception("away"))
        return now, 1


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
def book() -> SlowBook:
    return SlowBook()


@pytest.fixture
def pulse(book: SlowBook, clock: FrozenClock) -> Pulse:
    known = cast("Book", book)
    return Pulse(known, "boot", lambda: None, now=clock.now, monotonic=clock.monotonic, tasks=Tasks())


async def test_after_a_silence_all_requests_wait_for_one_life_sign(
    pulse: Pulse, book: SlowBook, clock: FrozenClock
) -> None:
    """Each would wait for the same row, and the last of many longer than the database lets anybody wait."""
    await asyncio.gather(*(pulse.require() for _ in range(50)))
    assert book.beats == 1
    assert pulse.is_fresh
    clock.advance(3_600)
    assert not pulse.is_fresh
    await asyncio.gather(*(pulse.require() for _ in range(50)))
    assert book.beats == 2


async def test_one_who_gives_up_takes_nobody_along(pulse: Pulse, book: SlowBook) -> None:
    """A client that leaves must not cost the others their answer."""
    tasks = Tasks()
    first = tasks.spawn(pulse.require(), "first")
    await asyncio.sleep(0)
    second = tasks.spawn(pulse.require(), "second")
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert book.beats == 1


async def test_a_database_that_is_away_refuses_all_and_is_asked_again(pulse: Pulse, book: SlowBook) -> None:
    """One refused life sign is told to everybody who waited for it, and the next request tries anew."""
    book.away = True
    found = await asyncio.gather(*(pulse.require() for _ in range(5)), return_exceptions=True)
    assert [type(error) for error in found] == [Overloaded] * 5
    assert book.beats == 1
    book.away = False
    await pulse.require()
    assert book.beats == 2


async def test_a_clock_that_is_not_the_databases_is_told_of(
    pulse: Pulse, clock: FrozenClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """A host that was ten minutes ahead set prices that others refused for ten minutes, and nothing said why."""
    pulse._book = cast("Book", Elsewhere(clock.now() - 600))
    await pulse.beat()
    await pulse.beat()
    told = capsys.readouterr().out
    assert told.count("not the database's") == 1
    assert "seconds_ahead=600" in told
    pulse._book = cast("Book", Elsewhere(clock.now() + 2))  # the way there and back
    await pulse.beat()
    assert "the database's again" in capsys.readouterr().out


class Elsewhere:
    """A database by whose clock it is `now`."""

    def __init__(self, now: float) -> None:
        self._now = now

    async def beat(self, *_: object) -> tuple[float, int]:
        return self._now, 1


async def test_an_outage_is_told_once_a_minute_and_not_with_every_try(
    pulse: Pulse, book: SlowBook, clock: FrozenClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each worker wrote ten lines a second for as long as the database was away, and one more with each refusal."""
    away = Away()
    known = cast("Leases", away), cast("Recovery", away)
    tender = Tender(pulse, *known, away.refresh, monotonic=clock.monotonic)
    book.away = True
    for _ in range(400):  # 100 s
        clock.advance(0.25)
        await tender.turn()
        with pytest.raises(Overloaded):
            await pulse.require()
    told = capsys.readouterr().out
    duties = ("duty=tend", "duty=_beat", "duty=refresh", "duty=recover", "no life sign could be given")
    assert [told.count(duty) for duty in duties] == [2, 2, 2, 2, 2]
    book.away = away.away = False
    for _ in range(40):
        clock.advance(0.25)
        await tender.turn()
    book.away = away.away = True
    clock.advance(0.25)
    await tender.turn()
    assert "duty=tend" in capsys.readouterr().out  # another outage is told at once


class Away:
    """Duties that fail as long as the database is away."""

    away = True

    async def tend(self) -> None:
        if self.away:
            raise OperationalError("SELECT", {}, Exception("away"))

    async def refresh(self) -> None:
        await self.tend()

    async def recover(self) -> None:
        await self.tend()
