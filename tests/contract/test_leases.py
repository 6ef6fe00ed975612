"""Who makes an answer, agreed upon in a real Redis: one holder at a time, whatever becomes of holders and of Redis."""

import asyncio
import itertools
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import pytest
from redis.asyncio import Redis

from cache.leases import Leases, Turn
from cache.redis_lease import LIFE, RedisLeases
from cache.redis_link import Link
from cache.store import Claimed, Selection, StoreDown
from cache.store.memory import MemoryStore
from cache.store.redis import RedisStore
from cache.types import Entry
from tests.clock import FrozenClock
from tests.contract.test_store import entry, linked
from tests.services import redis_server
from tests.waiting import until

EXACT = b"e" * 32
NUMBERS = itertools.count(1)


def token() -> bytes:
    return next(NUMBERS).to_bytes(16, "big")


class Worker:
    """One process's part, and the Redis that it has in common with the others."""

    def __init__(self, url: str, prefix: str) -> None:
        self.store = RedisStore(linked(url), now=time.time, prefix=prefix)
        self.leasing: RedisLeases = self.store.leasing
        self.leases = Leases(self.leasing, monotonic=time.monotonic)

    async def start(self) -> None:
        await self.store.start(self.leases.heard)
        await until(lambda: self.store._follower._last is not None)

    async def turn(self, exact: bytes = EXACT) -> Turn:
        found = self.leases.turn(exact)
        assert found is not None
        assert await found.look() is None
        return found

    async def put(self, exact: bytes = EXACT) -> None:
        await self.store.put(kept(exact))

    async def close(self) -> None:
        await self.leases.close()
        await self.store.close()


def kept(exact: bytes = EXACT) -> Entry:
    return entry(next(NUMBERS), FrozenClock(time.time()), exact=exact)


@pytest.fixture
async def pair(redis_url: str) -> AsyncGenerator[tuple[Worker, Worker]]:
    prefix = f"test:{uuid.uuid4().hex}:"
    async with AsyncExitStack() as stack:
        found = Worker(redis_url, prefix), Worker(redis_url, prefix)
        for one in found:
            stack.push_async_callback(one.close)
            await one.start()
        yield found


async def value(worker: Worker, exact: bytes = EXACT) -> bytes | None:
    found = await worker.store._link.slow.get(worker.store._keys.lease(exact))
    assert found is None or isinstance(found, bytes)
    return found


async def test_one_holds_it_and_the_others_are_told_who(pair: tuple[Worker, Worker]) -> None:
    """Two holders would be two calls."""
    one, other = pair
    mine, theirs = token(), token()
    assert await one.leasing.claim(EXACT, mine) == Claimed(None, mine)
    assert await other.leasing.claim(EXACT, theirs) == Claimed(None, mine)
    assert await one.leasing.claim(EXACT, token()) == Claimed(None, mine)
    assert await other.leasing.claim(b"f" * 32, theirs) == Claimed(None, theirs)


async def test_only_its_holder_gives_it_back_or_holds_it_longer(pair: tuple[Worker, Worker]) -> None:
    """Who has lost it must not take it from who has it now."""
    one, other = pair
    mine, theirs = token(), token()
    await one.leasing.claim(EXACT, mine)
    await other.leasing.release([(EXACT, theirs, False)])
    await other.leasing.begin(EXACT, theirs, 0.0)
    assert await value(one) == mine
    life = await one.store._link.slow.pexpire(one.store._keys.lease(EXACT), 500)
    assert life
    await other.leasing.renew([(EXACT, theirs)])
    assert 0 < await one.store._link.slow.pttl(one.store._keys.lease(EXACT)) <= 500
    await one.leasing.renew([(EXACT, mine)])
    assert await one.store._link.slow.pttl(one.store._keys.lease(EXACT)) > LIFE * 500
    await one.leasing.release([(EXACT, mine, False)])
    assert await value(one) is None


async def test_an_entry_needs_no_holder(pair: tuple[Worker, Worker]) -> None:
    """Keeping ends the lease in the same transaction: nobody ever sees neither, nor waits for what is there."""
    one, other = pair
    await one.leasing.claim(EXACT, token())
    await one.put()
    assert await value(one) is None
    found = await other.leasing.claim(EXACT, token())
    assert found.entry is not None
    assert not found.holder
    assert await value(one) is None


