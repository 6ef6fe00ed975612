"""Closing a month seals it: nothing that is posted later changes it, and nothing is lost."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError

from gateway.db.session import Database
from gateway.ledger import checks, closing, grouping, lines, seals
from gateway.ledger import statement as statements
from gateway.ledger.closing import AlreadyClosed, Months, NotClosable, Seal, stored_lines
from gateway.ledger.lines import START, lines_of, totals
from gateway.tasks import Tasks
from policies.money import Usage
from policies.months import following, month_of, span
from tests.clock import FrozenClock
from tests.unit.exports.books import at, entry, fresh, hits, post
from tests.unit.ledger.rig import Rig, call, plan, settled

USAGE = Usage(prompt=1_001, cached=100, completion=333)
SEPTEMBER, OCTOBER, NOVEMBER = at(2026, 9, 15), at(2026, 10, 15), at(2026, 11, 5)


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Database, None]:
    server = str(request.getfixturevalue("postgres_url")) if request.param == "postgresql" else None
    async with fresh(tmp_path, server) as made:
        yield made


def months(database: Database, now: float = NOVEMBER) -> Months:
    return Months(database, now=lambda: now)


async def problems(database: Database) -> list[str]:
    return [*await checks.verify(database), *await seals.verify(database)]


async def spent(database: Database) -> int:
    async with database.read() as connection:
        return int(await connection.scalar(text("SELECT COALESCE(SUM(amount_nano), 0) FROM entry")) or 0)


async def booked(database: Database, month: str) -> int:
    async with database.snapshot() as connection:
        return totals(await lines_of(connection, month)).amount_nano


async def test_a_mistyped_month_hides_none(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list was of the oldest months: one closed by mistake in 1970 took the running one off every page."""
    await post(database, [entry(1, OCTOBER, USAGE)])
    with pytest.raises(NotClosable, match="the first entry of the ledger is of 2026-10"):
        await months(database).close("2006-10", "ann", "although")
    monkeypatch.setattr(statements, "_MOST_MONTHS", 3)
    assert [one.name for one in await statements.months(database, at(2027, 5, 1))] == ["2027-05", "2027-04", "2027-03"]


async def test_a_stream_of_the_month_is_waited_for(tmp_path: Path) -> None:
    """What is under way belongs to the month and has no entry yet; only a person may decide not to wait."""
    async with fresh(tmp_path, None) as database:
        rig = await rig_of(database, tmp_path, OCTOBER)
        ledger = await rig.ledger()
        asked = call()
        slow = await ledger.hold(asked, plan(asked))
        rig.clock.advance(NOVEMBER - OCTOBER)
        assert [blocker.kind for blocker in await months(database).blockers("2026-10")] == ["lost"]
        await ledger.report()
        with pytest.raises(NotClosable, match="attempts of this month under way"):
            await months(database).close("2026-10", "ann")
        ledger.settle(slow, settled(3))
        await ledger.report()
        assert (await months(database).close("2026-10", "ann")).amount_nano == 3
        await rig.close()


async def rig_of(database: Database, home: Path, now: float) -> Rig:
    """Processes on the same database."""
    made = Rig(home, clock=FrozenClock(now))
    await made.database.close()
    made.database = database
    return made


async def test_a_closed_month_says_what_its_entries_say(database: Database) -> None:
    """Lines, totals and digest follow from the entries, and verifying finds nothing."""
    rows = [entry(n, OCTOBER + n, USAGE, ["plain", "odd", "tiered"][n % 3], user=f"u{n % 2}") for n in range(30)]
    rows.append(entry(99, OCTOBER, USAGE, source="estimated", team="beta"))
    await post(database, rows)
    seal = await months(database).close("2026-10", "ann")
    assert (seal.entries, seal.amount_nano) == (31, sum(row["amount_nano"] for row in rows))
    assert (seal.estimated_nano, seal.adjustments_nano) == (rows[-1]["amount_nano"], 0)
    assert (seal.previous, seal.actor, seal.reason) == (START, "ann", None)
    async with database.snapshot() as connection:
        lines = await stored_lines(connection, "2026-10")
        assert lines == await lines_of(connection, "2026-10")
    assert {(line.team, line.user) for line in lines} == {("acme", "u0"), ("acme", "u1"), ("beta", "")}
    assert await problems(database) == []


