"""Sums of days and blocks that several processes make at once, also of the version before; on both databases."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Connection

from gateway.db.queries import Queries
from gateway.db.session import Database
from gateway.db.sums import BLOCKS_TO, COLUMNS, DAY, DAYS_TO, LABELS_TO
from gateway.ledger import request_rows, sum_blocks, sum_proof, sum_upgrade, sums
from gateway.ledger.request_rows import Made, RequestRows
from gateway.ledger.retention import Kept, Retention
from gateway.ledger.sum_rows import Changed, be_patient, lock, turn
from tests.contract.test_sum_blocks import (
    BEGAN,
    END,
    FROM,
    TO_THE_LAST_DAY,
    TRAFFIC,
    begins_with,
    made,
    same,
    setting,
    write,
)
from tests.empty_database import Prepared
from tests.unit.ledger import version_before

pytestmark = pytest.mark.reduced

LAST = END // DAY - 1
CLOSED = [row for row in TRAFFIC if row[1] < LAST * DAY]
LATE = [row for row in TRAFFIC if LAST * DAY <= row[1] < LAST * DAY + 20 * 3_600][-1:]


async def _fill_without_late(database: Database) -> None:
    await write(database, [row for row in TRAFFIC if row not in LATE])
    await sums.make_days(database, LAST * DAY + 20 * 3_600)


without_late = begins_with(Prepared(_fill_without_late))
last_day_left = begins_with(TO_THE_LAST_DAY)


@pytest.fixture
async def database(url: str) -> AsyncGenerator[Database, None]:
    made = Database(url)
    await made.start()
    yield made
    await made.close()


async def test_no_hour_is_left_out_when_another_process_makes_less_of_a_day(
    last_day_left: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose clock is behind makes some hours of the day that this one is adding up to its end."""
    really, turns = sums.added_up, []

    async def slowly(among: Database, span: range) -> Any:
        if not turns:
            turns.append(span)
            await sums.make_days(among, LAST * DAY + 20 * 3_600)
        return await really(among, span)

    monkeypatch.setattr(sums, "added_up", slowly)
    await sums.make_days(last_day_left, END + 2 * 3_600)
    assert turns == [range(LAST * 24, LAST * 24 + 24)]
    assert await setting(last_day_left, DAYS_TO) == END // DAY
    assert await sum_proof.differences(last_day_left) == []
    await same(last_day_left, TRAFFIC, [(("team",), FROM, END, {}), (("user",), FROM, END, {}), ((), FROM, END, {})])


