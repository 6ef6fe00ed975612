"""Flights: one writer, many readers, nobody forgotten."""

import asyncio

import pytest

from gateway.call import Chunk
from gateway.errors import UpstreamFailed
from gateway.flights import Flight, Flights

KEY = (b"scope", b"exact")


async def _read(flight: Flight) -> list[object]:
    found: list[object] = []
    while chunks := await flight.after(len(found)):
        found += [chunk.data["n"] for chunk in chunks]
    return found


async def test_every_reader_gets_every_chunk_wherever_it_joined() -> None:
    """A follower that joins half way must still get the whole answer, or coalescing would cut replies."""
    flight = Flight(KEY, streamed=True)
    flight.join()
    early = asyncio.get_running_loop().create_task(_read(flight))
    for n in range(3):
        flight.push(Chunk({"n": n}))
        await asyncio.sleep(0)
    flight.join()
    late = asyncio.get_running_loop().create_task(_read(flight))
    await asyncio.sleep(0)
    flight.push(Chunk({"n": 3}))
    flight.end()
    assert await early == await late == [0, 1, 2, 3]


async def test_a_cancelled_reader_does_not_disturb_the_others() -> None:
    """One client's disconnect must never reach another client's answer."""
    flight = Flight(KEY, streamed=True)
    flight.join()
    flight.join()
    leaving = asyncio.get_running_loop().create_task(_read(flight))
    staying = asyncio.get_running_loop().create_task(_read(flight))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    flight.leave()
    flight.push(Chunk({"n": 0}))
    flight.end()
    assert await staying == [0]


async def test_abandoned_is_called_once_and_only_by_the_last_reader() -> None:
    """The pump may give up only when nobody at all waits for the answer."""
    told: list[str] = []
    flight = Flight(KEY, streamed=True)
    flight.abandoned = lambda: told.append("abandoned")
    flight.join()
    flight.join()
    flight.leave()
    assert told == []
    flight.leave()
    assert told == ["abandoned"]


async def test_leaving_a_finished_flight_abandons_nothing() -> None:
    """An answer that is complete has nothing left to give up; telling its owner would cancel a later flight's task."""
    told: list[str] = []
    flight = Flight(KEY, streamed=True)
    flight.abandoned = lambda: told.append("abandoned")
    flight.join()
    flight.push(Chunk({"n": 0}))
    flight.end()
    flight.leave()
    assert told == []


async def test_an_error_before_the_first_chunk_reaches_everyone_who_waits() -> None:
    """A failed upstream must fail all waiters, not leave followers hanging."""
    flight = Flight(KEY, streamed=True)
    waiting = [asyncio.get_running_loop().create_task(flight.begun()) for _ in range(3)]
    await asyncio.sleep(0)
    flight.end(UpstreamFailed("gone"))
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(result, UpstreamFailed)


async def test_an_error_after_chunks_comes_after_them() -> None:
    """What was delivered before a cut is still delivered; the cut is told afterwards, in band."""
    flight = Flight(KEY, streamed=True)
    flight.push(Chunk({"n": 0}))
    flight.end(UpstreamFailed("cut"))
    assert [chunk.data for chunk in await flight.after(0)] == [{"n": 0}]
    with pytest.raises(UpstreamFailed):
        await flight.after(1)


async def test_a_slow_reader_makes_the_upstream_wait() -> None:
    """Without this a client reading ten bytes a second would let memory grow with the whole answer."""
    flight = Flight(KEY, streamed=True)
    flight.join()
    for n in range(300):
        flight.push(Chunk({"n": n}))
    blocked = asyncio.get_running_loop().create_task(flight.room())
    await asyncio.sleep(0)
    assert not blocked.done()
    assert len(await flight.after(0)) == 300
    await asyncio.sleep(0)
    assert not blocked.done()  # taken is not delivered
    assert len(await flight.after(60)) == 240
    await asyncio.wait_for(blocked, 60)


async def test_room_is_free_when_the_last_reader_has_left() -> None:
    """A pump that drains for nobody must not wait for readers that will never come."""
    flight = Flight(KEY, streamed=True)
    flight.join()
    for n in range(300):
        flight.push(Chunk({"n": n}))
    blocked = asyncio.get_running_loop().create_task(flight.room())
    await asyncio.sleep(0)
    flight.leave()
    await asyncio.wait_for(blocked, 60)


async def test_identical_keys_share_until_the_flight_lands() -> None:
    """Coalescing ends with the answer: a later call asks the cache or the upstream, never a finished flight."""
    flights = Flights()
    first, leads = flights.join(KEY, streamed=False)
    second, follows = flights.join(KEY, streamed=True)
    assert (leads, follows) == (True, False)
    assert first is second
    assert first.readers == 2
    first.push(Chunk({}))
    first.end()
    third, leads = flights.join(KEY, streamed=False)
    assert leads
    assert third is not first


async def test_calls_without_a_key_are_never_shared() -> None:
    """No identity or reuse switched off means a call of one's own."""
    flights = Flights()
    first, one = flights.join(None, streamed=False)
    second, two = flights.join(None, streamed=False)
    assert (one, two) == (True, True)
    assert first is not second
    assert len(flights) == 0


async def test_a_landed_flight_does_not_take_its_successor_off_the_list() -> None:
    """An abandoned flight lands twice (given up, then ended); the second time another may already be flying."""
    flights = Flights()
    old, _ = flights.join(KEY, streamed=False)
    old.land()
    new, leads = flights.join(KEY, streamed=False)
    assert leads
    old.end(UpstreamFailed("given up"))
    again, leads = flights.join(KEY, streamed=False)
    assert again is new
    assert not leads


async def test_who_follows_has_read_what_came_before() -> None:
    """The writer waited for a reader that had read everything and waited for the writer: the stream stood still."""
    flight = Flight(KEY, streamed=True)
    flight.join()
    for n in range(300):
        flight.push(Chunk({"n": n}))
    assert flight.full
    writing = asyncio.get_running_loop().create_task(flight.room())
    read = len(await flight.after(0))
    assert (read, flight.full) == (300, True)
    told: list[object] = []
    flight.follow(lambda chunk: told.append(chunk.data["n"]) or True, read)
    async with asyncio.timeout(5):
        await writing
    flight.push(Chunk({"n": 300}))
    assert told == [300]


async def test_one_that_fails_at_the_end_keeps_nobody_from_theirs() -> None:
    """At a flight's end rows are written and leases given back: a lease that stayed would be renewed for ever."""
    flight, called = Flight(None, streamed=True), list[str]()
    flight.at_end(lambda: called.append("first"))
    flight.at_end(lambda: 1 // 0)
    flight.at_end(lambda: called.append("last"))
    with pytest.raises(ZeroDivisionError):
        flight.end()
    assert called == ["first", "last"]
    assert flight.done
