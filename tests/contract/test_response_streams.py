"""Events of responses on both databases: written once and in order, followed elsewhere, ended by whoever is there."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
import pytest
from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import OperationalError

from gateway import response_events as stored
from gateway import response_streams
from gateway.call import Principal
from gateway.db import migrate
from gateway.db.models import Boot, KeptResponse, ResponseStream, StoredPiece
from gateway.db.session import Database
from gateway.dialects.responses_items import on_the_wire
from gateway.errors import InvalidRequest, NotFound, Overloaded
from gateway.kept_settings import KeptSettings
from gateway.response_streams import Streams
from gateway.responses import Responses
from gateway.tasks import Tasks
from gateway.ticking import COMMENT
from tests.clock import FrozenClock
from tests.waiting import until

OURS = Principal(key_id="k", team="t", project="p")
NAME = "resp_1"


class Patchy(Database):
    """Loses what it was told: `cut` transactions are taken back, and of `deaf` more the reply is lost."""

    cut = deaf = 0

    async def transact(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.cut:
            self.cut -= 1
            raise OperationalError("cut", None, ConnectionError("cut"))
        result = await super().transact(work, *args, **kwargs)
        if self.deaf:
            self.deaf -= 1
            raise OperationalError("reply lost", None, ConnectionError("reply lost"))
        return result


class Worker:
    """One process on the database: what it keeps, writes and follows."""

    def __init__(self, database: Patchy, boot: str, clock: FrozenClock, most: int = 1 << 30) -> None:
        self.database = database
        settings = KeptSettings(project_responses=most)
        self.responses = Responses(database, boot, settings, now=clock.now)
        self.tasks = Tasks()
        self.streams = Streams(database, self.responses, self.tasks, now=clock.now, most=most)

    async def begin(self, name: str = NAME) -> None:
        """As a request with `background` and `stream` does."""
        told = response(name)
        announced = delta(0, "created")
        assert await self.responses.put(OURS, told, [], background=True, announced=announced)
        self.streams.begin(OURS, name, announced)

    async def finish(self, last: bytes, name: str = NAME) -> None:
        rest = await self.streams.last(name, last)
        await self.responses.finish({**response(name), "status": "completed"}, rest)
        self.streams.leave(name)

    async def hear(self, name: str = NAME, after: int = -1) -> list[dict[str, Any]]:
        """All that is told up to the end."""
        async with asyncio.timeout(60):
            told = b"".join([some async for some in self.streams.follow(OURS, name, after)])
        return [
            msgspec.json.decode(event.partition(b"data: ")[2]) for event in told.split(b"\n\n") if b"data: " in event
        ]


def response(name: str = NAME) -> dict[str, Any]:
    return {"id": name, "status": "in_progress", "background": True, "output": []}


def delta(number: int, text: str = "") -> bytes:
    return on_the_wire(("delta", {"text": text}), number)


def numbers(events: list[dict[str, Any]]) -> list[int]:
    return [event["sequence_number"] for event in events]


@pytest.fixture
async def both(url: str, clock: FrozenClock) -> AsyncGenerator[tuple[Worker, Worker]]:
    """Two workers on one database."""
    databases = [Patchy(url), Patchy(url)]
    for database in databases:
        await database.start()
    async with databases[0].begin() as connection:
        alive = {"host": "h", "journalled": True, "started": 0.0, "seen": 0.0, "closed": None}
        await connection.execute(insert(Boot), [{**alive, "id": "here"}, {**alive, "id": "there"}])
    here, there = (Worker(one, boot, clock) for one, boot in zip(databases, ("here", "there"), strict=True))
    yield here, there
    for worker in (here, there):
        await worker.tasks.finish(5.0)
        await worker.database.close()


async def count(database: Database, table: Any) -> int:
    async with database.read() as connection:
        return len((await connection.execute(select(*table.__table__.primary_key))).all())


async def test_two_workers_tell_the_same(both: tuple[Worker, Worker], clock: FrozenClock) -> None:
    """Numbers are the only thing a client has to go by; and what is over is kept for a while, then gone."""
    here, there = both
    await here.begin()
    hearing = [worker.tasks.spawn(worker.hear(after=after), "follower") for worker in both for after in (-1, 5)]
    for number in range(1, 40):
        await here.streams.add(NAME, delta(number, "x" * 20_000))
        await asyncio.sleep(0.01)
    await here.finish(delta(40))
    whole, part, *others = await asyncio.gather(*hearing)
    assert numbers(whole) == list(range(41))
    assert part == whole[6:]
    assert others == [whole, part]
    assert await there.hear(after=41) == []
    clock.advance(stored.KEPT_SECONDS - 1)
    await there.responses.sweep()
    assert await there.hear() == whole
    await there.streams.check(await there.responses.get(OURS, NAME))
    clock.advance(2)
    with pytest.raises(InvalidRequest, match="can no longer be streamed"):
        await there.streams.check(await there.responses.get(OURS, NAME))
    await there.responses.sweep()
    assert (await count(here.database, ResponseStream), await count(here.database, StoredPiece)) == (0, 0)
    with pytest.raises(InvalidRequest, match="can no longer be streamed"):
        await there.streams.check(await there.responses.get(OURS, NAME))
    assert (await there.responses.get(OURS, NAME)).status == "completed"


async def test_nothing_is_lost_or_told_twice_where_the_database_fails(both: tuple[Worker, Worker]) -> None:
    """A transaction that was taken back is tried again; one whose reply was lost is not written a second time."""
    here, there = both
    await here.begin()
    for number in range(1, 20):
        if number in (3, 9):
            here.database.cut = 2
        if number in (6, 12):
            here.database.deaf = 1
        await here.streams.add(NAME, delta(number))
        await asyncio.sleep(0.05)
    here.database.cut = 0
    here.database.deaf = 1
    rest = await here.streams.last(NAME, delta(20))
    told: dict[str, Any] = {**response(), "status": "completed"}
    for _ in range(2):
        try:
            await here.responses.finish(told, rest)
        except OperationalError:
            continue
    here.streams.leave(NAME)
    assert numbers(await there.hear()) == list(range(21))


@pytest.mark.parametrize("how", ["cancelled", "killed", "by the version before", "deleted", "deleted by it"])
async def test_what_is_over_ends_for_all_who_follow(both: tuple[Worker, Worker], how: str) -> None:
    """Whoever ends it, and whatever that one knows of streams: nobody waits for what never comes, nobody writes on."""
    here, there = both
    await here.begin()
    await here.streams.add(NAME, delta(1))
    hearing = [worker.tasks.spawn(worker.hear(), "follower") for worker in both]
    await until(lambda: bool(here.streams._followed and there.streams._followed))
    await asyncio.sleep(0.3)
    await there_is(here.database, 2)
    mine = KeptResponse.id == NAME
    if how == "cancelled":
        await there.responses.cancel(OURS, NAME)
    elif how == "deleted":
        await there.responses.delete(OURS, NAME)
    else:
        body = msgspec.json.encode({**response(), "status": "cancelled"})
        said = {
            "killed": update(Boot).where(Boot.id == "here").values(closed=1.0),
            "by the version before": update(KeptResponse).where(mine).values(status="cancelled", body=body, boot=None),
            "deleted by it": delete(KeptResponse).where(mine),
        }
        async with there.database.begin() as connection:
            await connection.execute(said[how])
    first, second = await asyncio.gather(*hearing)
    assert first == second
    assert numbers(first) == [0, 1, 2]
    await here.streams.add(NAME, delta(2, "too late"))
    await here.finish(delta(3))
    last = first[-1]
    if how.startswith("deleted"):
        assert (last["type"], last["code"]) == ("error", "response_not_found")
        assert await count(here.database, StoredPiece) == 0
        with pytest.raises(NotFound):
            await here.responses.get(OURS, NAME)
        return
    status = "failed" if how == "killed" else "cancelled"
    assert (last["type"], last["response"]["status"]) == ("response.failed", status)
    assert await here.hear() == first
    assert (await here.responses.get(OURS, NAME)).response == last["response"]


async def there_is(database: Database, events: int) -> None:
    """That many are written."""

    async def written() -> bool:
        async with database.read() as connection:
            return await connection.scalar(select(ResponseStream.events)) == events

    await until(written)


async def test_a_stream_without_end_is_cut_and_still_ends(
    both: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that never stops must not fill the database; the last event tells what was left out."""
    here, there = both
    monkeypatch.setattr(stored, "LARGEST", 100_000)
    await here.begin()
    for number in range(1, 50):
        await here.streams.add(NAME, delta(number, "x" * 10_000))
    await here.finish(delta(50))
    found = numbers(await there.hear())
    assert found == [*range(len(found) - 1), 50]
    assert len(found) == 11
    assert numbers(await there.hear(after=20)) == [50]


