"""Sums, listings, export and retention, on both databases."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from gateway.bench.traffic import Shape, rows
from gateway.db import usage
from gateway.db.queries import Pruned, Queries
from gateway.db.session import Database
from gateway.db.sums import COLUMNS, DAY, Row, day_starts
from gateway.ledger import sum_proof, sums
from gateway.ledger.request_rows import RequestRows
from gateway.ledger.retention import Kept, Retention
from gateway.routes import spend_view
from tests.clock import FrozenClock
from tests.unit.ledger.rig import call, outcome, running
from tests.unit.ledger.sum_world import counted, numbers

SHAPE = Shape(requests=900, days=4, keys=4, users=40, customers=12)
TRAFFIC = [row for some in rows(SHAPE) for row in some]
BEGAN = SHAPE.end - SHAPE.days * DAY


@pytest.fixture
async def database(url: str) -> AsyncGenerator[Database, None]:
    made = Database(url)
    await made.start()
    yield made
    await made.close()


async def write(database: Database, some: list[Row], writer: RequestRows | None = None) -> int:
    writer, new = writer or RequestRows(database.dialect), 0

    def add(connection: Connection, batch: list[Row]) -> int:
        if database.dialect == "postgresql":  # a slow machine's wait is no fault; a circle is, and is told as one
            connection.execute(text("SET LOCAL lock_timeout = 0"))
            connection.execute(text("SET LOCAL statement_timeout = 0"))
        return writer.add(connection, batch)

    for i in range(0, len(some), 100):
        new += await database.transact(add, some[i : i + 100])
        writer.committed()
    return new


def as_told(row: Row) -> dict[str, Any]:
    known = dict(zip(COLUMNS, row, strict=True))
    return {**known, "tags": None if known["tags"] is None else _json(known["tags"])}


def _json(encoded: str) -> dict[str, str]:
    return dict(pair.replace('"', "").split(":") for pair in encoded.strip("{}").split(","))


async def same(database: Database, *asked: Any) -> None:
    told = [as_told(row) for row in TRAFFIC]
    for group_by, start, end, where in asked:
        found = await Queries(database).usage(group_by, start, end, where)
        assert numbers(found) == counted(told, {}, (group_by, start, end, where)), (group_by, where)


async def test_writers_that_count_the_same_hours_at_once(database: Database) -> None:
    """Several workers write batches that overlap, in every order: nothing is lost, doubled or locked in a circle."""
    handles = [RequestRows(database.dialect) for _ in range(4)]
    shares = [TRAFFIC[:540], TRAFFIC[180:720][::-1], TRAFFIC[360:], TRAFFIC[::-1]]
    written = await asyncio.gather(
        *(write(database, some, writer) for some, writer in zip(shares, handles, strict=True))
    )
    assert sum(written) == len(TRAFFIC)
    assert await sum_proof.differences(database) == []
    await same(database, ((), BEGAN, SHAPE.end, {}), (("team", "model"), BEGAN, SHAPE.end, {}))


async def test_days_are_made_while_others_write(database: Database) -> None:
    """A request that arrives while its day is being made is counted once: by the maker or by its writer."""
    await write(database, TRAFFIC[:500])
    later = write(database, TRAFFIC[500:])
    await asyncio.gather(later, sums.make_days(database, SHAPE.end), sums.make_days(database, SHAPE.end))
    for _ in range(2):
        await sums.make_days(database, SHAPE.end)
    assert await sum_proof.differences(database) == []
    middle = BEGAN + DAY * 1.5
    await same(
        database,
        (("user",), BEGAN, SHAPE.end, {}),
        (("tag:customer", "team"), BEGAN, SHAPE.end, {}),
        (("tag:feature",), middle, SHAPE.end, {"model": "chat"}),
        (("day", "source"), BEGAN, middle + 17.25, {}),
        (("hour",), middle, middle + 7_200, {}),
        (("model",), BEGAN, SHAPE.end, {"user": ""}),
    )


async def test_a_wrong_sum_is_found_and_mended(database: Database) -> None:
    """A proof that cannot fail is none: one changed number is named beside others, and rebuilding mends them."""
    await write(database, TRAFFIC)
    await sums.make_days(database, SHAPE.end)
    known = 0
    for change in (
        "UPDATE usage_hour SET cost_nano = cost_nano + 1 WHERE starts = (SELECT MIN(starts) FROM usage_hour)",
        "DELETE FROM usage_day WHERE facet = 'user'",
        "UPDATE usage_hour SET h09 = h09 + 1 WHERE facet = 'first'",
        "DELETE FROM request WHERE id = (SELECT MAX(id) FROM request)",
    ):
        async with database.begin() as connection:
            await connection.execute(text(change))
        found = len(await sum_proof.differences(database, most=100_000))
        assert found > known, change
        known = found
    assert await sums.rebuild(database) == SHAPE.days
    assert await sum_proof.differences(database) == []


async def test_questions_of_one_shape_share_a_statement_and_no_value(database: Database) -> None:
    """To put it together takes longer than to answer it; a value left in it would be the next question's."""
    await write(database, TRAFFIC)
    await sums.make_days(database, SHAPE.end)
    first = BEGAN + 0.4 * DAY
    asked: list[Any] = [
        (("user",), start, SHAPE.end - 17.5, {"team": team, "status": status})
        for start, team, status in (
            (first, "search", "200"),
            (first, "search", "502"),
            (first, "support", "200"),
            (first + 3_600, "nobody", "none"),
        )
    ]
    put_together = usage._stated.cache_info().misses
    await same(database, *asked)
    assert usage._stated.cache_info().misses <= put_together + 1
    bounds = [BEGAN + i * DAY for i in range(SHAPE.days + 1)]
    for by in ("team", "tag:customer"):
        costs = await Queries(database).costs(bounds, (by,))
        later = await Queries(database).costs([at + DAY for at in bounds], (by,))
        assert [_spent(one) for one in later[:-1]] == [_spent(one) for one in costs[1:]]
        some = sorted({name for one in costs for (name,) in one if name})[:2]
        for among in some:
            (one,) = {name for found in await Queries(database).costs(bounds, (by,), among=[among]) for name in found}
            assert one == (among,)