async def test_a_month_of_too_many_users_is_sealed_per_key(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user per request must not keep a month from being closed; the seal says how fine it is."""
    monkeypatch.setattr(grouping, "_MOST_GROUPS", 5)
    rows = [entry(n, OCTOBER + n, USAGE, user=f"u{n}") for n in range(6)]
    await post(database, rows)
    seal = await months(database).close("2026-10", "ann")
    assert seal.amount_nano == sum(row["amount_nano"] for row in rows)
    async with database.snapshot() as connection:
        lines = await stored_lines(connection, "2026-10")
    assert {(line.key_id, line.user) for line in lines} == {("key1", "")}
    assert await problems(database) == []


async def test_months_are_closed_in_order_and_once(database: Database) -> None:
    """The chain of digests is what proves that no month was taken out."""
    await post(database, [entry(1, SEPTEMBER, USAGE), entry(2, OCTOBER, USAGE), entry(3, NOVEMBER, USAGE)])
    closing = months(database)
    with pytest.raises(NotClosable, match="2026-09 has entries"):
        await closing.close("2026-10", "ann", "in a hurry")
    with pytest.raises(NotClosable, match="2026-11 runs until 2026-12-01"):
        await closing.close("2026-11", "ann", "in a hurry")
    first = await closing.close("2026-09", "ann")
    second = await closing.close("2026-10", "ann")
    assert (first.previous, second.previous) == (START, first.digest)
    with pytest.raises(AlreadyClosed):
        await closing.close("2026-10", "ann")
    with pytest.raises(NotClosable, match="2026-10 is closed already"):
        await closing.close("2026-08", "ann")


async def test_what_comes_late_is_booked_in_the_first_open_month(database: Database, tmp_path: Path) -> None:
    """A sealed month that changed would make every statement of it a lie; an entry that was dropped a loss."""
    rig = await rig_of(database, tmp_path, OCTOBER)
    ledger = await rig.ledger()
    month = month_of(ledger._pulse.instant())  # PostgreSQL has a clock of its own
    after = span(month).end + 5 * 86_400.0
    await rig.charge(ledger, 7)
    asked = call()
    slow = await ledger.hold(asked, plan(asked))
    await ledger.flush()
    rig.clock.advance(after - rig.clock.now())
    closing = months(database, after)
    seal = await closing.close(month, "ann", "the stream will never end")
    assert (seal.amount_nano, seal.reason) == (7, "the stream will never end")

    ledger.settle(slow, settled(5))
    (first,) = [row["id"] for row in await rig.rows("SELECT id FROM entry")]
    await ledger.adjust(first, 3, reason="wrong price", actor="ann")
    await ledger.flush()
    assert (await booked(database, month), await booked(database, following(month))) == (7, 8)
    assert await spent(database) == 15
    async with database.snapshot() as connection:
        late = [line for line in await lines_of(connection, following(month)) if line.kind == "adjustment"]
    assert sorted((line.belongs, line.meter, line.amount_nano) for line in late if line.amount_nano) == [
        (month, "Adjustment", 3),
        (month, "Input Tokens", 1),
        (month, "Output Tokens", 4),
    ]
    assert await closing.seal(month) == seal
    assert await ledger.verify() == []
    await ledger.close()
    await rig.tasks.finish(1.0)
    later = months(database, after + 40 * 86_400)
    assert (await later.close(following(month), "ann", "test")).adjustments_nano == 8
    assert await problems(database) == []


@pytest.mark.parametrize("killed", [False, True])
async def test_a_host_whose_clock_is_behind_books_late_too(postgres_url: str, tmp_path: Path, killed: bool) -> None:
    """Which months are over is the database's to say: else what such a host posts or recovers changes a sealed one."""
    async with fresh(tmp_path, postgres_url) as database:
        rig = await rig_of(database, tmp_path, time.time() - 70 * 86_400)
        ledger = await rig.ledger()
        rig.clock.advance(-40 * 86_400.0)
        month = month_of(ledger.instant())
        asked = call()
        slow = await ledger.hold(asked, plan(asked))
        await ledger.flush()
        rig.clock.advance(40 * 86_400.0)
        seal = await months(database, ledger.instant()).close(month, "ann", "the stream will never end")
        if killed:
            rig.kill(ledger)
            ledger = await rig.ledger()
        else:
            ledger.settle(slow, settled(5))
        await ledger.flush()
        assert (await booked(database, month), await booked(database, following(month))) == (0, await spent(database))
        assert await spent(database) > 0
        assert await months(database).seal(month) == seal
        assert await problems(database) == []
        await rig.close()


async def test_a_process_that_lives_and_is_idle_is_no_reason(tmp_path: Path) -> None:
    """Months are closed while the gateway runs."""
    async with fresh(tmp_path, None) as database:
        rig = await rig_of(database, tmp_path, OCTOBER)
        ledger = await rig.ledger()
        await rig.charge(ledger, 7)
        await ledger.flush()
        rig.clock.advance(NOVEMBER - OCTOBER)
        asked = call()
        hold = await ledger.hold(asked, plan(asked))  # of November
        await ledger._pulse.beat()
        assert await months(database).blockers("2026-10") == []
        ledger.void(hold, "test")
        await ledger.close()
        await rig.tasks.finish(1.0)


async def test_what_waits_for_the_database_keeps_the_month_open(tmp_path: Path) -> None:
    """Ended attempts that are not shipped yet are as little in the entries as those under way."""
    async with fresh(tmp_path, None) as database:
        rig = await rig_of(database, tmp_path, OCTOBER)
        ledger = await rig.ledger()
        await rig.charge(ledger, 7)
        rig.clock.advance(NOVEMBER - OCTOBER)
        await ledger._pulse.beat()
        assert [blocker.kind for blocker in await months(database).blockers("2026-10")] == ["process"]
        await ledger.flush()
        await ledger._pulse.beat()
        assert await months(database).blockers("2026-10") == []
        await ledger.close()
        await rig.tasks.finish(1.0)


async def test_contradictions_keep_the_month_open(database: Database) -> None:
    """Somebody should have looked at them before the sum is final."""
    await post(database, [entry(1, OCTOBER, USAGE)])
    async with database.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO entry_conflict (entry_id, digest, at, amount_nano, source) "
                "VALUES ('r000001.1', 'x', 1, 2, 'provider')"
            )
        )
    assert [blocker.kind for blocker in await months(database).blockers("2026-10")] == ["conflict"]