@pytest.mark.parametrize(("streams", "size", "most"), [(4, (1 << 20) + 1, 3 << 20), (100, 10_000, 400_000)])
async def test_a_projects_oldest_streams_give_way(
    url: str, clock: FrozenClock, streams: int, size: int, most: int
) -> None:
    """One project's events must not fill the database for all, be they few large streams or many small ones."""
    database = Patchy(url)
    await database.start()
    worker = Worker(database, "here", clock, most)
    async with database.begin() as connection:
        alive = {"host": "h", "journalled": True, "started": 0.0, "seen": 0.0, "closed": None}
        await connection.execute(insert(Boot).values({**alive, "id": "here"}))
    names = [f"resp_{number}" for number in range(streams)]
    for name in names:
        await worker.begin(name)
        await worker.streams.add(name, delta(1, "x" * size))
        await worker.finish(delta(2), name)
        clock.advance(1)
    assert [event["type"] for event in await worker.hear(names[0])] == ["error"]
    assert [len(await worker.hear(name)) for name in names[-2:]] == [3, 3]
    assert (await worker.responses.get(OURS, names[0])).status == "completed"
    assert await count(database, ResponseStream) < streams
    await worker.tasks.finish(5.0)
    await database.close()


async def test_what_waits_and_who_follows_is_bounded(
    both: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the database is away makers wait, so that memory does not grow; too many followers are told to wait too."""
    here, _ = both
    monkeypatch.setattr(response_streams, "_MOST_WAITING", 1_000)
    monkeypatch.setattr(response_streams, "_MOST_FOLLOWERS", 1)
    await here.begin()
    here.database.cut = 1_000
    adding = here.tasks.spawn(here.streams.add(NAME, delta(1, "x" * 2_000)), "maker")
    await asyncio.sleep(0.3)
    assert not adding.done()
    here.database.cut = 0
    await asyncio.wait_for(adding, 30)
    hearing = here.tasks.spawn(here.hear(), "follower")
    await until(lambda: bool(here.streams._followed))
    with pytest.raises(Overloaded):
        await here.streams.check(await here.responses.get(OURS, NAME))
    await here.finish(delta(2))
    await hearing
    await here.streams.check(await here.responses.get(OURS, NAME))


async def test_who_follows_in_vain_is_kept_awake_and_let_go(
    both: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silent connection is cut on its way by others; one that never ends would be held for ever."""
    here, _ = both
    monkeypatch.setattr(response_streams, "EVERY", 0.05)
    monkeypatch.setattr(stored, "LONGEST", 0.5)
    await here.begin()
    async with asyncio.timeout(30):
        told = [some async for some in here.streams.follow(OURS, NAME, -1)]
    assert told[0] == delta(0, "created")
    assert set(told[1:]) == {COMMENT}
    here.streams.drain()
    assert [some async for some in here.streams.follow(OURS, NAME, -1)] == told[:1]


async def test_going_back_loses_the_events_alone(both: tuple[Worker, Worker], url: str) -> None:
    """An operator who takes the version before again finds every response, and nothing left behind."""
    here, _ = both
    await here.begin()
    await here.finish(delta(1))
    await migrate.downgrade(url, "0014")
    async with here.database.begin() as connection:
        assert (await connection.exec_driver_sql("SELECT count(*) FROM stored_piece")).scalar() == 0
        assert (await connection.exec_driver_sql("SELECT status FROM kept_response")).scalar() == "completed"
    await migrate.upgrade(url)
    assert await count(here.database, KeptResponse) == 1
    with pytest.raises(InvalidRequest, match="not created with stream=true"):
        await here.streams.check(await here.responses.get(OURS, NAME))
