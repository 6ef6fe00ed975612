"""Days made anew beside requests, by a process that is killed, while others prune and count; on both databases."""

import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy.engine import Connection

from gateway.db.queries import Queries
from gateway.db.session import Database
from gateway.db.sums import BLOCKS_TO, COLUMNS, COSTS_FROM, DAY, DAYS_TO, HOUR, LABELS_TO, ROWS_FROM
from gateway.db.tag_names import tag_names
from gateway.ledger import sum_anew, sum_proof, sum_upgrade, sums
from gateway.ledger.retention import Kept, Retention
from gateway.ledger.sum_rows import keep, turn
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
DAY_OF_A_BLOCK = BEGAN // DAY // 8 * 8 + 9
LATE = [row for row in TRAFFIC if row[1] // DAY == DAY_OF_A_BLOCK]
LAST_TWO = [row for row in TRAFFIC if LAST * DAY <= row[1] < LAST * DAY + 20 * HOUR][-2:]


@pytest.fixture
async def database(url: str) -> AsyncGenerator[Database, None]:
    made = Database(url)
    await made.start()
    yield made
    await made.close()


async def _fill(database: Database) -> None:
    await write(database, [row for row in TRAFFIC if row not in LATE])
    await made(database, END)


async def _fill_upgraded(database: Database) -> None:
    """Upgraded when the last day begins, twenty hours of which are made; two requests are still to come."""
    await write(database, [row for row in TRAFFIC if row not in LAST_TWO])
    await sums.make_days(database, LAST * DAY)
    await database.transact(version_before.leave)
    await sums.make_days(database, LAST * DAY + 20 * HOUR)


WITHOUT_LATE = Prepared(_fill)
without_late = begins_with(WITHOUT_LATE)
upgraded = begins_with(Prepared(_fill_upgraded))
last_day_left = begins_with(TO_THE_LAST_DAY)


async def counted_by_an_older_process(database: Database, late: list[Any]) -> None:
    before = version_before.Before(database.dialect)
    await database.transact(before.add, late)
    before.committed()


async def test_a_day_is_found_again_whenever_the_process_that_mends_it_is_killed(
    without_late: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it wrote of the day may not make it look right while its blocks are not."""
    assert await setting(without_late, BLOCKS_TO) > DAY_OF_A_BLOCK
    await counted_by_an_older_process(without_late, LATE)
    assert await sum_proof.differences(without_late) != []
    really, left = sum_anew._put_anew, [0]

    def and_be_killed(*given: Any) -> bool:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return really(*given)

    monkeypatch.setattr(sum_anew, "_AT_ONCE", 1)  # every facet is a part
    monkeypatch.setattr(sum_anew, "_put_anew", and_be_killed)
    steps, mended = 0, 0
    while not mended:
        left[0] = steps
        with suppress(KeyboardInterrupt):
            mended = await sum_upgrade.mend(without_late)
            assert mended == 1
        steps += 1
    assert steps > 3
    assert await sum_proof.differences(without_late) == []
    assert await sum_upgrade.mend(without_late) == 0
    span = ((DAY_OF_A_BLOCK // 8 * 8 + 2) * DAY, (DAY_OF_A_BLOCK // 8 * 8 + 8) * DAY)
    await same(without_late, TRAFFIC, [((), *span, {}), (("user",), *span, {})])


async def test_a_day_that_was_pruned_meanwhile_does_not_count_as_known(
    last_day_left: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Midnight passes at another gateway while this one adds up the oldest day: its hours' costs are not written."""
    await sums.make_days(last_day_left, END)
    await last_day_left.transact(version_before.leave)
    while await sum_upgrade._gather(last_day_left) is not None:
        pass
    await pruned_to(last_day_left, 12)
    floor = END // DAY - 12
    really = sum_anew.added_up

    async def and_prune(among: Database, span: range, pause: float) -> Any:
        found = await really(among, span, pause)
        if span.start // 24 == floor:
            await pruned_to(last_day_left, 11)
        return found

    monkeypatch.setattr(sum_anew, "added_up", and_prune)
    bounds = [floor * DAY + 9 * HOUR + i * DAY for i in range(-1, 3)]
    before = await Queries(last_day_left).costs(bounds, ("team",))
    await sum_upgrade.take_along(last_day_left)
    assert await setting(last_day_left, ROWS_FROM) == (floor + 1) * DAY
    assert await setting(last_day_left, COSTS_FROM) == floor + 1
    assert await Queries(last_day_left).costs(bounds, ("team",)) == before
    with pytest.raises(sum_anew.Pruned):
        await sum_anew.made_anew(last_day_left, floor)
    await last_day_left.transact(sum_upgrade._costed, floor)
    assert await setting(last_day_left, COSTS_FROM) == floor + 1


async def pruned_to(database: Database, days: int) -> None:
    await Retention(database, Kept(requests=days, hours=60, days=100), now=lambda: float(END)).prune()


def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are read under the lock, a whole day of them, keep everybody from counting for seconds."""

    def waits(*_: Any) -> None:
        raise AssertionError("a day is read while nobody may count")

    for where in (sums, sum_upgrade):
        monkeypatch.setattr(where, "rebuild_day", waits)


async def test_a_day_that_grows_is_mended_without_holding_anybody_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is counted while its rows are added up aside is in its sums once."""
    today = [row for row in TRAFFIC if row[1] >= LAST * DAY]
    late = [row for row in today if row[1] < LAST * DAY + 20 * HOUR]
    await write(database, [row for row in TRAFFIC if row not in late[-3:]])
    await sums.make_days(database, LAST * DAY + 20 * HOUR)
    await counted_by_an_older_process(database, late[-1:])
    nobody_waits(monkeypatch)
    really, meanwhile = sum_anew.added_up, [late[-2:-1], late[-3:-2]]

    async def and_count(among: Database, span: range, pause: float) -> Any:
        found = await really(among, span, pause)
        if meanwhile:
            await write(among, meanwhile.pop())
        return found

    monkeypatch.setattr(sum_anew, "added_up", and_count)
    assert await sum_proof.differences(database) != []
    assert await sum_upgrade.mend(database) == 1
    assert not meanwhile
    assert await sum_proof.differences(database) == []
    await made(database, END)
    assert await sum_proof.differences(database) == []
    await same(database, TRAFFIC, [(("team",), FROM, END, {}), (("user",), FROM, END, {})])


async def test_a_day_that_grows_and_is_busy_waits_for_the_next_turn(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is held back for it; what it lacks it has lacked for minutes."""
    late = [row for row in TRAFFIC if LAST * DAY <= row[1] < LAST * DAY + 20 * HOUR]
    await write(database, [row for row in TRAFFIC if row not in late[-4:]])
    await sums.make_days(database, LAST * DAY + 20 * HOUR)
    await counted_by_an_older_process(database, late[-1:])
    nobody_waits(monkeypatch)
    really, meanwhile = sum_anew.added_up, [[row] for row in late[-4:-1]]

    async def and_count(among: Database, span: range, pause: float) -> Any:
        found = await really(among, span, pause)
        if meanwhile:
            await write(among, meanwhile.pop())
        return found

    monkeypatch.setattr(sum_anew, "added_up", and_count)
    await sum_upgrade.mend(database)
    assert await sum_proof.differences(database) != []
    await sum_upgrade.mend(database)
    assert await sum_proof.differences(database) == []


async def test_days_that_the_version_before_made_are_taken_up_without_holding_anybody_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it made the first days of all, and this version has made none."""
    first = LAST - 3
    some = [row for row in TRAFFIC if row[1] >= first * DAY]
    await write(database, some)
    await database.transact(version_before.leave)
    await database.transact(begin_before, first)
    for _ in range(3):
        await database.transact(version_before.make_day, LAST)
    assert (await setting(database, DAYS_TO), await setting(database, LABELS_TO)) == (LAST, 0)
    asked: Any = [(("team",), first * DAY, END, {}), (("user",), first * DAY, END, {})]
    await same(database, some, asked)
    nobody_waits(monkeypatch)
    await sums.make_days(database, END)
    assert await setting(database, LABELS_TO) == END // HOUR
    assert await sum_proof.differences(database) == []
    await same(database, some, asked)


def begin_before(connection: Connection, day: int) -> None:
    turn(connection, DAYS_TO)
    keep(connection, DAYS_TO, day)


async def test_all_names_of_tags_are_found_where_there_are_many(database: Database) -> None:
    """Sums of all values of a tag come first in the index: the steps may not be used up by them for nothing."""
    place, last = COLUMNS.index("tags"), END - 2 * DAY
    some = [row for row in TRAFFIC if row[1] < last]
    named = [json.dumps({f"t{number:03}": "x"}) for number in range(120)]
    await write(database, [(*row[:place], tag, *row[place + 1 :]) for row, tag in zip(some, named, strict=False)])
    await sums.make_days(database, last)
    newest = [(*row[:place], None, *row[place + 1 :]) for row in some[200:400]]
    await write(database, [(f"newest-{i}", last + i, *row[2:]) for i, row in enumerate(newest)])
    assert await tag_names(database) == [f"t{number:03}" for number in range(50)]


@pytest.mark.parametrize("step", ["mend", "gather"])
async def test_a_day_made_after_an_upgrade_is_mended_though_older_ones_are_not_gathered_yet(
    upgraded: Database, step: str
) -> None:
    """Owners gathered of what an older process added to would agree, and hide that users and hours' costs do not."""
    await counted_by_an_older_process(upgraded, LAST_TWO[-1:])  # of a day that grows: only to its hours
    await sums.make_days(upgraded, END)
    await counted_by_an_older_process(upgraded, LAST_TWO[-2:-1])
    while step == "gather" and await sum_upgrade._gather(upgraded) is not None:
        pass
    assert await sum_proof.differences(upgraded) != []
    assert await sum_upgrade.mend(upgraded) == 1
    assert await sum_proof.differences(upgraded) == []
    await same(upgraded, TRAFFIC, [(("team",), FROM, END, {}), (("user",), FROM, END, {})])
