"""What the version before left is added up beside requests, and what it writes beside is found; on both databases."""

import asyncio
import time
from collections.abc import AsyncGenerator
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.engine import Connection

from gateway.db.models import MonthSeal
from gateway.db.queries import Queries
from gateway.db.session import Database
from gateway.db.sums import BLOCKS_TO, COSTS_FROM, DAY, DAYS_TO, GATHERED_TO, MISSING, Row, day_starts
from gateway.ledger import retention, sum_anew, sum_gathered, sum_proof, sum_upgrade, sums
from gateway.ledger.closing import Months
from gateway.ledger.request_rows import RequestRows
from gateway.ledger.retention import Kept, Retention
from gateway.ledger.sum_rows import Changed
from policies.months import span
from tests.contract.test_sum_blocks import BEGAN, END, FROM, TRAFFIC, begins_with, made, same, setting, write
from tests.contract.test_sums import as_told
from tests.empty_database import Prepared
from tests.unit.ledger import version_before
from tests.unit.ledger.sum_world import counted

pytestmark = pytest.mark.reduced

LAST = END // DAY - 1
ASKED: list[Any] = [
    (("team",), FROM, END, {}),
    (("user",), BEGAN + 1.3 * DAY, END, {}),
    (("tag:feature", "key"), FROM, END, {"team": "search"}),
    (("model",), FROM, END, {"user": ""}),
    ((), FROM, END, {"tag:customer": ""}),
]


@pytest.fixture
async def database(url: str) -> AsyncGenerator[Database, None]:
    made = Database(url)
    await made.start()
    yield made
    await made.close()


async def _fill(database: Database) -> None:
    """Every second request as today, the others one by one as the version before counts them."""
    await write(database, TRAFFIC[::2])
    await made(database)
    before = version_before.Before(database.dialect)
    for row in TRAFFIC[1::2]:
        await database.transact(before.add, [row])
        before.committed()


counted_late = begins_with(Prepared(_fill))


async def upgraded(database: Database, some: list[Row]) -> None:
    """What the version before made of these, with the tables of this one."""
    await write(database, some)
    await sums.make_days(database, LAST * DAY)
    await database.transact(version_before.leave)


async def costs_are_right(database: Database, some: list[Row]) -> None:
    told = [as_told(row) for row in some]
    bounds = day_starts("Asia/Kolkata", END - 9 * DAY, END)
    for by in ("team", "user"):
        for (start, end), costs in zip(pairwise(bounds), await Queries(database).costs(bounds, (by,)), strict=True):
            wanted = {group: of["cost_nano"] for group, of in counted(told, {}, ((by,), start, end, {})).items()}
            assert {group: cost for group, cost in costs.items() if cost} == {g: c for g, c in wanted.items() if c}