async def test_a_series_of_nothing_is_empty(database: Database) -> None:
    """However many buckets it has; only a total of all is told though nothing happened."""
    for days in (1, 2):
        bounds = [BEGAN + i * DAY for i in range(days + 1)]
        assert await Queries(database).series(bounds) == [[]] * days
    assert [row.requests for row in await Queries(database).usage((), BEGAN, SHAPE.end)] == [0]


async def test_series_of_a_zone(database: Database) -> None:
    """Local days, also of a zone half an hour off: each bucket tells what its rows tell."""
    await write(database, TRAFFIC)
    await sums.make_days(database, BEGAN + 2 * DAY)
    for zone in ("UTC", "America/New_York", "Asia/Kolkata"):
        bounds = day_starts(zone, BEGAN, SHAPE.end)
        found = await Queries(database).series(bounds, ("team",))
        told = [as_told(row) for row in TRAFFIC]
        assert [numbers(rows) for rows in found] == [
            counted(told, {}, (("team",), start, end, {})) for start, end in pairwise(bounds)
        ], zone


@pytest.mark.parametrize("by", ["team", "provider", "user", "tag:feature"])
async def test_costs_of_some_groups_are_those_of_their_rows(database: Database, by: str) -> None:
    """The quick way to the amounts of a chart must tell what the long one does, also of requests without a name."""
    await write(database, TRAFFIC)
    await sums.make_days(database, BEGAN + 2 * DAY)
    queries = Queries(database)
    for zone in ("UTC", "Asia/Kolkata"):
        bounds = day_starts(zone, BEGAN, SHAPE.end)
        told = [
            {tuple(row.group.values()): row.cost_nano for row in rows} for rows in await queries.series(bounds, (by,))
        ]
        assert [_spent(one) for one in await queries.costs(bounds, (by,))] == [_spent(one) for one in told]
        names = sorted({name for one in told for (name,) in one})
        for among in ([names[0]], names[1:3], ["", *names[:2]], ["nobody"], []):
            found = await queries.costs(bounds, (by,), among=among)
            wanted = [{key: cost for key, cost in one.items() if key[0] in among} for one in told]
            assert [_spent(one) for one in found] == [_spent(one) for one in wanted], (zone, among)


