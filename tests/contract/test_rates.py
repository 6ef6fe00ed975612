"""Limits per minute: counted in memory by one worker, shared in the database by several, and without it in shares."""

import asyncio
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from sqlalchemy.exc import OperationalError

from gateway import rate_leases
from gateway.call import Principal
from gateway.db import rates as stored
from gateway.db.session import Also, Database, nothing
from gateway.errors import RateLimited
from gateway.flights import Flight
from gateway.rate_leases import Keeper
from gateway.rates import Rates
from gateway.tasks import Tasks
from policies.money import Usage
from policies.rate import Rate
from tests.clock import FrozenClock
from tests.empty_database import fresh_postgres
from tests.unit.ledger.rig import call
from tests.waiting import until


@pytest.fixture
async def database(url: str) -> AsyncGenerator[Database, None]:
    opened = Database(url)
    await opened.start()
    yield opened
    await opened.close()


class _Broken(Database):
    """A database that can be taken away."""

    away = False

    async def transact(self, work: Any, *args: Any, **kwargs: Any) -> Any:
        if self.away:
            raise OperationalError("SELECT", {}, OSError("gone"))
        return await super().transact(work, *args, **kwargs)


@pytest.fixture
async def timed(tmp_path: Path) -> AsyncGenerator[_Broken, None]:
    """One whose time is the test's clock: PostgreSQL has a clock of its own."""
    opened = _Broken(f"sqlite:///{tmp_path / 'timed.db'}")
    await opened.start()
    yield opened
    await opened.close()


async def alone(database: Database, clock: FrozenClock, *limits: Rate) -> Rates:
    """The only worker."""
    made = Rates(database, names=lambda model: (model,), now=clock.now, monotonic=clock.monotonic)
    await made.start(limits)
    return made


async def workers(database: Database, clock: FrozenClock, count: int, *limits: Rate) -> list[Rates]:
    """Several that share their limits in the database."""
    found: list[Rates] = []
    for _ in range(count):
        keeper = Keeper(database, now=clock.now, monotonic=clock.monotonic, processes=lambda: count, tasks=Tasks())
        one = Rates(database, names=lambda model: (model,), now=clock.now, monotonic=clock.monotonic, keeper=keeper)
        await one.start(limits)
        found.append(one)
    return found


async def admitted(rates: Rates, many: int, **asked: Any) -> int:
    """How many of so many requests get through."""
    results = await asyncio.gather(*(rates.enter(call(**asked)) for _ in range(many)), return_exceptions=True)
    assert all(result is None or isinstance(result, RateLimited) for result in results)
    return sum(result is None for result in results)


@pytest.mark.parametrize(
    "scope", ["org", "team:acme", "project:acme/app", "key:key1", "user:ann", "model:smart", "tag:app=shop"]
)
async def test_every_scope_limits_what_falls_under_it(timed: Database, clock: FrozenClock, scope: str) -> None:
    """The seven kinds of scope are the promise of the API; what does not fall under one must not feel it."""
    rates = await alone(timed, clock, Rate(scope=scope, rpm=3))
    assert await admitted(rates, 5, user="ann", app="shop") == 3
    other = Principal(key_id="key2", team="zeta", project="x")
    assert await admitted(rates, 5, who=other, model="other") == (0 if scope == "org" else 5)
    clock.advance(20)
    assert await admitted(rates, 5, user="ann", app="shop") == 1


async def test_a_refusal_counts_nothing_anywhere_and_says_when(timed: Database, clock: FrozenClock) -> None:
    """A client that hammers at one limit must not use up another; the wait it is told must be true."""
    rates = await alone(timed, clock, Rate(scope="org", rpm=100), Rate(scope="team:acme", rpm=6))
    assert await admitted(rates, 50) == 6
    with pytest.raises(RateLimited) as refused:
        await rates.enter(call())
    assert "team:acme" in refused.value.message
    headers = dict(refused.value.headers)
    assert headers == {"retry-after": "10", "retry-after-ms": "10000"}
    told = dict(rates.told(call()))
    assert told["x-ratelimit-limit-requests"] == "6"
    assert told["x-ratelimit-remaining-requests"] == "0"
    assert told["x-ratelimit-reset-requests"] == "1m0s"
    other = call(Principal(key_id="key2", team="zeta", project="x"))
    assert dict(rates.told(other))["x-ratelimit-remaining-requests"] == "94"
    clock.advance(10)
    await rates.enter(call())


async def test_tokens_are_corrected_by_what_was_used(timed: Database, clock: FrozenClock) -> None:
    """A guess may hold a request back for a moment; in the end real tokens count, for the leader alone."""
    rates = await alone(timed, clock, Rate(scope="org", tpm=1_000))
    asked = structs.replace(call(), size=400, body={"model": "smart", "max_tokens": 500})
    expected = await rates.expect(asked)
    assert expected is not None
    assert dict(rates.told(asked))["x-ratelimit-remaining-tokens"] == "400"
    with pytest.raises(RateLimited) as refused:
        await rates.expect(asked)
    assert refused.value.detail()["type"] == "tokens"
    flight = Flight(None, streamed=False)
    rates.follow(expected, flight, leads=True)
    flight.landing.usage = Usage(prompt=20, completion=30)
    flight.end()
    assert dict(rates.told(asked))["x-ratelimit-remaining-tokens"] == "950"
    follower = await rates.expect(asked)
    assert follower is not None
    rates.follow(follower, flight, leads=False)
    assert dict(rates.told(asked))["x-ratelimit-remaining-tokens"] == "950"