async def test_pages_are_right_while_an_upgrade_is_under_way(database: Database) -> None:
    """Every step may be the last one of a process that is killed: what is not there yet is read as before."""
    await upgraded(database, TRAFFIC)
    one_step = asyncio.Event()
    one_step.set()
    steps = 0
    while not steps or await setting(database, COSTS_FROM):
        if steps % 10 == 0:
            assert await sum_proof.differences(database) == []
            await same(database, TRAFFIC, ASKED)
            await costs_are_right(database, TRAFFIC)
        await sum_upgrade.take_along(database, one_step)
        await made(database, LAST * DAY + 7_200 * (1 + steps // 10 % 9))  # a step a time, as days are made meanwhile
        steps += 1
    async with database.read() as connection:
        assert await connection.scalar(text("SELECT value FROM setting WHERE name = :name"), {"name": MISSING}) is None
    await made(database)
    assert await setting(database, BLOCKS_TO) == 20_736
    assert await sum_proof.differences(database) == []
    await same(database, TRAFFIC, ASKED)
    await costs_are_right(database, TRAFFIC)


async def test_no_block_is_made_of_days_that_do_not_say_everything_yet(database: Database) -> None:
    """It would never know what owners and all users together asked for."""
    await upgraded(database, TRAFFIC)
    await made(database, LAST * DAY)
    assert await setting(database, BLOCKS_TO) == 0
    await sum_upgrade.take_along(database)
    await made(database, LAST * DAY)
    assert await setting(database, BLOCKS_TO) > 0
    assert await sum_proof.differences(database) == []


async def test_several_processes_share_the_work_while_others_write(database: Database) -> None:
    """Late requests for days that are being added up are counted in them once."""
    await upgraded(database, TRAFFIC[::2])
    await asyncio.gather(
        sum_upgrade.take_along(database), sum_upgrade.take_along(database), write(database, TRAFFIC[1::2])
    )
    for _ in range(2):
        await sum_upgrade.take_along(database)
    await made(database)
    assert await setting(database, COSTS_FROM) == 0
    assert await sum_proof.differences(database) == []
    await same(database, TRAFFIC, ASKED)
    await costs_are_right(database, TRAFFIC)


@pytest.mark.parametrize("step", ["_gather_next", "_put_anew"])
async def test_a_day_that_is_added_to_meanwhile_is_added_up_again(
    database: Database, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """What comes late between adding up and writing would be overwritten."""
    late = [row for row in TRAFFIC[::5] if row[1] < LAST * DAY]
    await upgraded(database, [row for row in TRAFFIC if row not in late])
    writer, turns = RequestRows(database.dialect), []
    where, name = (sum_gathered, "lock") if step == "_gather_next" else (sum_anew, "hold")
    locked = getattr(where, name)

    def and_write(connection: Connection) -> None:
        """In the same transaction, for on SQLite there is no other: taken back with it, and written again below."""
        if not turns:
            turns.append(step)
            first = late[-1] if step == "_put_anew" else late[0]
            writer.add(connection, [row for row in late if row[1] // DAY == first[1] // DAY])
        locked(connection)

    monkeypatch.setattr(where, name, and_write)
    if step == "_put_anew":
        monkeypatch.setattr(where, name, locked)
        while await sum_upgrade._gather(database) is not None:
            pass
        await write(database, [row for row in late if row[1] // DAY < LAST - 3])
        late[:] = [row for row in late if row[1] // DAY == LAST - 1] or late[-1:]
        monkeypatch.setattr(where, name, and_write)
    if step == "_gather_next":
        with pytest.raises(Changed):
            await database.transact(sum_upgrade._gather_next)
    await sum_upgrade.take_along(database)
    assert turns
    await write(database, TRAFFIC)
    await made(database)
    assert await sum_proof.differences(database) == []
    await same(database, TRAFFIC, ASKED)


async def test_what_a_process_of_the_version_before_counts_late_is_found(counted_late: Database) -> None:
    """In an update one by one it adds to hours, and to days of all, users and tags: not to owners, costs and blocks."""
    assert await sum_proof.differences(counted_late) != []
    assert await sum_upgrade.mend(counted_late, time.monotonic()) == 1
    days = {row[1] // DAY for row in TRAFFIC[1::2]}
    assert len(days) - 5 < await sum_upgrade.mend(counted_late) < len(days)
    assert await sum_upgrade.mend(counted_late) == 0
    assert await sum_proof.differences(counted_late) == []
    await same(counted_late, TRAFFIC, ASKED)


async def test_a_month_is_sealed_with_what_an_older_process_counted_late(counted_late: Database) -> None:
    """What is sealed stays, so it cannot wait for the next turn."""
    await Months(counted_late, now=lambda: float(END)).close("2026-09", "ann")
    its = span("2026-09")
    async with counted_late.read() as connection:
        facts: Any = await connection.scalar(select(MonthSeal.facts).where(MonthSeal.month == "2026-09"))
    wanted = counted([as_told(row) for row in TRAFFIC], {}, (("team",), its.start, its.end, {}))
    assert facts is not None
    assert {(team["team"],): team["requests"] for team in facts["teams"]} == {
        group: numbers["requests"] for group, numbers in wanted.items()
    }


async def test_a_day_that_the_version_before_made_is_read_of_its_hours(database: Database) -> None:
    """Until it is made anew no page may look for its owners: nobody has asked for anything, it would say."""
    await write(database, TRAFFIC)
    await sums.make_days(database, LAST * DAY + 20 * 3_600)
    await database.transact(version_before.make_day, LAST + 1)
    assert await setting(database, DAYS_TO) == LAST + 1
    await same(database, TRAFFIC, ASKED)
    await costs_are_right(database, TRAFFIC)
    await made(database, float(END))
    assert await sum_proof.differences(database) == []


async def test_what_comes_late_for_a_day_that_grows_waits_for_no_circle(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late request holds its hour and asks for its day: whoever adds an hour to that day asks for the hours first."""
    today = [row for row in TRAFFIC if row[1] >= LAST * DAY]
    midday = [row for row in today if LAST * DAY + 9 * 3_600 <= row[1] < LAST * DAY + 20 * 3_600]
    assert midday
    await write(database, TRAFFIC)
    await sums.make_days(database, LAST * DAY + 9 * 3_600)
    really, adding = sums._put_labels, asyncio.Event()

    def slowly(connection: Connection, *given: Any) -> None:
        really(connection, *given)
        adding.set()
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_sleep(0.3)"))

    monkeypatch.setattr(sums, "_put_labels", slowly)
    making = asyncio.create_task(sums.make_days(database, LAST * DAY + 20 * 3_600))  # noqa: TID251 - a test's own
    await adding.wait()
    late = [(f"late-{i}", LAST * DAY + 3_600.5, *row[2:]) for i, row in enumerate(midday)]
    await database.transact(RequestRows(database.dialect).add, late)
    await making
    assert await sum_proof.differences(database) == []


async def test_a_start_does_not_wait_for_it_and_turns_go_on_with_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million requests are minutes: requests are answered meanwhile, and a stop waits for one day at most."""
    await upgraded(database, TRAFFIC)
    await sums.ensure(database)
    assert await setting(database, GATHERED_TO) == 0
    stopping, taken = asyncio.Event(), sum_upgrade.take_along

    async def and_stop(*given: Any) -> None:
        stopping.set()
        await taken(*given)

    for name, value in {"_FIRST_SECONDS": 0.0, "take_along": and_stop}.items():
        monkeypatch.setattr(retention, name, value)
    keeping = Retention(database, Kept(requests=0, hours=0, days=0), now=lambda: float(END))
    await keeping.run(stopping)
    assert await setting(database, GATHERED_TO) == BEGAN // DAY + 1
    for name, value in {"_SOON_SECONDS": 0.0, "_TURN_SECONDS": 0.0, "take_along": taken}.items():
        monkeypatch.setattr(retention, name, value)
    stopping = asyncio.Event()
    running = asyncio.create_task(keeping.run(stopping))  # noqa: TID251 - a test's own
    while await setting(database, BLOCKS_TO) < 20_736:  # noqa: ASYNC110 - the turns tell nobody
        await asyncio.sleep(0.01)
    assert await setting(database, COSTS_FROM) > BEGAN // DAY  # which is most of it: days and blocks do not wait for it
    while await setting(database, COSTS_FROM):  # noqa: ASYNC110 - the same
        await asyncio.sleep(0.01)
    stopping.set()
    await running
    assert await sum_proof.differences(database) == []