async def test_the_first_token_is_told_by_redis_own_clock(pair: tuple[Worker, Worker]) -> None:
    """Two hosts' clocks may differ by minutes; a quarter of a second is to be measured."""
    one, other = pair
    mine = token()
    await one.leasing.claim(EXACT, mine)
    await one.leasing.begin(EXACT, mine, 0.2)
    await asyncio.sleep(0.1)
    found = await other.leasing.claim(EXACT, token())
    assert found.holder == mine
    assert found.begun is not None
    assert 0.29 <= found.begun < 30
    await one.leasing.renew([(EXACT, mine)])
    await one.leasing.release([(EXACT, mine, False)])
    assert await value(one) is None


async def test_what_is_not_kept_is_told_for_a_while(pair: tuple[Worker, Worker]) -> None:
    """Else each of a hundred workers would wait for the one before it, and none would have anything to keep."""
    one, other = pair
    mine = token()
    await one.leasing.claim(EXACT, mine)
    await one.leasing.release([(EXACT, mine, True)])
    assert await other.leasing.claim(EXACT, token()) == Claimed(None)
    assert await one.store._link.slow.pttl(one.store._keys.lease(EXACT)) > 1_000
    await one.put()
    assert (await other.leasing.claim(EXACT, token())).entry is not None


async def test_a_flush_forgets_holders(pair: tuple[Worker, Worker]) -> None:
    """What was made before a flush is kept for nobody, so nobody should wait for it."""
    one, other = pair
    await one.leasing.claim(EXACT, token())
    await one.store.purge(Selection())
    await other.store._read.look()
    fresh = token()
    assert await other.leasing.claim(EXACT, fresh) == Claimed(None, fresh)


async def test_what_stands_there_by_mistake_stops_no_look_up(pair: tuple[Worker, Worker]) -> None:
    """Whoever can write to Redis may delay answers, within the operator's bound, and nothing else."""
    one, _ = pair
    raw, name = one.store._link.slow, one.store._keys.lease(EXACT)
    await one.store._read.look()
    for junk in (b"", b"x", b"y" * 16 + b"Bnonsense", b"z" * 5_000, b"\xff" * 40):
        await raw.set(name, junk)
        found = await one.leasing.claim(EXACT, token())
        assert found.entry is None
        await one.leasing.begin(EXACT, token(), 0.0)
        await one.leasing.renew([(EXACT, token())])
        await one.leasing.release([(EXACT, token(), True)])
        assert await raw.get(name) == junk
    await raw.delete(name)
    await raw.rpush(name, b"a list")
    assert await one.leasing.claim(EXACT, token()) == Claimed(None)
    await one.leasing.renew([(EXACT, token())])
    await one.leasing.release([(EXACT, token(), False)])
    await one.put()
    assert (await one.leasing.claim(EXACT, token())).entry is not None


async def test_a_redis_that_tells_no_time_still_says_that_an_answer_has_begun() -> None:
    """Rights to read, write and run scripts leave TIME out; streams at other workers would wait for the whole."""
    with redis_server() as url:
        raw = Redis.from_url(url)
        await raw.execute_command("ACL", "SETUSER", "plain", "on", ">secret", "~*", "&*", "+@all", "-time")
        plain = Worker(url.replace("redis://", "redis://plain:secret@"), "t:")
        timed, mine = Worker(url, "t:"), token()
        assert await plain.leasing.claim(EXACT, mine) == Claimed(None, mine)
        await plain.leasing.begin(EXACT, mine, 0.2)
        assert await plain.leasing.claim(EXACT, token()) == Claimed(None, mine, 0.0)
        assert await timed.leasing.claim(EXACT, token()) == Claimed(None, mine, 0.0)
        await timed.leasing.begin(EXACT, mine, 0.2)
        assert await plain.leasing.claim(EXACT, token()) == Claimed(None, mine, 0.0)
        await plain.leasing.release([(EXACT, mine, False)])
        assert await value(plain) is None
        await plain.close()
        await timed.close()
        await raw.aclose()


