"""Hosts that share a database and not the secret are told so, on both databases."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from gateway.auth import ADMIN, Keyring, NewKey
from gateway.db.session import Database
from gateway.secret_proof import differs, is_the_same
from tests.clock import FrozenClock

OURS, THEIRS = b"o" * 32, b"t" * 32


@pytest.fixture
async def database(url: str) -> AsyncGenerator[Database]:
    made = Database(url)
    await made.start()
    yield made
    await made.close()


async def a_key(database: Database, secret: bytes, clock: FrozenClock) -> tuple[Keyring, str]:
    keyring = Keyring(database, secret, now=clock.now, monotonic=clock.now, admin_key=lambda: None)
    made = await keyring.create(ADMIN, NewKey(name="app", team="t", project="p"))
    return keyring, made.row.id


async def test_a_host_with_another_secret_is_told_while_a_key_of_the_first_works(
    url: str, database: Database, clock: FrozenClock
) -> None:
    """It answers 401 to every client of the others; who waits for it in a rollout looks for a fault in the keys."""
    assert await is_the_same(database, OURS)
    keyring, name = await a_key(database, OURS, clock)
    for _ in range(2):
        assert not await is_the_same(database, THEIRS)
        assert await differs(url, THEIRS)
        assert await is_the_same(database, OURS)
        assert not await differs(url, OURS)
    await keyring.revoke(ADMIN, name)
    assert not await differs(url, THEIRS)
    assert await is_the_same(database, THEIRS)
    await a_key(database, THEIRS, clock)
    assert await differs(url, OURS)


async def test_a_database_of_the_version_before_takes_the_secret_it_is_opened_with(
    url: str, database: Database, clock: FrozenClock
) -> None:
    """It has keys and no mark: that this is the right one cannot be known, and must not be denied."""
    await a_key(database, OURS, clock)
    assert not await differs(url, OURS)
    assert await is_the_same(database, OURS)
    assert await differs(url, THEIRS)


async def test_workers_that_start_together_leave_one_mark(url: str, database: Database) -> None:
    """None of them may fail for that."""
    others = [Database(url) for _ in range(3)]
    try:
        assert all(await asyncio.gather(*(is_the_same(one, OURS) for one in (database, *others))))
    finally:
        for one in others:
            await one.close()
    assert await is_the_same(database, OURS)