async def test_a_close_that_broke_off_is_finished_by_the_next(database: Database) -> None:
    """A crash between the mark and the digest leaves a month that can be closed, and that is told until it is."""
    await post(database, [entry(1, OCTOBER, USAGE)])
    async with database.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO month_seal (month, began, actor, entries, amount_nano, estimated_nano, adjustments_nano) "
                "VALUES ('2026-10', 1, 'bob', 0, 0, 0, 0)"
            )
        )
    assert await problems(database) == ["2026-10 was not closed to the end: close it again"]
    seal = await months(database).close("2026-10", "ann")
    assert (seal.actor, seal.entries) == ("ann", 1)
    assert await problems(database) == []


async def test_a_large_close_that_broke_off_is_finished_by_the_next(database: Database) -> None:
    """Its 300,000 lines went in one statement, longer than a statement may take: that month stayed open for ever."""
    await post(database, [entry(1, OCTOBER, USAGE)])
    async with database.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO month_seal (month, began, actor, entries, amount_nano, estimated_nano, adjustments_nano) "
                "VALUES ('2026-10', 1, 'bob', 0, 0, 0, 0)"
            )
        )
        line = (
            'INSERT INTO month_line (month, number, kind, belongs, team, project, key_id, "user", provider, model, '
            "meter, quantity, amount_nano, estimated_nano, entries) "
            "VALUES ('2026-10', :number, 'own', '2026-10', 't', 'p', 'k', '', 'v', 'm', 'x', 1, 1, 0, 1)"
        )
        await connection.execute(text(line), [{"number": number} for number in range(2_400)])
        hit = "INSERT INTO month_hit VALUES ('2026-10', 20000, :number, 't', 'p', 'k', 'm', 'exact', 1, 1)"
        await connection.execute(text(hit), [{"number": number} for number in range(1_200)])
        if database.dialect == "postgresql":  # each as slow as the guard of a sealed month is on a busy machine
            slow = "BEGIN PERFORM pg_sleep(0.001); RETURN OLD; END"
            await connection.execute(text(f"CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS '{slow}'"))
            await connection.execute(
                text("CREATE TRIGGER slow BEFORE DELETE ON month_line FOR EACH ROW EXECUTE FUNCTION slow()")
            )
    await hits(database)
    seal = await months(database).close("2026-10", "ann")
    assert (seal.actor, seal.entries) == ("ann", 1)
    assert await problems(database) == []