async def test_a_day_that_an_older_process_added_to_is_right_once_it_is_over(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an update one by one the version before writes beside this one: it adds to hours, and to no owner's day."""
    await write(database, TRAFFIC[::2])
    await sums.make_days(database, LAST * DAY + 20 * 3_600)
    today = [row for row in TRAFFIC[1::2] if row[1] >= LAST * DAY]
    with monkeypatch.context() as patch:
        patch.setattr(request_rows, "made_so_far", lambda _: Made(0, 0, 0))
        await write(database, today)
    assert await sum_proof.differences(database) != []
    await sums.make_days(database, END)
    assert await sum_upgrade.mend(database) == 1
    await sum_blocks.make_blocks(database)
    assert await sum_proof.differences(database) == []


async def test_a_day_that_an_older_process_made_is_made_anew(last_day_left: Database) -> None:
    """It replaces all sums of the day, knows of no owner and says nothing of labels."""
    await sums.make_days(last_day_left, LAST * DAY + 20 * 3_600)
    labels = await setting(last_day_left, LABELS_TO)
    await sums.make_days(last_day_left, END)
    async with last_day_left.begin() as connection:
        unknown = text("DELETE FROM usage_day WHERE starts = :day AND (facet = 'owner' OR facet LIKE 'any:%')")
        await connection.execute(unknown, {"day": LAST})
        back = text("UPDATE setting SET value = :value WHERE name = 'labels_to'")
        await connection.execute(back, {"value": str(labels)})
    await made(last_day_left, END + 3_600)
    assert await setting(last_day_left, LABELS_TO) == END // 3_600 + 1
    assert await sum_proof.differences(last_day_left) == []
    await same(last_day_left, TRAFFIC, [(("team",), FROM, END, {})])


async def test_a_block_is_not_made_of_days_that_are_being_mended(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever mends a day while its block is added up would leave the block wrong for ever."""
    await write(database, CLOSED)
    await sums.make_days(database, LAST * DAY)
    first = BEGAN // DAY // 8 * 8
    really = sum_blocks.put_blocks_of

    def and_mend(connection: Connection, day: int, so_far: Made) -> None:
        really(connection, day, so_far)
        sums.rebuild_day(connection, BEGAN // DAY)

    monkeypatch.setattr(sum_blocks, "put_blocks_of", and_mend)
    with pytest.raises(Changed):
        await database.transact(sum_blocks._put_block, first)
    assert await setting(database, BLOCKS_TO) == 0


async def test_the_first_block_of_all_is_that_of_the_first_day(database: Database) -> None:
    """What comes late may be older than all that was there when somebody looked which block is the first."""
    later = [row for row in CLOSED if row[1] >= BEGAN + 8 * DAY]
    await write(database, later)
    await sums.make_days(database, LAST * DAY)
    first = await sum_blocks._first_to_make(database)
    assert first is not None
    await write(database, CLOSED)
    await database.transact(sum_blocks._put_block, first)
    await sum_blocks.make_blocks(database)
    assert await sum_proof.differences(database) == []
    await same(database, CLOSED, [((), 0.0, LAST * DAY, {})])


async def test_a_day_that_is_pruned_meanwhile_keeps_its_sums(database: Database) -> None:
    """Mending goes day by day for minutes: of rows that went meanwhile no sums can be made."""
    await write(database, CLOSED)
    await made(database, LAST * DAY)
    before = await Queries(database).usage(("user",), BEGAN, LAST * DAY)
    keeping = Retention(database, Kept(requests=14, hours=18, days=100), now=lambda: float(END))
    await keeping.prune()
    await database.transact(sums.rebuild_day, BEGAN // DAY + 1)
    assert await Queries(database).usage(("user",), BEGAN, LAST * DAY) == before


async def test_days_before_the_first_one_are_right_when_something_comes_late_for_them(database: Database) -> None:
    """The first sums of all begin with some hours of a day; what comes after that for a day before is not forgotten."""
    late = [row for row in CLOSED if row[1] < END - 2 * DAY]
    today = [row for row in TRAFFIC if row[1] >= LAST * DAY]
    assert late
    assert today
    await write(database, today)
    await sums.make_days(database, LAST * DAY + 20 * 3_600)
    await write(database, late)
    for now in (LAST * DAY + 21 * 3_600, END + 2 * 3_600):
        assert await sum_proof.differences(database) == []
        asked: Any = [(("team",), FROM, END, {}), (("user",), FROM, END, {}), ((), FROM, END, {})]
        await same(database, [*late, *today], asked)
        await sums.make_days(database, now)
        await sum_blocks.make_blocks(database)
    assert await sum_proof.differences(database) == []


@pytest.mark.parametrize("begun", [20, 0])
async def test_a_day_that_the_version_before_makes_at_the_same_moment_is_made_once(
    last_day_left: Database, begun: int
) -> None:
    """It asks for `DAYS_TO` alone: who waited for that looks again at what is made before it writes a sum twice."""
    await sums.make_days(last_day_left, LAST * DAY + begun * 3_600)
    making, loop = asyncio.Event(), asyncio.get_running_loop()

    def slowly(connection: Connection) -> None:
        turn(connection, DAYS_TO)
        loop.call_soon_threadsafe(making.set)
        version_before.make_day(connection, LAST + 1)
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_sleep(0.5)"))

    older = asyncio.create_task(last_day_left.transact(slowly))  # noqa: TID251 - a test's own
    await making.wait()
    await sums.make_days(last_day_left, END + 60)
    await older
    await sums.make_days(last_day_left, END + 60)  # the next turn, should it have been made between two looks
    assert await setting(last_day_left, DAYS_TO) == LAST + 1
    assert await setting(last_day_left, LABELS_TO) == END // 3_600
    assert await sum_proof.differences(last_day_left) == []
    await same(last_day_left, TRAFFIC, [(("team",), FROM, END, {}), (("user",), FROM, END, {}), ((), FROM, END, {})])


@pytest.mark.parametrize("mending", ["mend", "rebuild"])
async def test_mending_a_day_that_the_version_before_makes_at_that_moment_waits_for_no_circle(
    without_late: Database, mending: str
) -> None:
    """It forgets the day and then asks for the hours: who holds the hours and asks for the day would wait for ever."""
    before = version_before.Before(without_late.dialect)
    await without_late.transact(before.add, LATE)
    making, loop = asyncio.Event(), asyncio.get_running_loop()

    def slowly(connection: Connection) -> None:
        be_patient(connection)
        version_before.make_day(connection, LAST + 1)
        loop.call_soon_threadsafe(making.set)
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_sleep(0.3)"))
        lock(connection)

    older = asyncio.create_task(without_late.transact(slowly))  # noqa: TID251 - a test's own
    await making.wait()
    if mending == "mend":
        await sum_upgrade.mend(without_late)
    else:
        await without_late.transact(sums.rebuild_day, LAST)
    await older
    await made(without_late, END + 3_600)
    assert await sum_upgrade.mend(without_late) == 0
    assert await sum_proof.differences(without_late) == []


@pytest.mark.parametrize("begun", [0, 9])
async def test_what_joins_a_day_is_named_before_anybody_waits_for_it(
    last_day_left: Database, monkeypatch: pytest.MonkeyPatch, begun: int
) -> None:
    """Names are a third of the work, and whoever counts the same new one for the day before would wait in a circle."""
    await sums.make_days(last_day_left, LAST * DAY + begun * 3_600)
    first = (LAST * 24 + begun) * 3_600.0
    model = COLUMNS.index("model")
    new = [row for row in TRAFFIC if first <= row[1] < LAST * DAY + 20 * 3_600][:1]
    named = [(f"named-{i}", first + 5.0, *row[2:model], "new", *row[model + 1 :]) for i, row in enumerate(new)]
    await write(last_day_left, named)
    late = [(f"late-{i}", first - 5.0, *row[2:]) for i, row in enumerate(named)]
    really, adding, loop = sums._put_labels, asyncio.Event(), asyncio.get_running_loop()

    def slowly(connection: Connection, *given: Any) -> None:
        try:
            really(connection, *given)
        finally:
            loop.call_soon_threadsafe(adding.set)
        if connection.dialect.name == "postgresql" and not begun:
            connection.execute(text("SELECT pg_sleep(0.3)"))

    locked: list[Connection] = []
    naming = RequestRows._made

    def unless_locked(self: RequestRows, connection: Connection, *given: Any) -> Any:
        assert connection not in locked
        return naming(self, connection, *given)

    def and_tell(connection: Connection) -> None:
        lock(connection)
        locked.append(connection)

    for where, name, value in ((sums, "_put_labels", slowly), (sums, "lock", and_tell)):
        monkeypatch.setattr(where, name, value)
    monkeypatch.setattr(RequestRows, "_made", unless_locked)
    making = asyncio.create_task(sums.make_days(last_day_left, first + 3_600))  # noqa: TID251 - a test's own
    await adding.wait()
    await last_day_left.transact(RequestRows(last_day_left.dialect).add, late)
    await making
    assert locked
    assert await sum_proof.differences(last_day_left) == []


@pytest.mark.parametrize("begun", [0, 9])
async def test_hours_are_added_up_again_when_something_is_counted_in_them_meanwhile(
    last_day_left: Database, monkeypatch: pytest.MonkeyPatch, begun: int
) -> None:
    """What a worker counts after the rows were read would be in the hours and never in their owners' sums."""
    await sums.make_days(last_day_left, LAST * DAY + begun * 3_600)
    first = (LAST * 24 + begun) * 3_600.0
    late = [("late", first + 5.0, *row[2:]) for row in TRAFFIC if row[1] >= first][:1]
    really, read = sums.added_up, 0

    async def and_then_late(database: Database, span: range) -> Any:
        nonlocal read, late
        found, read = await really(database, span), read + 1
        if late:
            await database.transact(RequestRows(database.dialect).add, late)
            late = []
        return found

    monkeypatch.setattr(sums, "added_up", and_then_late)
    await sums.make_days(last_day_left, first + 3_600)
    assert read == 2
    assert await sum_proof.differences(last_day_left) == []
