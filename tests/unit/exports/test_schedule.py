"""Exports by themselves: each period once, whole or not there, and told when one could not be written."""

import asyncio
import csv
from decimal import Decimal
from pathlib import Path

import pytest
from pydantic import ValidationError

from gateway.db.session import Database
from gateway.exports.schedule import Scheduler, _take, runs
from gateway.ledger.closing import Months
from gateway.settings import ExportSettings
from policies.money import Usage
from tests.clock import FrozenClock
from tests.empty_database import fresh_postgres
from tests.unit.exports.books import at, entry, post

USAGE = Usage(prompt=1_000, completion=300)


def no_list(*_: object) -> None:
    """No model is in it."""


def scheduler(database: Database, clock: FrozenClock, *jobs: ExportSettings) -> Scheduler:
    return Scheduler(database, jobs, lambda found: found.month.name.encode(), listed=no_list, now=clock.now)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


async def test_days_are_written_once_and_caught_up(database: Database, tmp_path: Path) -> None:
    """After a weekend without a gateway every day has its file."""
    await post(database, [entry(n, at(2026, 10, day, 12), USAGE) for n, day in enumerate((29, 30, 31))])
    clock, folder = FrozenClock(at(2026, 10, 30, 6)), tmp_path / "out"
    daily = ExportSettings(name="books", what="entries", format="csv", every="day", folder=folder)
    writer = scheduler(database, clock, daily)
    assert [await writer.turn(), await writer.turn()] == [1, 0]
    assert names(folder) == ["books-2026-10-29.csv"]
    clock.advance(3 * 86_400)
    assert [await writer.turn() for _ in range(4)] == [1, 1, 1, 0]
    assert names(folder) == [f"books-2026-{day}.csv" for day in ("10-29", "10-30", "10-31", "11-01")]
    with (folder / "books-2026-10-31.csv").open(newline="") as file:
        assert [row["request_id"] for row in csv.DictReader(file)] == ["r000002"]
    last = (await runs(database))["books"]
    assert (last.period, last.error, last.files) == ("2026-11-01", None, [str(folder / "books-2026-11-01.csv")])


async def test_a_month_is_written_when_it_is_over_and_when_it_is_closed(database: Database, tmp_path: Path) -> None:
    """Finance loads the sealed month, and does not wait for it to see the first figures."""
    await post(database, [entry(1, at(2026, 10, 15), USAGE)])
    clock, folder = FrozenClock(at(2026, 11, 1, 1)), tmp_path / "out"
    jobs = [
        ExportSettings(name="focus", what="focus", format="parquet", every="month", folder=folder),
        ExportSettings(name="bill", what="statement", every="month", folder=folder),
    ]
    writer = scheduler(database, clock, *jobs)
    assert [await writer.turn(), await writer.turn()] == [2, 0]
    assert names(folder) == ["bill-2026-10.csv", "focus-2026-10.parquet"]
    await Months(database, now=clock.now).close("2026-10", "ann")
    assert [await writer.turn(), await writer.turn()] == [2, 0]
    assert (await runs(database))["focus/sealed"].period == "2026-10"


async def test_of_months_closed_one_after_another_each_is_written(database: Database, tmp_path: Path) -> None:
    """Finance closes a quarter in one afternoon: only the last of its months was written as it was closed."""
    await post(database, [entry(month, at(2026, month, 15), USAGE) for month in (8, 9, 10)])
    clock, folder = FrozenClock(at(2026, 11, 1, 1)), tmp_path / "out"
    writer = scheduler(database, clock, ExportSettings(name="bill", what="statement", every="month", folder=folder))
    assert [await writer.turn(), await writer.turn()] == [1, 0]
    assert set(await runs(database)) == {"bill"}
    for month in ("2026-08", "2026-09", "2026-10"):
        await Months(database, now=clock.now).close(month, "ann")
    assert [await writer.turn() for _ in range(4)] == [1, 1, 1, 0]
    assert names(folder) == ["bill-2026-08.csv", "bill-2026-09.csv", "bill-2026-10.csv"]


async def test_a_daily_dataset_is_of_the_month_so_far(database: Database, tmp_path: Path) -> None:
    """The file of a month grows until the month is over."""
    await post(database, [entry(n, at(2026, 10, day, 12), USAGE) for n, day in enumerate((5, 6))])
    clock = FrozenClock(at(2026, 10, 6, 1))
    writer = scheduler(database, clock, ExportSettings(name="f", every="day", folder=tmp_path / "out"))
    for _ in range(2):
        assert await writer.turn() == 1
        clock.advance(86_400)
    with (tmp_path / "out" / "f-2026-10.csv").open(newline="") as file:
        assert sum(Decimal(row["BilledCost"]) for row in csv.DictReader(file)) == Decimal("0.00066")


async def test_two_processes_write_a_period_once(database: Database, tmp_path: Path) -> None:
    """Where several workers share the database, one of them takes the run."""
    clock = FrozenClock(at(2026, 10, 6, 1))
    job = ExportSettings(name="f", every="day", folder=tmp_path / "out")
    both = await asyncio.gather(*(scheduler(database, clock, job).turn() for _ in range(2)), return_exceptions=True)
    assert sum(done for done in both if isinstance(done, int)) == 1


async def test_a_run_that_failed_is_told_and_tried_again(database: Database, tmp_path: Path) -> None:
    """A full disk on Sunday must not leave a gap that is found at the end of the year."""
    clock, folder = FrozenClock(at(2026, 10, 6, 1)), tmp_path / "out"
    folder.write_text("a file where the folder should be")
    writer = scheduler(database, clock, ExportSettings(name="f", every="day", folder=folder))
    assert await writer.turn() == 0
    last = (await runs(database))["f"]
    assert (last.period, last.files, "FileExistsError" in (last.error or "")) == ("2026-10-05", [], True)
    folder.unlink()
    assert await writer.turn() == 0  # not at once
    clock.advance(901)
    assert await writer.turn() == 1
    assert (names(folder), (await runs(database))["f"].error) == (["f-2026-10.csv"], None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"what": "statement", "format": "parquet"},
        {"what": "focus", "format": "jsonl"},
        {"name": "../x"},
        {"every": "hour"},
    ],
)
def test_an_export_that_cannot_be_written_is_no_configuration(tmp_path: Path, wrong: dict[str, str]) -> None:
    """Found at the start, not in the night."""
    with pytest.raises(ValidationError):
        ExportSettings.model_validate({"name": "f", "folder": str(tmp_path), **wrong})


async def test_the_first_run_of_an_export_is_taken_by_one_of_two_hosts(postgres_url: str) -> None:
    """No row is there that could be locked, so the one who came second logged `exports wait for the database`."""
    database = Database(await fresh_postgres(postgres_url))
    await database.start()
    taking = ("books", "day", None, at(2026, 10, 30, 6))
    async with database.begin() as first:
        assert await first.run_sync(_take, *taking) == "2026-10-29"
        second = asyncio.get_running_loop().create_task(database.transact(_take, *taking))
        await asyncio.sleep(0.1)  # it has found no row, and waits for this transaction
    assert await second is None
    await database.close()
