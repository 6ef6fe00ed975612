"""Sums of eight and sixty-four days, of a day that is not over, and the upgrade that brings them; on both databases."""

import asyncio
from collections.abc import AsyncGenerator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Connection

from gateway.bench.traffic import Shape, rows
from gateway.db import migrate
from gateway.db.queries import Queries
from gateway.db.session import Database
from gateway.db.sums import BLOCKS_TO, DAY, DAYS_TO, LABELS_TO, Row, day_starts
from gateway.ledger import sum_blocks, sum_proof, sum_upgrade, sums
from gateway.ledger.request_rows import RequestRows
from gateway.ledger.retention import Kept, Retention
from tests.contract.test_sums import as_told
from tests.empty_database import Prepared
from tests.proofs import wanted
from tests.unit.ledger.sum_world import counted, numbers

pytestmark = pytest.mark.reduced

END = 20_736 * DAY + 5 * DAY  # five days after sixty-four are full
FROM = END - 70 * DAY  # what is asked since then is read of sixty-four days, whenever there was a first request
# Every day costs every test time, also one without requests, which stand in the midst of seventy. Those of an ordinary
# run begin and end as they do: a block of eight that follows on a day before it, and five days after the last one.
DAYS, KEPT = (70, 20) if wanted() else (14, 9)  # pruning ends within a block
SHAPE = Shape(requests=DAYS * 150 // 7, days=DAYS, keys=4, users=40, customers=12, end=float(END))
QUIET = range(END // DAY - 53, END // DAY - 14) if wanted() else range(0)
TRAFFIC = [row for some in rows(SHAPE) for row in some if row[1] // DAY not in QUIET]
TOLD = [as_told(row) for row in TRAFFIC]
BEGAN = END - DAYS * DAY
NOW = END - 5_400.5  # in the middle of an hour of a day that is not over
ZONES = ("Asia/Kolkata", "America/New_York", "Pacific/Chatham")
Question = tuple[tuple[str, ...], float, float, dict[str, str]]
ASKED: list[Question] = [
    ((), FROM, END, {}),
    (("user",), FROM, END, {}),
    (("team", "model"), FROM, END - 6.4 * DAY, {}),  # sixty-four days, less what they have too much
    (("user", "model"), BEGAN + 2.6 * DAY, NOW, {"team": "search"}),
    (("tag:customer", "team"), 0.0, END, {}),
    (("team", "source"), BEGAN + 5.4 * DAY, END, {}),
    (("model",), FROM, NOW, {"user": ""}),
    (("month", "user"), FROM, END, {}),
    (("key",), BEGAN + 17.25, END - 7 * 3_600, {"tag:feature": "faq"}),
]


_PLAIN: dict[str, dict[tuple[str, ...], dict[str, int]]] = {}


@pytest.fixture
async def database(url: str) -> AsyncGenerator[Database, None]:
    made = Database(url)
    await made.start()
    yield made
    await made.close()


async def write(database: Database, some: list[Row]) -> None:
    writer = RequestRows(database.dialect)
    for i in range(0, len(some), 100):
        await database.transact(writer.add, some[i : i + 100])
        writer.committed()


async def made(database: Database, now: float = NOW) -> None:
    await sums.make_days(database, now)
    await sum_blocks.make_blocks(database)


async def _fill_all(database: Database) -> None:
    await write(database, TRAFFIC)
    await made(database)


async def _fill_third(database: Database) -> None:
    await write(database, TRAFFIC[::3])
    await made(database)


def begins_with(prepared: Prepared) -> Any:
    """A fixture: a database of the test's own, on either server, that is a copy."""

    @pytest.fixture(params=["sqlite", "postgresql"])
    async def copied(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Database, None]:
        if request.param == "sqlite":
            url = await prepared.sqlite(tmp_path / "nearhit.db")
        else:
            url = await prepared.postgres(request.getfixturevalue("postgres_url"))
        opened = Database(url)
        await opened.start()
        yield opened
        await opened.close()

    return copied


async def _fill_to_the_last_day(database: Database) -> None:
    await write(database, TRAFFIC)
    await sums.make_days(database, END - DAY)


# So many days take seconds to add up, whoever asks for them afterwards.
full, third = begins_with(Prepared(_fill_all)), begins_with(Prepared(_fill_third))
TO_THE_LAST_DAY = Prepared(_fill_to_the_last_day)  # all is written; the last day is not added up


async def same(database: Database, those: list[Row], asked: list[Question] = ASKED) -> None:
    told = TOLD if those is TRAFFIC else [as_told(row) for row in those]
    for question in asked:
        found = await Queries(database).usage(*question)
        assert numbers(found) == plainly(told, question), question


def plainly(told: list[dict[str, Any]], question: Question) -> dict[tuple[str, ...], dict[str, int]]:
    """What a plain count says; of all that is written it is made once."""
    if told is not TOLD:
        return counted(told, {}, question)
    if repr(question) not in _PLAIN:
        _PLAIN[repr(question)] = counted(told, {}, question)
    return _PLAIN[repr(question)]


async def setting(database: Database, name: str) -> int:
    async with database.read() as connection:
        found = await connection.scalar(text("SELECT value FROM setting WHERE name = :name"), {"name": name})
    return int(found or 0)


async def stored(database: Database, name: str, facet: str) -> int:
    async with database.read() as connection:
        wanted = text(f"SELECT count(*) FROM {name} WHERE facet = :facet")
        return await connection.scalar(wanted, {"facet": facet}) or 0


async def test_long_spans_are_read_of_few_sums_and_say_the_same(full: Database) -> None:
    """A year by user must not read every day's users, and may not differ by a request from a plain count."""
    assert await setting(full, BLOCKS_TO) == 20_736
    assert await setting(full, DAYS_TO) == END // DAY - 1
    assert await setting(full, LABELS_TO) == int(NOW) // 3_600
    assert 0 < await stored(full, "usage_days64", "user") < await stored(full, "usage_days8", "user")
    assert await sum_proof.differences(full) == []
    await same(full, TRAFFIC)


async def test_what_comes_late_is_in_every_sum_that_is_made(database: Database) -> None:
    """A request of last month that is written today belongs to its day, its eight days and its sixty-four."""
    late = TRAFFIC[::7]
    await write(database, [row for i, row in enumerate(TRAFFIC) if i % 7])
    await made(database)
    await asyncio.gather(write(database, late[::2]), write(database, late[1::2]))
    assert await sum_proof.differences(database) == []
    await same(database, TRAFFIC)


async def test_blocks_are_made_while_others_write(database: Database) -> None:
    """Whoever adds to a day while its block is made is counted in the block once: by the maker or by its writer."""
    await write(database, TRAFFIC[::2])
    await sums.make_days(database, NOW)
    await asyncio.gather(
        write(database, TRAFFIC[1::2]), sum_blocks.make_blocks(database), sum_blocks.make_blocks(database)
    )
    await made(database)
    assert await setting(database, BLOCKS_TO) == 20_736
    assert await sum_proof.differences(database) == []
    await same(database, TRAFFIC)


@pytest.mark.parametrize("by", ["team", "provider", "user", "tag:customer"])
async def test_days_of_zones_are_those_of_the_rows(full: Database, by: str) -> None:
    """What hours of a day cost is read off the day: also where a zone is a half or three quarters of an hour off."""
    for zone in ZONES:
        bounds = day_starts(zone, END - 40 * DAY, NOW)
        for (start, end), costs in zip(pairwise(bounds), await Queries(full).costs(bounds, (by,)), strict=True):
            wanted = {group: of["cost_nano"] for group, of in counted(TOLD, {}, ((by,), start, end, {})).items()}
            assert {group: cost for group, cost in costs.items() if cost} == {g: c for g, c in wanted.items() if c}


async def test_wrong_sums_are_found_and_mended(third: Database) -> None:
    """A proof that cannot fail is none: each change is named beside those before it."""
    known = 0
    for change in (
        "UPDATE usage_days8 SET requests = requests + 1 WHERE facet = 'user'",
        "DELETE FROM usage_days64 WHERE facet = 'any:user'",
        "UPDATE usage_day SET c07 = c07 + 1 WHERE facet = 'owner'",
        "DELETE FROM usage_day WHERE facet = 'any:tag:customer'",
    ):
        async with third.begin() as connection:
            await connection.execute(text(change))
        found = len(await sum_proof.differences(third, most=100_000))
        assert found > known, change
        known = found
    await sums.rebuild(third)
    assert await sum_proof.differences(third) == []


async def test_sums_are_made_anew_where_it_takes_long_to_find_out_of_which_days(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No key begins with the day, so all sums are looked through: of years that is longer than a statement may take."""
    await write(database, TRAFFIC[:100])
    really = sums.days_there

    def slowly(connection: Connection, **given: bool) -> range:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_sleep(2.1)"))
        return really(connection, **given)

    monkeypatch.setattr(sums, "days_there", slowly)
    assert await sums.rebuild(database) > 0
    assert await sum_proof.differences(database) == []


async def test_pruning_within_a_block_keeps_the_days_of_it(full: Database) -> None:
    """The days that are kept say what they said, though a block of theirs had days that are gone."""
    first = END - KEPT * DAY
    kept: list[Question] = [(("user",), first, END, {}), (("team",), 0.0, END, {}), (("tag:feature",), first, NOW, {})]
    keeping = Retention(full, Kept(requests=2, hours=3, days=KEPT, explanations=1), now=lambda: float(END))
    before = [await Queries(full).usage(group_by, max(start, first), NOW, where) for group_by, start, _, where in kept]
    await keeping.prune()
    after = [await Queries(full).usage(group_by, start, NOW, where) for group_by, start, _, where in kept]
    assert after == before
    assert await sum_proof.differences(full) == []
    assert await stored(full, "usage_days64", "owner") == 0


async def test_a_database_of_the_version_before_is_taken_along(url: str) -> None:
    """Days that were made by it, also those whose rows and hours were pruned, must be in what the new pages read."""
    database = Database(url)
    await database.start()
    await write(database, TRAFFIC)
    await sums.make_days(database, NOW)
    before = [await Queries(database).usage(("user",), FROM, END - DAY), await Queries(database).usage((), FROM, END)]
    keeping = Retention(database, Kept(requests=14, hours=18, days=100), now=lambda: float(END))
    await keeping.prune()
    await database.close()
    await migrate.downgrade(url, "0013")
    await migrate.upgrade(url)
    database = Database(url)
    await sum_upgrade.take_along(database)
    await made(database)
    assert await sum_proof.differences(database) == []
    after = [await Queries(database).usage(("user",), FROM, END - DAY), await Queries(database).usage((), FROM, END)]
    assert after == before
    bounds = [BEGAN + i * DAY for i in range(SHAPE.days)]
    whole, teams = await Queries(database).costs(bounds), await Queries(database).costs(bounds, ("team",))
    assert [sum(one.values()) for one in whole] == [sum(one.values()) for one in teams]
    await database.close()
