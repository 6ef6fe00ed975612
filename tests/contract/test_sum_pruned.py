"""Days of an older process whose rows are gone, and what keeps sums right and rows pruned; on both databases."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from sqlalchemy.util import await_only

from gateway.db import queries
from gateway.db.queries import Pruned, Queries
from gateway.db.session import Database
from gateway.db.sums import BLOCKS_TO, COSTS_FROM, DAY, HOUR, ROWS_FROM
from gateway.ledger import retention, sum_anew, sum_blocks, sum_proof, sum_upgrade, sums
from gateway.ledger.retention import Kept, Retention
from tests.contract.test_sum_blocks import END, FROM, TRAFFIC, begins_with, same, setting, write
from tests.contract.test_sum_mends import DAY_OF_A_BLOCK, LATE, WITHOUT_LATE, counted_by_an_older_process
from tests.unit.ledger import version_before

pytestmark = pytest.mark.reduced


@pytest.fixture
async def database(url: str) -> AsyncGenerator[Database, None]:
    made = Database(url)
    await made.start()
    yield made
    await made.close()


without_late = begins_with(WITHOUT_LATE)


async def pruned_to(database: Database, days: int, hours: int = 60) -> None:
    await Retention(database, Kept(requests=days, hours=hours, days=100), now=lambda: float(END)).prune()


async def test_days_of_an_older_process_whose_rows_are_gone_keep_their_owners(database: Database) -> None:
    """Rows are kept a week, and the older version goes on for twelve days after the schema was brought up."""
    await write(database, TRAFFIC)
    await sums.make_days(database, END - 12 * DAY)
    await database.transact(version_before.leave)
    for _ in range(12):
        await database.transact(version_before.make_day, END // DAY)
    await pruned_to(database, 7)
    asked: Any = [((by,), END - 20 * DAY, END - 6 * DAY, {}) for by in ("team", "provider", "user")]
    await same(database, TRAFFIC, asked[:2])  # by user only rows would tell, until they are taken up
    for _ in range(2):
        await sums.make_days(database, float(END))
        await sum_upgrade.take_along(database)
        assert await sum_upgrade.mend(database) == 0
        await sum_blocks.make_blocks(database)
        await same(database, TRAFFIC, asked)
    assert await setting(database, BLOCKS_TO) == 20_736
    assert await setting(database, COSTS_FROM) == END // DAY - 7  # before that nobody knows what hours cost by user
    assert await sum_proof.differences(database) == []
    with pytest.raises(Pruned):
        await Queries(database).costs([END - 9 * DAY + i * DAY + 7 * HOUR for i in range(2)], ("user",))


async def test_what_an_older_process_counted_late_in_a_day_pruned_since_has_an_owner(
    without_late: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows go while the day is added up anew, so its other sums are all that is left to go by."""
    await counted_by_an_older_process(without_late, LATE)
    really = sum_anew.added_up

    async def and_prune(among: Database, span: range, pause: float) -> Any:
        found = await really(among, span, pause)
        age = END // DAY - DAY_OF_A_BLOCK
        await pruned_to(without_late, age - 1, hours=age - 8)
        return found

    monkeypatch.setattr(sum_anew, "added_up", and_prune)
    assert await sum_upgrade.mend(without_late) == 1
    assert await setting(without_late, ROWS_FROM) == (DAY_OF_A_BLOCK + 1) * DAY
    assert await setting(without_late, COSTS_FROM) == DAY_OF_A_BLOCK + 1
    await same(without_late, TRAFFIC, [(("team",), FROM, END, {}), (("model", "key"), DAY_OF_A_BLOCK * DAY, END, {})])