def _spent(costs: dict[tuple[str, ...], int]) -> dict[tuple[str, ...], int]:
    return {key: cost for key, cost in costs.items() if cost}


async def test_a_chart_of_more_groups_than_an_answer_holds_adds_up(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand users on thirty days are more than one answer has; the picture must still be of all that was spent."""
    await write(database, TRAFFIC)
    await sums.make_days(database, BEGAN + 2 * DAY)
    for place in (usage, spend_view):
        monkeypatch.setattr(place, "MOST_GROUPS", 20)
    days = [datetime.fromtimestamp(at, UTC).date().isoformat() for at in (BEGAN, SHAPE.end - 1)]
    for by in ("user", "tag:customer", "team"):
        view = spend_view.read_view({"by": by, "from": days[0], "to": days[1]}, SHAPE.end)
        found = await spend_view.spending(Queries(database), view, {})
        spent = [
            sum(as_told(row)["cost_nano"] for row in TRAFFIC if start <= row[1] < start + DAY)
            for start in range(int(BEGAN), int(SHAPE.end), DAY)
        ]
        assert [sum(bucket.amounts) for bucket in found.buckets] == spent, by
        assert found.total.cost_nano == sum(spent)
        assert len(found.lines) <= 20


async def test_listings_are_the_newest_that_match(database: Database) -> None:
    """A filter must show what a look at every row would have shown, page after page."""
    await write(database, TRAFFIC)
    await sums.make_days(database, BEGAN + 2 * DAY)
    queries, told = Queries(database), sorted((as_told(row) for row in TRAFFIC), key=lambda one: -one["at"])
    user = next(one["user"] for one in told[::-1] if one["user"])
    for where, failed in (
        ({}, False),
        ({}, True),
        ({"team": "search"}, False),
        ({"key": "k0000002"}, True),
        ({"model": "embed", "source": "shared"}, False),
        ({"user": user}, False),
        ({"user": user, "tag:feature": "faq"}, False),
        ({"user": "", "status": "502"}, False),
        ({"model": "nobody"}, False),
    ):
        wanted = [
            one["id"]
            for one in told
            if (not failed or one["status"] >= 400) and counted([one], {}, ((), 0.0, 1e11, where))
        ]
        shown: list[str] = []
        while len(page := await queries.recent_requests(40, shown[-1] if shown else None, where, failed)) == 40:
            shown += [row.id for row in page]
        assert [*shown, *(row.id for row in page)] == wanted, (where, failed)


async def test_an_export_has_every_row_once(database: Database) -> None:
    """Pages by key: rows of the same instant at the edge of a page are neither lost nor repeated."""
    together = [(f"{i:036}", BEGAN, *row[2:]) for i, row in enumerate([*TRAFFIC, *TRAFFIC[:200]])]
    await write(database, together)
    pages = [page async for page in Queries(database).export(BEGAN, SHAPE.end)]
    assert [row.id for page in pages for row in page] == [row[0] for row in together]
    assert max(len(page) for page in pages) <= 500
    some = [page async for page in Queries(database).export(BEGAN, SHAPE.end, {"team": "search"})]
    assert sum(map(len, some)) == sum(row[COLUMNS.index("team")] == "search" for row in together)


async def test_pruning_keeps_what_was_summed(database: Database) -> None:
    """Rows go, and the numbers of their days stay; what needs the rows is refused with the reason."""
    await write(database, TRAFFIC)
    await sums.make_days(database, SHAPE.end)
    queries = Queries(database)
    before = [await queries.usage((name,), BEGAN, SHAPE.end) for name in ("day", "user", "tag:customer", "status")]
    keeping = Retention(database, Kept(requests=2, hours=3, days=100, explanations=1), now=lambda: SHAPE.end)
    assert await keeping.prune() > 0
    assert await keeping.prune() == 0
    assert [
        await queries.usage((name,), BEGAN, SHAPE.end) for name in ("day", "user", "tag:customer", "status")
    ] == before
    assert await sum_proof.differences(database) == []
    assert len([row async for page in queries.export(0.0, SHAPE.end) for row in page]) < len(TRAFFIC)
    with pytest.raises(Pruned, match="whole hours"):
        await queries.usage((), BEGAN + 1.5 * DAY + 7, SHAPE.end)
    with pytest.raises(Pruned, match="whole days"):
        await queries.usage(("hour",), BEGAN, SHAPE.end)
    assert await queries.usage(("hour",), BEGAN + 2 * DAY, SHAPE.end)
    # A batch that comes again after its rows were pruned was counted before: it must not be once more.
    assert await write(database, TRAFFIC[:50]) == 0
    assert [await queries.usage((name,), BEGAN, SHAPE.end) for name in ("day",)] == before[:1]
    forgetting = Retention(database, Kept(requests=1, hours=1, days=1, explanations=0), now=lambda: SHAPE.end + 9 * DAY)
    await sums.make_days(database, SHAPE.end + 9 * DAY)
    await forgetting.prune()
    assert (await queries.usage())[0].requests == 0
    async with database.read() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM usage_who")) == 0


async def test_a_name_that_was_pruned_is_put_back_by_who_remembers_it(database: Database) -> None:
    """A process runs for months: what it counts under a name that went meanwhile must not be lost from every page."""
    writer, later = RequestRows(database.dialect), SHAPE.end + 9 * DAY
    for moved in (0.0, later - BEGAN):
        batch = [(f"{int(moved)}-{row[0]}"[:36], row[1] + moved, *row[2:]) for row in TRAFFIC[:50]]
        await database.transact(writer.add, batch, new=True)
        writer.committed()
        if not moved:
            await sums.make_days(database, later)
            forgetting = Retention(database, Kept(requests=1, hours=1, days=1), now=lambda: later)
            assert await forgetting.prune() > 0
    audits = sum(row[COLUMNS.index("cache")] == "audit" for row in TRAFFIC[:50])
    assert (await Queries(database).usage())[0].requests == 50 - audits
    assert await sum_proof.differences(database) == []


async def test_requests_of_before_the_sums_are_added_up_at_the_first_start(
    url: str, tmp_path: Path, clock: FrozenClock
) -> None:
    """An upgrade must not make a year of usage disappear from the pages."""
    from gateway.db import migrate

    async with running(tmp_path, url, clock) as rig:
        ledger = await rig.ledger()
        for _ in range(3):
            ledger.record(outcome(call(), cost_nano=5))
        await ledger.close()
        rig.ledgers.clear()
        await migrate.downgrade(url, "0002")
        await migrate.upgrade(url)
        await rig.ledger()
        assert (await Queries(rig.database).usage())[0].cost_nano == 15
        assert await sum_proof.differences(rig.database) == []


async def test_a_reply_that_was_lost_counts_once(tmp_path: Path, url: str, clock: FrozenClock) -> None:
    """The batch was committed and nobody heard: the recorder writes it again."""
    async with running(tmp_path, url, clock) as rig:
        ledger = await rig.ledger()
        recorder = ledger._recorder
        asked = call(user="ann")
        ledger.record(outcome(asked, cost_nano=5))
        pending = list(recorder._rows)
        await ledger.flush()
        recorder._rows.extend(pending)
        ledger.record(outcome(call(), cost_nano=2))
        await ledger.flush()
        total = (await Queries(rig.database).usage())[0]
        assert (total.requests, total.cost_nano) == (2, 7)
        assert recorder.dropped == 0