CHANGES = [
    "UPDATE month_line SET amount_nano = amount_nano + 1",
    "DELETE FROM month_line WHERE number = 0",
    "UPDATE month_hit SET requests = requests + 1",
    "DELETE FROM month_hit",
    "INSERT INTO month_hit SELECT month, day, number + 9, team, project, key_id, model, kind, 1, 1 FROM month_hit",
    (
        "INSERT INTO month_line SELECT month, number + 9, kind, belongs, team, project, key_id, '', provider, model, "
        "meter, 1, 1, 1, 1 FROM month_line"
    ),
    "UPDATE month_seal SET actor = 'mallory'",
    "DELETE FROM month_seal",
]


@pytest.mark.parametrize("change", CHANGES)
async def test_the_database_refuses_to_change_a_closed_month(database: Database, change: str) -> None:
    """Not even somebody at the database's own prompt changes a sealed month without taking the guard away first."""
    await post(database, [entry(1, OCTOBER, USAGE)])
    await hits(database)
    await months(database).close("2026-10", "ann")
    with pytest.raises((DBAPIError, IntegrityError), match="sealed months never change"):
        async with database.begin() as connection:
            await connection.execute(text(change))


TAMPERING = [
    ("UPDATE month_line SET amount_nano = amount_nano + 1 WHERE number = 0", "digest does not follow"),
    ("UPDATE month_line SET model = 'other'", "digest does not follow"),
    ("DELETE FROM month_line WHERE number = 1", "digest does not follow"),
    ("UPDATE month_hit SET avoided_nano = avoided_nano + 1", "its hits were changed"),
    ("DELETE FROM month_hit", "its hits were changed"),
    ("UPDATE month_seal SET amount_nano = amount_nano + 1", "totals are not those of its lines"),
    ("UPDATE month_seal SET facts = '{}'", "digest does not follow"),
    ("UPDATE month_seal SET previous = 'abc'", "not chained"),
    ("INSERT INTO late_entry (entry_id, month, belongs, at) SELECT id, '2026-11', '2026-10', 1 FROM entry", "USD more"),
]


@pytest.mark.parametrize(("change", "told"), TAMPERING)
async def test_tampering_is_found(tmp_path: Path, change: str, told: str) -> None:
    """Verifying must find a change that was made past the guard, in every part of a sealed month."""
    async with fresh(tmp_path, None) as database:
        await post(database, [entry(1, OCTOBER, USAGE)])
        await hits(database)
        await months(database).close("2026-10", "ann")
        guards = ("seal_is_never_changed", "sealed_line_changed", "sealed_line_deleted")
        async with database.begin() as connection:
            for name in (*guards, "sealed_hit_changed", "sealed_hit_deleted"):
                await connection.execute(text(f"DROP TRIGGER {name}"))
            await connection.execute(text(change))
        found = await problems(database)
        assert any(told in problem for problem in found), found


async def test_an_entry_slipped_into_a_closed_month_is_found(database: Database) -> None:
    """Entries are posted by the gateway, which books late ones elsewhere; whatever else adds one is told."""
    await post(database, [entry(1, OCTOBER, USAGE)])
    await months(database).close("2026-10", "ann")
    await post(database, [entry(2, OCTOBER, USAGE)])
    assert any("2026-10: own / acme / web / gpt-5-mini" in problem for problem in await problems(database))


async def test_posting_while_closing_loses_nothing(database: Database, tmp_path: Path) -> None:
    """Whoever posts for a month at the moment it is closed is either in its sums or late, never neither or both."""
    rig = await rig_of(database, tmp_path, OCTOBER)
    ledgers = [await rig.ledger() for _ in range(2)]
    month = month_of(ledgers[0]._pulse.instant())
    after = span(month).end + 5 * 86_400.0
    holds: list[tuple[Any, Any]] = []
    for number in range(40):
        asked = call()
        holds.append((ledgers[number % 2], await ledgers[number % 2].hold(asked, plan(asked))))
    rig.clock.advance(after - rig.clock.now())

    async def settle() -> None:
        for ledger, hold in holds:
            ledger.settle(hold, settled(3))
            await ledger._shipper.ship_all()

    async def close() -> Seal:
        await asyncio.sleep(0.01)
        return await months(database, after).close(month, "ann", "now")

    _, seal = await asyncio.gather(settle(), close())
    assert seal.amount_nano + await booked(database, following(month)) == 120 == await spent(database)
    assert await ledgers[0].verify() == []
    rig.ledgers.clear()
    for ledger in ledgers:
        await ledger.close()
    await rig.tasks.finish(1.0)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.integers(0, 120), st.booleans(), st.integers(0, 500)), max_size=25), st.data())