async def test_a_report_does_not_see_a_day_grow_between_two_statements(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How far sums reach is read first, then sums: hours that join a day in between would be counted twice."""
    await write(database, TRAFFIC)
    await sums.make_days(database, END - 12 * HOUR)
    other, really = Database(database.url.render_as_string(hide_password=False)), queries._placed
    loop = asyncio.get_running_loop()

    def and_grow(connection: Any, asked: Any) -> Any:
        placed, growing = really(connection, asked), sums.make_days(other, END - HOUR)
        if connection.dialect.name == "postgresql":
            await_only(growing)
        else:  # this is the thread that reads
            asyncio.run_coroutine_threadsafe(growing, loop).result()
        return placed

    monkeypatch.setattr(queries, "_placed", and_grow)
    await same(database, TRAFFIC, [(("user",), FROM, END - 2 * HOUR, {})])
    await other.close()


async def test_a_block_is_made_of_a_day_that_is_mended_at_the_same_time(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL the day is written between the adding up and the last look: the block is added up again."""
    await write(database, [row for row in TRAFFIC if row not in LATE])
    await sums.make_days(database, END)
    await counted_by_an_older_process(database, LATE)
    other = Database(database.url.render_as_string(hide_password=False))
    really, loop, tasks = sum_blocks.put_blocks_of, asyncio.get_running_loop(), list[Any]()

    def and_mend(connection: Any, day: int, *rest: Any) -> None:
        really(connection, day, *rest)
        if not tasks and day // 8 == DAY_OF_A_BLOCK // 8:
            if connection.dialect.name == "postgresql":
                tasks.append(loop.create_task(sum_upgrade.mend(other)))
                await_only(asyncio.wait(tasks))
            else:  # it waits until this has written
                later = asyncio.run_coroutine_threadsafe(sum_upgrade.mend(other), loop)
                tasks.append(asyncio.wrap_future(later, loop=loop))

    monkeypatch.setattr(sum_blocks, "put_blocks_of", and_mend)
    await sum_blocks.make_blocks(database)
    assert await tasks[0] == 1
    assert await sum_proof.differences(database) == []
    await other.close()


async def test_hours_that_are_missing_join_a_day_one_after_the_other(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that was down since the morning may not hold back everybody's counting for all hours at once."""
    await write(database, TRAFFIC)
    await sums.make_days(database, END - 23 * HOUR)
    really, spans = sums.added_up, list[range]()

    async def and_note(among: Database, span: range) -> Any:
        spans.append(span)
        return await really(among, span)

    monkeypatch.setattr(sums, "added_up", and_note)
    await sums.make_days(database, END)
    assert [len(span) for span in spans] == [1] * 23
    assert await sum_proof.differences(database) == []


async def test_a_step_that_always_fails_keeps_nothing_from_being_pruned(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that is never had must not fill the disk."""
    await write(database, TRAFFIC)
    stopping = asyncio.Event()

    async def fails(*_: Any) -> int:
        raise TimeoutError

    monkeypatch.setattr(retention, "_FIRST_SECONDS", 0.0)
    for step in ("take_along", "mend", "make_blocks"):
        monkeypatch.setattr(retention, step, fails)
    keeping = Retention(database, Kept(requests=7), now=lambda: float(END))
    pruning = keeping.prune

    async def and_stop() -> int:
        stopping.set()
        return await pruning()

    monkeypatch.setattr(keeping, "prune", and_stop)
    await asyncio.wait_for(keeping.run(stopping), 60)
    assert await setting(database, ROWS_FROM) == END - 7 * DAY


async def test_before_there_was_a_gateway_nothing_was_pruned(database: Database) -> None:
    """Who asks a week-old gateway about the year before is told of nothing, and not that single requests are gone."""
    asked: Any = (("user", "provider"), END - 400.5 * DAY, END, {})
    keeping = Retention(database, Kept(), now=lambda: float(END))
    await sums.make_days(database, float(END))
    await keeping.prune()
    assert await Queries(database).usage(*asked) == []
    some = [row for row in TRAFFIC if row[1] >= END - 7 * DAY]
    await write(database, some)
    await sums.make_days(database, float(END))
    await keeping.prune()
    assert await setting(database, ROWS_FROM) == 0
    await same(database, some, [asked])
