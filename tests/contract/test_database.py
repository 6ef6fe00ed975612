"""One contract for both databases: migrations, transactions, limits under concurrency, queries, append-only entries."""

import asyncio
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec import structs
from sqlalchemy import insert, select, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from gateway.db import migrate
from gateway.db.models import Base, Setting
from gateway.db.queries import DIMENSIONS, Queries
from gateway.db.session import Database, database_url, parse
from gateway.errors import BudgetExhausted
from gateway.ledger import Hold, Ledger, Settlement, entries, leases
from gateway.ledger.recompute import recompute
from gateway.price_terms import HoursWanted, Terms
from gateway.prices import PriceBook, PriceSetting
from gateway.settings import Settings
from policies.budget import Period, runs_out
from policies.money import Usage
from tests.clock import FrozenClock
from tests.empty_database import empty_postgres, fresh_postgres
from tests.unit.ledger.rig import Rig, budget, call, outcome, plan, running, settled


@pytest.fixture(params=["sqlite", "postgresql"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'nearhit.db'}"
    return await empty_postgres(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def rig(url: str, tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[Rig, None]:
    async with running(tmp_path, url, clock) as made:
        yield made


async def test_schema_goes_up_and_down(url: str) -> None:
    """Every revision can be applied to an empty database and taken back without a trace."""
    assert await migrate.current(url) is None
    assert await migrate.upgrade(url) == migrate.head()
    await migrate.downgrade(url, "base")
    assert await migrate.current(url) is None
    assert await migrate.upgrade(url) == migrate.head()


async def test_migrations_make_the_schema_of_the_models(url: str) -> None:
    """What migrations build is what the code expects: no column or index is missing or left over."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    database = Database(url)
    await database.start()

    def differences(connection: Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(connection), Base.metadata))

    async with database.begin() as connection:
        found = await connection.run_sync(differences)
    await database.close()
    assert found == []


async def test_a_stale_schema_is_refused(url: str) -> None:
    """Serving on an older schema would fail at the first write; the refusal says what to run."""
    database = Database(url)
    with pytest.raises(migrate.StaleSchema, match="nearhit db upgrade"):
        await database.start(upgrade=False)
    await database.close()


async def test_workers_that_start_together_upgrade_once(postgres_url: str) -> None:
    """N workers start at the same moment; one migrates, the others wait and find it done."""
    url = await empty_postgres(postgres_url)
    databases = [Database(url) for _ in range(4)]
    await asyncio.gather(*(database.start() for database in databases))
    assert await migrate.current(url) == migrate.head()
    for database in databases:
        await database.close()


async def test_what_is_examined_is_of_one_moment(rig: Rig) -> None:
    """A proof of sums that sees half of somebody's change tells of a fault that is none."""
    wanted = select(Setting.name).where(Setting.name.in_(("before", "meanwhile")))

    async def write(database: Database, name: str) -> None:
        async with database.begin() as connection:
            await connection.execute(insert(Setting).values(name=name, value="1"))

    async def elsewhere() -> None:
        database = Database(rig.database.url.render_as_string(hide_password=False))
        await write(database, "meanwhile")
        await database.close()

    def look(connection: Connection, name: str) -> list[list[str]]:
        first = list(connection.scalars(wanted.where(Setting.name != name)))
        with ThreadPoolExecutor() as threads:
            threads.submit(asyncio.run, elsewhere()).result()
        return [first, list(connection.scalars(wanted.where(Setting.name != name)))]

    await write(rig.database, "before")
    assert await rig.database.examine(5.0, look, "nobody") == [["before"], ["before"]]
    assert len(await rig.database.examine(0.0, lambda connection: list(connection.scalars(wanted)))) == 2


async def test_a_transaction_that_fails_leaves_nothing(rig: Rig) -> None:
    """Both ways to write are all or nothing."""

    def work(connection: Connection, name: str) -> None:
        connection.execute(insert(Setting).values(name=name, value="1"))
        raise LookupError(name)

    with pytest.raises(LookupError):
        await rig.database.transact(work, "a")

    async def begun() -> None:
        async with rig.database.begin() as connection:
            await connection.execute(insert(Setting).values(name="b", value="1"))
            raise LookupError

    with pytest.raises(LookupError):
        await begun()
    async with rig.database.session() as session:
        session.add(Setting(name="c", value="1"))
    async with rig.database.read() as connection:
        names = {row[0] for row in await connection.execute(select(Setting.name))}
        assert names & {"a", "b", "c"} == {"c"}


async def test_sqlite_readers_cannot_write(tmp_path: Path) -> None:
    """A page that tried to write through a read connection is stopped by the database itself."""
    database = Database(f"sqlite:///{tmp_path / 'x.db'}")
    await database.start()
    with pytest.raises(DBAPIError, match="readonly"):
        async with database.read() as connection:
            await connection.execute(text("DELETE FROM setting"))
    await database.close()
    assert (tmp_path / "x.db").stat().st_mode & 0o077 == 0


def test_only_known_databases_are_accepted(tmp_path: Path) -> None:
    """A typing error in the URL is told, not tried."""
    assert database_url(None, tmp_path).startswith("sqlite:////")
    assert parse("postgresql://u@h/d").drivername == "postgresql+asyncpg"
    with pytest.raises(ValueError, match="mysql"):
        parse("mysql://u@h/d")


async def test_entries_cannot_be_changed_or_deleted(rig: Rig) -> None:
    """The database itself keeps the ledger append-only, and the prices it rests on, whoever asks."""
    ledger = await rig.ledger()
    await rig.charge(ledger)
    await ledger.flush()
    changes = ("UPDATE entry SET amount_nano = 0", "DELETE FROM entry")
    for sql in (*changes, "UPDATE price_version SET input_pico = 0", "DELETE FROM price_version"):
        with pytest.raises(DBAPIError, match="append-only"):
            async with rig.database.begin() as connection:
                await connection.execute(text(sql))


async def test_a_budget_for_ten_admits_exactly_ten(rig: Rig) -> None:
    """64 requests at the same moment against a limit for ten: not nine, not eleven."""
    ledger = await rig.ledger()
    await ledger.set_budget(budget("team:acme", 100), "test")

    async def one() -> Hold | None:
        asked = call()
        try:
            return await ledger.hold(asked, plan(asked, most=10))
        except BudgetExhausted:
            return None

    holds = [hold for hold in await asyncio.gather(*(one() for _ in range(64))) if hold]
    assert len(holds) == 10
    for hold in holds:
        ledger.settle(hold, settled(10))
    await ledger.flush()
    assert await rig.window("team:acme") == {"limit": 100, "spent": 100, "estimated": 0, "held": 0}
    assert await ledger.verify() == []


async def test_processes_share_a_limit_exactly(tmp_path: Path, postgres_url: str) -> None:
    """Four workers, one budget for ten, 64 requests spread over them: exactly ten, whoever gets them."""
    url = await fresh_postgres(postgres_url)
    async with running(tmp_path, url) as rig:
        databases = [Database(url) for _ in range(3)]
        ledgers = [await rig.ledger(), *[await rig.ledger(database=database) for database in databases]]
        await ledgers[0].set_budget(budget("org", 100), "test")
        for ledger in ledgers:
            await ledger._pulse.beat()
            ledger._leases.processes = ledger._pulse.processes
            await ledger.reload_budgets()

        async def one(ledger: Ledger) -> Hold | None:
            asked = call()
            try:
                return await ledger.hold(asked, plan(asked, most=10))
            except BudgetExhausted:
                return None

        holds = await asyncio.gather(*(one(ledgers[i % 4]) for i in range(64)))
        assert sum(hold is not None for hold in holds) == 10
        for i, hold in enumerate(holds):
            if hold is not None:
                ledgers[i % 4].settle(hold, settled(4))
        for ledger in ledgers:
            await ledger.flush()
        assert await rig.window("org") == {"limit": 100, "spent": 40, "estimated": 0, "held": 0}
        assert await ledgers[0].verify() == []
        for ledger in ledgers[1:]:
            rig.ledgers.remove(ledger)
            await ledger.close()
        for database in databases:
            await database.close()


class _WallClock(FrozenClock):
    """The real one: the other process does its rounds by itself."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


async def test_idle_leases_of_other_processes_are_handed_back(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit must be spendable to the end although another worker has leased most of it and does nothing with it."""
    monkeypatch.setattr(leases, "_RECLAIM_SECONDS", 1.5)  # this machine may be slow; nobody else's is at stake
    url = await fresh_postgres(postgres_url)
    async with running(tmp_path, url, _WallClock()) as rig:
        other = Database(url)
        idle, busy = await rig.ledger(background=True), await rig.ledger(database=other)
        await busy.set_budget(budget("org", 100), "test")
        for ledger in (idle, busy):
            await ledger._tender._beat()
            await ledger.reload_budgets()
        asked = call()
        ledger_hold = await idle.hold(asked, plan(asked, most=60))
        idle.settle(ledger_hold, settled(5))  # 55 stay leased to it
        holds: list[Hold] = []
        for _ in range(9):
            asked = call()
            holds.append(await busy.hold(asked, plan(asked, most=10)))
        asked = call()
        with pytest.raises(BudgetExhausted):
            await busy.hold(asked, plan(asked, most=10))
        for hold in holds:
            busy.void(hold, "test")
        rig.ledgers.remove(busy)
        await busy.close()
        await other.close()


async def test_two_processes_roll_into_a_new_window_together(tmp_path: Path, postgres_url: str) -> None:
    """The first requests of a new window make its row at the same moment in every process: no deadlock, one row."""
    url = await fresh_postgres(postgres_url)
    async with running(tmp_path, url) as rig:
        databases = [Database(url) for _ in range(4)]
        ledgers = [await rig.ledger(database=database) for database in databases]
        for scope in ("org", "team:acme", "key:key1", "project:acme/app"):
            await ledgers[0].set_budget(budget(scope, 1_000, window="day"), "test")
        for ledger in ledgers:
            await ledger.reload_budgets()
        rig.clock.advance(86_400)

        async def one(ledger: Ledger) -> None:
            asked = call()
            ledger.settle(await ledger.hold(asked, plan(asked)), settled(3))

        await asyncio.gather(*(one(ledgers[i % 4]) for i in range(40)))
        for ledger in ledgers:
            await ledger.flush()
        rows = await rig.rows("SELECT spent_nano, held_nano FROM budget_window WHERE scope = 'org' ORDER BY spent_nano")
        assert [(row["spent_nano"], row["held_nano"]) for row in rows] == [(0, 0), (120, 0)]  # the first day's is empty
        assert await ledgers[0].verify() == []
        for ledger, database in zip(ledgers, databases, strict=True):
            rig.ledgers.remove(ledger)
            await ledger.close()
            await database.close()


async def test_corrections_are_entries_of_their_own(rig: Rig) -> None:
    """A wrong charge is corrected beside it, in the window it fell into, and never below nothing."""
    ledger = await rig.ledger()
    await ledger.set_budget(budget("org", 100), "test")
    hold = await rig.charge(ledger, 9)
    await ledger.flush()
    name = hold.plan.id
    assert await ledger.adjust(name, -4, reason="billed twice upstream", actor="fin") == f"{name}#adj.1"
    assert await ledger.adjust(name, 1, reason="half of it was right", actor="fin") == f"{name}#adj.2"
    assert (await rig.window("org"))["spent"] == 6
    with pytest.raises(ValueError, match="negative"):
        await ledger.adjust(name, -7, reason="too much", actor="fin")
    with pytest.raises(ValueError, match="no entry"):
        await ledger.adjust("nobody.1", 1, reason="x", actor="fin")
    assert await ledger.verify() == []
    notes = [row["note"] for row in await rig.rows("SELECT note FROM entry WHERE source = 'adjust' ORDER BY id")]
    assert notes == ["billed twice upstream (fin)", "half of it was right (fin)"]


async def test_a_lost_connection_is_made_again(tmp_path: Path, postgres_url: str) -> None:
    """A database that restarted must not cost a request: the broken connections are replaced and the grant repeated."""
    url = await fresh_postgres(postgres_url)
    async with running(tmp_path, url) as rig:
        ledger = await rig.ledger()
        await ledger.set_budget(budget("org", 1_000), "test")
        killer = Database(postgres_url)
        async with killer.begin() as connection:
            others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"
            await connection.execute(text(others), {"name": url.rsplit("/", 1)[1]})
        await killer.close()
        await rig.charge(ledger, 3)
        await ledger.flush()
        assert (await rig.window("org"))["spent"] == 3


NASTY = "a\0b\ud800c" + "x" * 1_000


async def test_text_from_outside_cannot_block_the_books(rig: Rig) -> None:
    """A model name with a NUL or half a surrogate pair must not keep a batch of rows out of the database for ever."""
    ledger = await rig.ledger()
    asked = call(model=NASTY, user=NASTY, nasty=NASTY)
    hold = await ledger.hold(asked, plan(asked))
    ledger.settle(hold, structs.replace(settled(3), provider_id=NASTY))
    other = call()
    void = await ledger.hold(other, plan(other))
    ledger.void(void, NASTY)
    ledger.record(outcome(asked, error=NASTY, finish=NASTY, cost_nano=3, explain={"reason": "a\0b"}))
    ledger.record(outcome(other, explain={"reason": NASTY}))
    await ledger.flush()
    detail = await Queries(rig.database).request(asked.id)
    assert detail is not None
    assert detail.request is not None
    assert detail.request.model.startswith("a\ufffdb?c")
    assert len(detail.entries) == 1
    assert (await Queries(rig.database).usage(["tag:nasty"]))[0].cost_nano == 3
    assert await ledger.verify() == []


async def test_one_row_that_cannot_be_stored_costs_only_itself(rig: Rig) -> None:
    """Display rows that break a rule of the database are left out, counted, and hold nobody else up."""
    ledger = await rig.ledger()
    good, bad = call(), call()
    ledger.record(outcome(good))
    ledger.record(outcome(bad))
    row = list(ledger._recorder._rows[1])
    row[1] = None
    ledger._recorder._rows[1] = tuple(row)
    await ledger.flush()
    assert [line.id for line in await Queries(rig.database).recent_requests()] == [good.id]
    assert (ledger._recorder.dropped, len(ledger._recorder)) == (1, 0)


async def test_many_rows_travel_together_and_each_counts_once(rig: Rig) -> None:
    """Rows go many to a statement: whole statements, what is left over, and all of it a second time."""
    ledger = await rig.ledger()
    for _ in range(120):
        ledger.record(outcome(call(), explain={"reason": "not-kept"}))
    again = list(ledger._recorder._rows)
    await ledger.flush()
    ledger._recorder._rows += again  # as after a reply that was lost
    await ledger.flush()
    assert len(await rig.rows("SELECT * FROM request")) == len(await rig.rows("SELECT * FROM explain")) == 120
    assert (await Queries(rig.database).usage([]))[0].requests == 120
    assert await ledger.verify() == []


async def test_another_process_sets_a_price(rig: Rig, clock: FrozenClock) -> None:
    """A price set through one worker holds in all of them within moments."""
    here, there = (PriceBook(rig.database, settings=Settings(home=rig.home), now=clock.now) for _ in range(2))
    await here.load()
    assert here.price("lab", "openai", "m", clock.now()) is None
    await there.set("lab/m", input_usd="1", output_usd="2", actor="fin")
    await here.refresh()
    found = here.price("lab", "openai", "m", clock.now())
    assert found is not None
    assert found.output == 2_000_000


async def test_a_contract_is_kept_whole_and_every_charge_recomputes(
    rig: Rig, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Terms, classes and pages of entries are the same on both databases; a month holds what was admitted in it."""
    monkeypatch.setattr(entries, "_PAGE", 2)
    book = PriceBook(rig.database, settings=Settings(home=rig.home), now=clock.now)
    hours = HoursWanted(start="00:00", end="24:00", percent=50)
    terms = Terms(input_usd=2, output_usd=8, audio_input_usd=40, hours=[hours], service={"batch": 50})
    made = await book.put(
        "openai/gpt-5-mini", terms, PriceSetting(actor="fin", effective_from=0.0, effective_until=1e10)
    )
    again = PriceBook(rig.database, settings=Settings(home=rig.home), now=clock.now)
    await again.load()
    assert again.overrides() == [made]
    price = again.price("openai", "openai", "gpt-5-mini", clock.now())
    assert price is not None
    ledger, cost = await rig.ledger(), 0
    for n in range(5):
        asked = call()
        hold = await ledger.hold(asked, plan(asked, most=1_000_000, price=price))
        usage = Usage(prompt=10, completion=n, audio_in=n)
        cost += ledger.settle(hold, Settlement(usage=usage, source="provider", ended="complete"))
    await ledger.flush()
    found = await recompute(rig.database, 0.0, 1e11)
    assert (found.agrees, found.entries, found.charged_nano, found.right_nano) == (True, 5, cost, cost)
    assert (await recompute(rig.database, 1e10, 1e11)).entries == 0
    assert (await recompute(rig.database, 0.0, 1e11, "nobody")).entries == 0
    assert await ledger.verify() == []


async def test_usage_adds_up_along_every_dimension(rig: Rig) -> None:
    """Finance groups by anything; each grouping must tell the same totals."""
    ledger = await rig.ledger()
    for i in range(20):
        asked = call(user=f"u{i % 2}", cost_center=f"c{i % 3}")
        ledger.record(
            outcome(
                asked,
                usage=Usage(prompt=10, cached=2, completion=5),
                cost_nano=100 + i,
                cost_status="estimated" if i % 4 == 0 else "exact",
                status=500 if i == 3 else 200,
                total_ms=float(i + 1),
                explain={"why": "miss"},
            )
        )
    ledger.record(outcome(call(), saved_nano=7))
    await ledger.flush()
    queries = Queries(rig.database)
    (total,) = await queries.usage()
    assert (total.requests, total.prompt, total.cached, total.completion) == (21, 200, 40, 100)
    assert (total.cost_nano, total.errors, total.saved_nano) == (2190, 1, 7)
    assert total.estimated_nano == sum(100 + i for i in range(0, 20, 4))
    assert (total.p50_ms, total.p99_ms) == (11.0, 32.0)  # read off a histogram: 10 lies in [8, 16), 20 in [16, 32)
    for name in DIMENSIONS:
        rows = await queries.usage([name.replace("<name>", "cost_center")])
        assert sum(row.cost_nano for row in rows) == 2190
        assert sum(row.requests for row in rows) == 21
    by_tag = await queries.usage(["tag:cost_center"])
    assert {row.group["tag:cost_center"] for row in by_tag} == {"", "c0", "c1", "c2"}
    (day,) = await queries.usage(["day"])
    assert day.group == {"day": "2026-09-21"}
    assert (await queries.usage(["month"]))[0].group == {"month": "2026-09"}
    assert [row.requests for row in await queries.usage(["team"], where={"status": "500"})] == [1]
    with pytest.raises(ValueError, match="model_used"):
        await queries.usage(["colour"])


async def test_a_request_tells_all_about_itself(rig: Rig) -> None:
    """Support asks about one id: its row, its cost lines, their price and the reason it went that way."""
    ledger = await rig.ledger()
    asked = call(cost_center="c1")
    await rig.charge(ledger, 4, of=asked)
    ledger.record(outcome(asked, usage=Usage(prompt=1, completion=3), cost_nano=4, explain={"why": "miss"}))
    await ledger.flush()
    queries = Queries(rig.database)
    found = await queries.request(asked.id)
    assert found is not None
    assert found.request is not None
    assert found.request.tags == {"cost_center": "c1"}
    assert [(line.id, line.amount_nano, line.source) for line in found.entries] == [(f"{asked.id}.1", 4, "provider")]
    assert found.prices["test@1"].input_pico == 1_000
    assert found.explain == {"why": "miss"}
    assert await queries.explain(asked.id) == {"why": "miss"}
    assert await queries.request("nobody") is None
    assert [line.id for line in await queries.recent_requests(limit=5)] == [asked.id]
    assert await queries.recent_requests(before=asked.id) == []
    assert await queries.recent_requests(failed=True) == []
    overview = await queries.overview(0.0, 2e9)
    assert overview.total.cost_nano == 4


async def test_budgets_tell_where_they_stand(rig: Rig, clock: FrozenClock) -> None:
    """The page of budgets shows confirmed and estimated spend apart, what is held, and when the money runs out."""
    ledger = await rig.ledger()
    await ledger.set_budget(budget("team:acme", 100, window="day"), "test")
    await ledger.set_budget(budget("key:key1", 1_000, mode="soft"), "test")
    await rig.charge(ledger, 50, most=60)
    asked = call()
    hold = await ledger.hold(asked, plan(asked))
    ledger.settle(hold, settled(10, source="upper_bound", ended="cut"))
    asked = call()
    running_hold = await ledger.hold(asked, plan(asked))
    await ledger.flush()
    clock.advance(60)
    now = ledger._pulse.instant()  # the database's own clock counts
    key, team = await Queries(rig.database).budgets(now)
    assert (team.spent_nano, team.confirmed_nano, team.estimated_nano) == (60, 50, 10)
    assert (team.held_nano, team.remaining_nano) == (10, 30)
    assert team.alerted == [0.5]
    assert team.runs_out == runs_out(Period(team.starts, team.ends), 100, 60, now)  # late in the day: not at this pace
    assert (key.mode, key.spent_nano, key.held_nano) == ("soft", 60, 0)
    ledger.void(running_hold, "test")
    assert await ledger.remove_budget("key:key1", "test")
    assert not await ledger.remove_budget("key:key1", "test")
    assert [state.scope for state in await Queries(rig.database).budgets(now)] == ["team:acme"]