async def test_limits_are_changed_live_and_taken_away(database: Database, clock: FrozenClock) -> None:
    """An edit counts from the next request on; what was used stays used."""
    rates = await alone(database, clock, Rate(scope="org", rpm=10))
    assert await admitted(rates, 4) == 4
    await rates.set(Rate(scope="org", rpm=6), "ann")
    assert await admitted(rates, 10) == 2
    await rates.set(Rate(scope="org"), "ann")
    assert not rates
    assert rates.told(call()) == ()
    with pytest.raises(ValueError, match="rpm"):
        await rates.set(Rate(scope="org", rpm=-1), "ann")


async def test_workers_that_start_together_set_the_limits_of_their_file_once(
    database: Database, clock: FrozenClock
) -> None:
    """On PostgreSQL the second to insert the row ended with an error, and its worker with it."""
    set_by: list[Rate | None] = []

    def said(before: Rate | None, _: Rate) -> Also:
        set_by.append(before)
        return nothing

    made = [Rates(database, names=lambda model: (model,), now=clock.now, monotonic=clock.monotonic) for _ in range(4)]
    for rpm in (5, 7):
        await asyncio.gather(*(one.start([Rate(scope="org", rpm=rpm)], said) for one in made))
        assert {one.rpm for one in await stored.load(database)} == {rpm}
    assert [None if before is None else before.rpm for before in set_by] == [None, 5]
    assert await stored.stamp(database) == (1, 2)


async def test_another_worker_learns_of_a_change(database: Database, clock: FrozenClock) -> None:
    """The API is served by one worker, the limit must hold in all."""
    one, two = await workers(database, clock, 2)
    await one.set(Rate(scope="org", rpm=1), "ann")
    assert not two
    await two.refresh()
    assert await admitted(one, 3) + await admitted(two, 3) == 1


async def test_workers_share_one_limit_exactly(database: Database, clock: FrozenClock) -> None:
    """A small limit must be usable to its end by whichever worker is asked, and by none beyond."""
    found = await workers(database, clock, 4, Rate(scope="key:key1", rpm=10))
    counts = await asyncio.gather(*(admitted(found[i % 4], 8) for i in range(8)))
    assert sum(counts) == 10


async def test_time_that_others_were_waited_for_fills_a_limit_once(postgres_url: str) -> None:
    """Whoever waited for a bucket dated it by when the wait began, and the next one filled those seconds once more."""
    database = Database(await fresh_postgres(postgres_url))
    await database.start()
    ask = stored.Ask("org|requests", 60.0, 0.0, 1.0, 1.0)
    await stored.draw(database, [ask], time.time(), 2)
    async with database.begin() as holder:
        await holder.exec_driver_sql("SELECT 1 FROM rate_bucket FOR UPDATE")
        waiting = Tasks().spawn(stored.draw(database, [ask], time.time(), 2), "waits")
        await until(lambda: _waits(database))
        written = "UPDATE rate_bucket SET at = extract(epoch FROM clock_timestamp()) RETURNING at"
        at = (await holder.exec_driver_sql(written)).scalar_one()
    await waiting
    async with database.read() as connection:
        assert (await connection.exec_driver_sql("SELECT at FROM rate_bucket")).scalar_one() >= at
    await database.close()


async def _waits(database: Database) -> bool:
    """Whether anybody waits for a lock."""
    async with database.read() as connection:
        found = await connection.exec_driver_sql("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return found.scalar_one() > 0


async def test_what_one_worker_does_not_use_goes_back(database: Database, clock: FrozenClock) -> None:
    """A portion that lies idle must not be lost for the others."""
    idle, busy = await workers(database, clock, 2, Rate(scope="org", rpm=6_000))
    await idle.enter(call())
    (meter,) = [limits.requests for limits in idle._standing.values()]
    assert isinstance(meter, rate_leases.Purse)
    assert meter.hand > 50
    clock.advance(1.5)
    await idle.tend()
    assert meter.hand == 0
    assert await admitted(busy, 200) == 200


async def test_a_debt_is_paid_to_the_shared_bucket(timed: Database, clock: FrozenClock) -> None:
    """An answer that used far more tokens than guessed must slow down every worker."""
    one, two = await workers(timed, clock, 2, Rate(scope="org", tpm=1_000))
    asked = structs.replace(call(), size=40, body={"model": "smart", "max_tokens": 10})
    expected = await one.expect(asked)
    assert expected is not None
    one._settle(expected, 1_500)
    await one.tend()
    with pytest.raises(RateLimited):
        await two.expect(asked)
    clock.advance(35)
    assert await two.expect(asked) is not None


async def test_without_the_database_each_worker_keeps_to_its_share(timed: _Broken, clock: FrozenClock) -> None:
    """An outage must neither open the limit nor close the service; afterwards all is as before."""
    found = await workers(timed, clock, 4, Rate(scope="org", rpm=40))
    assert await admitted(found[0], 4) == 4
    timed.away = True
    counts = [await admitted(one, 40) for one in found]
    assert all(count > 0 for count in counts)
    assert sum(counts) <= 40
    clock.advance(60)
    assert [await admitted(one, 40) for one in found] == [10] * 4
    timed.away = False
    clock.advance(60)
    for one in found:
        await one.tend()
    assert sum([await admitted(one, 40) for one in found]) == 40
