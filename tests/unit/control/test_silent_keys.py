"""Keys while the database says nothing, neither yes nor no: who was known is served, and one request asks for all."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from gateway.auth import ADMIN, SILENT, TTL, Keyring, NewKey
from gateway.db.session import Database
from gateway.errors import Overloaded
from gateway.tasks import Tasks
from tests.clock import FrozenClock
from tests.waiting import until


class SilentDatabase(Database):
    """Reads stand still while `silent`, until they are `given_up`. `asked`: how many there were."""

    silent = False
    asked = 0

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.given_up = asyncio.Event()

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[object, None]:  # pyright: ignore[reportIncompatibleMethodOverride] - a test's stand-in
        self.asked += 1
        if self.silent:
            await self.given_up.wait()
            raise OperationalError("SELECT", None, Exception("silent"))
        async with super().read() as connection:
            yield connection


async def test_one_request_waits_for_a_silent_database_not_every_one(tmp_path: Path, clock: FrozenClock) -> None:
    """Each took its turn of seconds, so that half a minute into an outage good keys were answered after a minute."""
    database = SilentDatabase(f"sqlite:///{tmp_path}/n.db")
    await database.start()
    keyring = Keyring(database, b"p" * 32, now=clock.now, monotonic=clock.monotonic)
    keys = [(await keyring.create(ADMIN, NewKey(name="k", team="acme", project="web"))).key for _ in range(3)]
    headers = [[(b"authorization", f"Bearer {key}".encode())] for key in keys]
    for known in headers[:2]:
        await keyring.identify(known)
    database.silent, database.asked, tasks = True, 0, Tasks()
    clock.advance(TTL + 1)
    first = [tasks.spawn(keyring.identify(header), "one") for header in headers[:2] * 5]
    await until(lambda: database.asked == 1)
    database.given_up.set()
    assert {found.team for found in await asyncio.gather(*first)} == {"acme"}
    assert database.asked == 1
    database.given_up.clear()
    assert (await keyring.identify(headers[0])).team == "acme"
    assert database.asked == 1
    clock.advance(SILENT + 1)
    asks = tasks.spawn(keyring.identify(headers[0]), "asks")
    await until(lambda: database.asked == 2)
    assert (await asyncio.wait_for(keyring.identify(headers[1]), 10)).team == "acme"
    assert not asks.done()
    database.given_up.set()
    await asks
    with pytest.raises(Overloaded):
        await keyring.identify(headers[2])
    database.silent = False
    clock.advance(SILENT + 1)
    asked = database.asked
    assert (await keyring.identify(headers[0])).team == "acme"
    assert (await keyring.identify(headers[1])).team == "acme"
    assert database.asked == asked + 2
    await database.close()