async def test_a_redis_that_is_full_or_forbids_scripts_still_finds() -> None:
    """A lease is a favour; the look-up that it rides on is not."""
    with redis_server() as url:
        raw = Redis.from_url(url)
        worker = Worker(url, "t:")
        await worker.start()
        await worker.put()
        await raw.script_flush()
        assert (await worker.leasing.claim(EXACT, token())).entry is not None
        await raw.config_set("maxmemory", "1")
        assert (await worker.leasing.claim(EXACT, token())).entry is not None
        assert await worker.leasing.claim(b"f" * 32, token()) == Claimed(None)
        await raw.config_set("maxmemory", "0")
        await raw.execute_command("ACL", "SETUSER", "plain", "on", ">secret", "~*", "&*", "+@all", "-@scripting")
        plain = Worker(url.replace("redis://", "redis://plain:secret@"), "t:")
        assert (await plain.leasing.claim(EXACT, token())).entry is not None
        assert await plain.leasing.claim(b"f" * 32, token()) == Claimed(None)
        await plain.close()
        await worker.close()
        await raw.aclose()


async def test_stores_of_one_process_have_none() -> None:
    """Nobody else is there to be waited for, and nothing must be asked."""
    leases = Leases(MemoryStore().leasing, monotonic=time.monotonic)
    assert leases.turn(EXACT) is None
    await leases.close()


async def test_a_holder_that_dies_is_followed_by_one(pair: tuple[Worker, Worker]) -> None:
    """kill -9 gives nothing back; its time runs out, and one of those who wait takes the turn."""
    one, other = pair
    await one.leasing.claim(EXACT, token())  # and never heard of again
    waiting = [await other.turn() for _ in range(5)]
    began = time.monotonic()
    ended = await asyncio.gather(*(turn.wait(60, None) for turn in waiting))
    assert set(ended) == {"took-over"}
    assert time.monotonic() - began < LIFE + 20
    assert len({id(turn.lease) for turn in waiting}) == 1
    assert (await one.turn()).elsewhere
    for turn in waiting:
        turn.leave()
    await until(lambda: _is_free(one))


async def test_a_holder_that_lives_is_waited_for(pair: tuple[Worker, Worker]) -> None:
    """Longer than a lease's life, as long as it flies; and given back by the last who counts on it."""
    one, other = pair
    turn, sibling = await one.turn(), await one.turn()
    assert turn.lease is sibling.lease is not None
    lease = turn.fly()
    assert lease is not None
    assert sibling.fly() is None, "a flight has it already"
    turn.leave()
    sibling.leave()
    waiting = await other.turn()
    assert waiting.elsewhere
    assert await waiting.wait(LIFE + 1.0, None) == "late"
    assert await value(one) == lease.token
    again = await other.turn()
    ending = asyncio.ensure_future(again.wait(60, None))  # noqa: TID251 - a test's own
    await asyncio.sleep(0.1)
    lease.landed()
    assert await ending == "took-over"
    again.leave()
    await until(lambda: _is_free(one))


async def test_who_waits_is_woken_when_it_is_kept(pair: tuple[Worker, Worker]) -> None:
    """By the change stream, with the entry in hand: a herd that wakes asks nothing more."""
    one, other = pair
    mine = await one.turn()
    waiting = [await other.turn() for _ in range(20)]
    ending = asyncio.gather(*(turn.wait(60, None) for turn in waiting))
    await asyncio.sleep(0.05)
    await one.put()
    assert set(await ending) == {"kept"}
    claims = next(NUMBERS)
    for turn in waiting:
        assert await turn.look() is not None
    assert next(NUMBERS) == claims + 1
    mine.leave()
    assert not len(one.leases)
    assert not len(other.leases)


async def test_a_claim_that_is_given_up_leaves_no_lease(pair: tuple[Worker, Worker]) -> None:
    """A client that leaves while Redis answers must not make others wait for nobody."""
    one, other = pair
    for pause in (0.0, 0.0002, 0.0005, 0.001, 0.002):
        asking = asyncio.get_running_loop().create_task(one.turn())
        await asyncio.sleep(pause)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        if not asking.cancelled():
            asking.result().leave()
        await until(lambda: _is_free(other))