def test_every_nano_usd_is_in_exactly_one_month(
    tmp_path_factory: pytest.TempPathFactory, posts: list[tuple[int, bool, int]], data: st.DataObject
) -> None:
    """In whatever order entries come and months are closed, the months together are the ledger."""
    when = sorted(data.draw(st.lists(st.integers(0, len(posts)), max_size=3)))

    async def run() -> None:
        async with fresh(tmp_path_factory.mktemp("months"), None) as database:
            sealed: list[str] = []
            begun = entry(99, SEPTEMBER, USAGE, amount_nano=0)  # before the first entry there is nothing to close
            await database.transact(_post_as_the_gateway_does, begun)
            for number, (day, _, delta) in enumerate(posts):
                if number in when:
                    sealed += await _close_next(database)
                row = entry(number, SEPTEMBER + day * 86_400, USAGE, amount_nano=delta, source="estimated")
                await database.transact(_post_as_the_gateway_does, row)
            names = [f"2026-{number:02}" for number in range(9, 13)] + ["2027-01", "2027-02"]
            assert sum([await booked(database, name) for name in names]) == await spent(database)
            assert await seals.verify(database) == []

    asyncio.run(run())


async def _close_next(database: Database) -> list[str]:
    known = await months(database).seals()
    name = "2026-09" if not known else ["2026-10", "2026-11", "2026-12"][len(known) - 1]
    await months(database, at(2027, 3, 1)).close(name, "ann", "test")
    return [name]


def _post_as_the_gateway_does(connection: Any, row: dict[str, Any]) -> None:
    from sqlalchemy import insert

    from gateway.db.models import Entry, PriceVersion
    from gateway.ledger.late import book
    from tests.unit.exports.books import price_row

    if connection.scalar(text("SELECT COUNT(*) FROM price_version")) == 0:
        connection.execute(insert(PriceVersion), [price_row("plain")])
    connection.execute(insert(Entry), [row])
    book(connection, [(row["id"], row["admitted"])], at(2027, 3, 1))


async def test_a_large_month_is_added_up_away_from_the_event_loop(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A month of many users froze every request of its process for seconds."""
    here, threads = threading.get_ident(), set[int]()

    def noting(of: ModuleType, name: str) -> None:
        work = getattr(of, name)

        def noted(*given: Any) -> Any:
            threads.add(threading.get_ident())
            return work(*given)

        monkeypatch.setattr(of, name, noted)

    await post(database, [entry(1, OCTOBER, USAGE)])
    noting(grouping, "_add")
    noting(lines, "in_nano")
    noting(closing, "digest")
    noting(seals, "digest")
    noting(statements, "_of_team")
    await months(database).close("2026-10", "ann")
    assert await seals.verify(database) == []
    await statements.statement(database, "2026-10", NOVEMBER)
    assert threads
    assert here not in threads


class Paused(Database):
    """Its transactions of a name wait for their turn: `at` is (name, what it waits for), each for once."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.at: list[tuple[str, asyncio.Event]] = []
        self.reached = asyncio.Event()

    async def transact(self, work: Any, *args: Any, **kwargs: Any) -> Any:
        if self.at and work.__name__ == self.at[0][0]:
            _, turn = self.at.pop(0)
            self.reached.set()
            await turn.wait()
        return await super().transact(work, *args, **kwargs)


async def test_two_who_close_a_month_at_once_do_not_take_its_lines_away(database: Database) -> None:
    """One begins anew, which takes the lines out, while the other seals: a seal without its lines is beyond repair."""
    await post(database, [entry(n, OCTOBER + n, USAGE) for n in range(3)])
    shared, tasks = Paused(database.url.render_as_string(hide_password=False)), Tasks()
    first, second = asyncio.Event(), asyncio.Event()
    shared.at = [("_finish", first), ("_write", second)]
    one = tasks.spawn(months(shared).close("2026-10", "ann"), "one")
    await asyncio.wait_for(shared.reached.wait(), 60)
    shared.reached.clear()
    two = tasks.spawn(months(shared).close("2026-10", "bob"), "two")
    await asyncio.wait_for(shared.reached.wait(), 60)
    first.set()
    await asyncio.wait([one])
    second.set()
    await asyncio.wait([two])
    assert isinstance(one.exception(), AlreadyClosed)
    assert two.result().actor == "bob"
    await shared.close()
    async with database.snapshot() as connection:
        assert await stored_lines(connection, "2026-10") == await lines_of(connection, "2026-10") != []
    assert await problems(database) == []