async def test_who_is_asked_along_asks_again_where_the_first_is_gone(pair: tuple[Worker, Worker]) -> None:
    """One look-up serves a herd; its asker's leaving must not strand the others."""
    one, _ = pair
    real = one.leasing.claim

    async def slowly(exact: bytes, token: bytes) -> Claimed:
        await asyncio.sleep(0.05)
        return await real(exact, token)

    one.leasing.claim = slowly
    first, *others = [asyncio.get_running_loop().create_task(one.turn()) for _ in range(6)]
    await asyncio.sleep(0)
    assert first.cancel()
    turns = await asyncio.gather(*others)
    assert first.cancelled()
    assert all(turn.lease is not None for turn in turns)
    for turn in turns:
        turn.leave()
    await until(lambda: _is_free(one))


async def test_a_redis_that_hangs_costs_who_waits_two_look_ups(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the answer is made here: a follower must not hang on a Redis for as long as it would on an answer."""
    store = RedisStore(Link(redis_url, monotonic=time.monotonic, lookup=0.2), now=time.time, prefix=f"{uuid.uuid4()}:")
    leases = Leases(store.leasing, monotonic=time.monotonic)
    await store.leasing.claim(EXACT, token())
    turn = leases.turn(EXACT)
    assert turn is not None
    await turn.look()
    assert turn.elsewhere

    async def never(*_: object) -> Claimed:
        await asyncio.sleep(0.2)
        raise StoreDown("redis: timeout")

    monkeypatch.setattr(store.leasing, "claim", never)
    began = time.monotonic()
    assert await turn.wait(30, None) == "store-down"
    assert time.monotonic() - began < 10
    await leases.close()
    await store.close()


async def test_a_redis_that_is_too_slow_is_not_asked_by_every_request(redis_url: str) -> None:
    """What follows a look-up has forty times its time: were its success a sign of health, each miss would wait anew."""
    link = Link(redis_url, monotonic=FrozenClock().monotonic, lookup=0.05)
    store = RedisStore(link, now=time.time, prefix=f"{uuid.uuid4()}:")
    leases = Leases(store.leasing, monotonic=time.monotonic)
    await store._read.look()
    run = link.fast.evalsha

    async def slowly(*told: object) -> object:
        await asyncio.sleep(1)
        return await run(*told)  # pyright: ignore[reportArgumentType] - handed through as it came

    link.fast.evalsha = slowly  # pyright: ignore[reportAttributeAccessIssue] - of one client, not of its class
    for _ in range(2):
        turn = leases.turn(EXACT)
        assert turn is not None
        with pytest.raises(StoreDown, match="timeout"):
            await turn.look()
        await until(lambda: not leases._releasing)
    assert link.is_down
    await leases.close()
    await store.close()


async def test_an_error_nobody_thought_of_ends_the_wait(
    pair: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question that dies is one that is never answered; who waits must not sit out the operator's bound."""
    one, other = pair
    await one.leasing.claim(EXACT, token())
    turn = await other.turn()

    async def broken(*_: object) -> Claimed:
        raise ValueError

    monkeypatch.setattr(other.leasing, "claim", broken)
    began = time.monotonic()
    assert await turn.wait(60, None) == "store-down"
    assert time.monotonic() - began < 20
    assert not len(other.leases)


async def test_who_was_asked_along_keeps_what_the_first_gives_back(pair: tuple[Worker, Worker]) -> None:
    """One herd, one look-up: its asker is refused at once, and another one of the herd makes the answer."""
    one, _ = pair

    async def refused() -> None:
        (await one.turn()).leave()

    leaving = asyncio.get_running_loop().create_task(refused())
    await asyncio.sleep(0)
    turn = await one.turn()
    await leaving
    assert turn.lease is not None
    await until(lambda: not one.leases._releasing)
    assert await value(one) == turn.lease.token
    turn.leave()
    await until(lambda: _is_free(one))


async def _is_free(worker: Worker) -> bool:
    return await value(worker) is None and not len(worker.leases)
