"""Keys, sessions, the audit log and the first page's reads on PostgreSQL as on SQLite."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from sqlalchemy import text

from gateway.audit import Change, note, verify
from gateway.auth import ADMIN, Keyring, NewKey
from gateway.db.decisions import audits_by_day, decisions
from gateway.db.queries import Queries
from gateway.db.session import Database
from gateway.db.tag_names import tag_names
from gateway.errors import InvalidRequest, Overloaded, Unauthorized
from gateway.keywatch import KeyWatch
from gateway.ledger import sums
from gateway.services import Services
from gateway.settings import Settings
from gateway.web.reads import first_piece, series
from gateway.web.sessions import IDLE, Sessions
from tests.clock import FrozenClock
from tests.empty_database import fresh_postgres
from tests.faults import fault_proxy
from tests.unit.control.house import explained, happened, hit_row, request_row
from tests.unit.exports.books import fresh


@pytest.fixture(params=["sqlite", "postgresql"])
async def services(
    request: pytest.FixtureRequest, tmp_path: Path, clock: FrozenClock
) -> AsyncGenerator[Services, None]:
    server = str(request.getfixturevalue("postgres_url")) if request.param == "postgresql" else None
    async with fresh(tmp_path, server) as database:
        keyring = Keyring(database, b"p" * 32, now=clock.now, monotonic=clock.monotonic, admin_key=lambda: b"x" * 32)
        nothing = cast("Any", None)
        yield Services(
            settings=Settings(home=tmp_path),
            database=database,
            keyring=keyring,
            ledger=nothing,
            prices=nothing,
            now=clock.now,
        )


async def test_keys_of_one_new_team_made_at_once(services: Services) -> None:
    """Two administrators add the first keys of the same team in the same moment."""
    wanted = NewKey(name="n", team="fresh", project="p", models=frozenset({"b", "a"}))
    made = await asyncio.gather(*(services.keyring.create(ADMIN, wanted) for _ in range(5)))
    assert {row.id for row in await services.keyring.list(ADMIN)} == {one.row.id for one in made}
    found = await services.keyring.identify_key(made[0].key)
    assert (found.team, found.models) == ("fresh", frozenset({"a", "b"}))
    rotated = await services.keyring.rotate(ADMIN, made[0].row.id)
    assert (await services.keyring.identify_key(rotated.key)).key_id == made[0].row.id
    await services.keyring.revoke(ADMIN, made[0].row.id)
    assert await services.keyring.still_good(made[0].row.id) is None


async def test_a_restart_of_the_database_refuses_nobody(postgres_url: str, clock: FrozenClock) -> None:
    """What the pool holds was cut without a word: the first who asks of a new key must not be told that it is down."""
    parts = urlsplit(await fresh_postgres(postgres_url))
    with fault_proxy("127.0.0.1", parts.port or 0) as proxy:
        database = Database(f"postgresql://{parts.username}@127.0.0.1:{proxy.port}{parts.path}")
        await database.start()
        keyring = Keyring(database, b"p" * 32, now=clock.now, monotonic=clock.monotonic, admin_key=lambda: b"x" * 32)
        made = await keyring.create(ADMIN, NewKey(name="n", team="acme", project="p"))
        proxy.become("refusing")
        with pytest.raises(Overloaded):
            await keyring.identify_key(made.key)
        proxy.become("up")
        assert (await keyring.identify_key(made.key)).team == "acme"  # a new connection, which is cut in its turn
        proxy.become("refusing")
        proxy.become("up")
        keyring.forget_key(made.row.id)
        assert (await keyring.identify_key(made.key)).team == "acme"
        await database.close()


async def test_a_change_of_a_key_is_heard_by_other_workers(services: Services, clock: FrozenClock) -> None:
    """Without a second passing: what another worker remembers of a revoked or rotated key is looked up again."""
    made = await services.keyring.create(ADMIN, NewKey(name="n", team="t", project="p"))
    elsewhere = Keyring(services.database, b"p" * 32, now=clock.now, monotonic=clock.monotonic)
    watch = KeyWatch(services.database, elsewhere)
    await watch.look()
    await elsewhere.identify_key(made.key)
    rotated = await services.keyring.rotate(ADMIN, made.row.id)
    await note(services, ADMIN, Change("key.rotate", made.row.id))
    assert (await elsewhere.identify_key(made.key)).key_id == made.row.id  # nobody has told it yet
    await watch.look()
    with pytest.raises(Unauthorized):
        await elsewhere.identify_key(made.key)
    await elsewhere.identify_key(rotated.key)
    await services.keyring.revoke(ADMIN, made.row.id)
    await note(services, ADMIN, Change("key.revoke", made.row.id))
    await watch.look()
    with pytest.raises(Unauthorized):
        await elsewhere.identify_key(rotated.key)


async def test_a_new_key_is_good_through_an_outage(services: Services, clock: FrozenClock) -> None:
    """Word of its making comes after its first use; forgotten then, it would be refused while the database is away."""
    elsewhere = Keyring(services.database, b"p" * 32, now=clock.now, monotonic=clock.monotonic)
    watch = KeyWatch(services.database, elsewhere)
    await watch.look()
    made = await services.keyring.create(ADMIN, NewKey(name="n", team="t", project="p"))
    await note(services, ADMIN, Change("key.create", made.row.id))
    await elsewhere.identify_key(made.key)
    await watch.look()
    assert len(elsewhere._known) == 1


async def test_an_old_secret_works_on_as_long_as_was_asked(services: Services, clock: FrozenClock) -> None:
    """Applications are told of a new secret one after the other; meanwhile both work, and not a second longer."""
    made = await services.keyring.create(ADMIN, NewKey(name="n", team="t", project="p"))
    await services.keyring.identify_key(made.key)
    fresh = await services.keyring.rotate(ADMIN, made.row.id, overlap=60.0)
    for key in (made.key, fresh.key, made.key):
        assert (await services.keyring.identify_key(key)).key_id == made.row.id
    clock.advance(59.0)
    await services.keyring.identify_key(made.key)
    clock.advance(1.0)  # though it was looked up a second ago
    with pytest.raises(Unauthorized):
        await services.keyring.identify_key(made.key)
    await services.keyring.identify_key(fresh.key)
    again = await services.keyring.rotate(ADMIN, made.row.id, overlap=60.0)
    newest = await services.keyring.rotate(ADMIN, made.row.id, overlap=60.0)
    await services.keyring.identify_key(again.key)
    with pytest.raises(Unauthorized):  # two secrets at most
        await services.keyring.identify_key(fresh.key)
    await services.keyring.revoke(ADMIN, made.row.id)
    for key in (again.key, newest.key):
        with pytest.raises(Unauthorized):
            await services.keyring.identify_key(key)
    with pytest.raises(InvalidRequest):
        await services.keyring.rotate(ADMIN, made.row.id, overlap=31 * 86_400.0)


async def test_what_was_cut_off_the_log_is_noticed_by_a_noted_head(services: Services) -> None:
    """A chain cannot tell by itself that its end is missing; a digest that was kept elsewhere can."""
    for number in range(3):
        await note(services, ADMIN, Change("a", str(number)))
    head = (await verify(services)).head
    await note(services, ADMIN, Change("a", "later"))
    assert await verify(services, noted=head) == (None, 4, (await verify(services)).head, True)
    async with services.database.begin() as connection:
        await connection.execute(text("DELETE FROM audit WHERE target IN ('2', 'later')"))
    found = await verify(services, noted=head)
    assert (found.broken_at, found.seen) == (None, False)


async def test_changes_noted_at_once_make_one_chain(services: Services) -> None:
    """Two rows that both follow the same one would look like tampering."""
    await asyncio.gather(*(note(services, ADMIN, Change("a", str(n), after={"n": n, "x": None})) for n in range(8)))
    assert (await verify(services)).broken_at is None
    async with services.database.begin() as connection:
        await connection.execute(text("DELETE FROM audit WHERE id = (SELECT MIN(id) + 3 FROM audit)"))
    assert (await verify(services)).broken_at is not None


async def test_a_session_is_found_until_it_is_closed(services: Services) -> None:
    """Pages of one login may be served by any worker."""
    sessions = Sessions(services)
    token = await sessions.open(ADMIN)
    opened = await Sessions(services).find(token)
    assert opened is not None
    assert opened.principal == ADMIN
    assert await sessions.find(token + "x") is None
    await sessions.close(token)
    assert await sessions.find(token) is None


async def test_an_open_page_that_asks_by_itself_does_not_keep_its_session(
    services: Services, clock: FrozenClock
) -> None:
    """Polling is not use: else a page left open would never be signed out."""
    sessions, began = Sessions(services), clock.now()
    token = await sessions.open(ADMIN)
    for _ in range(3):
        clock.advance(IDLE / 3)
        last = await sessions.find(token, used=False)
        assert (last is None) == (clock.now() >= began + IDLE)


async def test_series_and_percentiles(services: Services, clock: FrozenClock) -> None:
    """Empty hours are there, sums are right, percentiles lie in the bucket of the nearest rank."""
    rows = [request_row(clock, number, ttft_ms=float(number)) for number in range(1, 101)]
    await happened(services.database, [*rows, hit_row(clock, 200, team="zeta"), request_row(clock, 300, status=500)])
    start, end = clock.now() - 86_400, clock.now() + 1
    buckets = await series(Queries(services.database), start, end, {})
    assert len(buckets) in (25, 26)
    assert sum(bucket.total for bucket in buckets) == 102
    assert sum(bucket.semantic for bucket in buckets) == 1
    assert sum(bucket.cost_nano for bucket in buckets) == 101 * 213_000
    queries = Queries(services.database)
    found = await first_piece(queries, start, end, {"team": "acme"})
    assert found.p50 is not None
    assert found.p95 is not None
    assert 32 <= found.p50 < 64  # read off a histogram: the 50th of 1 … 100 ms lies in this bucket
    assert 90 <= found.p95 < 128.1
    assert (await first_piece(queries, start, end, {"team": "nobody"})).p50 is None
    days = await series(Queries(services.database), clock.now() - 6 * 86_400, end, {"team": "zeta"})
    assert sum(bucket.total for bucket in days) == 1
    assert len(days) in (7, 8)


async def test_decisions_and_audits_are_read_alike(services: Services, clock: FrozenClock) -> None:
    """JSON, days and pages of the log come from SQL that two databases write differently."""
    hits = [hit_row(clock, number) for number in range(1, 601)]
    missed, other = request_row(clock, 601), request_row(clock, 602, team="zeta")
    checks = [request_row(clock, 700 + number, cache="audit", cost_nano=5) for number in range(3)]
    await happened(services.database, [*hits, missed, other, *checks])
    near: dict[str, object] = {"looked": [{"entry": 7, "confidence": 0.99}], "entry": 7, "judged": {"same": False}}
    for row in (*hits, missed):
        await explained(
            services.database, row["id"], row["at"], {**near, "reason": "shadow" if row is missed else None}
        )
    log = await decisions(services.database, 0.0, team="acme")
    assert (log.requests, len(log.decisions), log.bounded) == (601, 601, False)
    assert [one.id for one in log.decisions] == sorted(one.id for one in log.decisions)
    assert log.decisions[-1].seen.risk == pytest.approx(0.01)
    assert log.decisions[-1].seen.wrong is True
    watched = await decisions(services.database, 0.0, reason="shadow")
    assert [one.id for one in watched.decisions] == [missed["id"]]
    assert (await decisions(services.database, 0.0, most=10)).bounded
    days = await audits_by_day(services.database, 0.0, 1e11, "acme")
    assert (sum(day.audits for day in days.values()), sum(day.cost_nano for day in days.values())) == (3, 15)
    assert days == {day.day: day for day in days.values()}
    assert await audits_by_day(services.database, 0.0, 1e11, "zeta") == {}


@pytest.mark.parametrize("asked", [{"source": "\0nothing"}, {"user": "a\0b"}, {"user": "\ud800"}, {'tag:a"b\\': "\0"}])
async def test_filters_that_no_database_stores_find_nothing(
    services: Services, clock: FrozenClock, asked: dict[str, str]
) -> None:
    """PostgreSQL refuses a NUL even in a comparison: another team's key would have been told of a broken database."""
    await happened(services.database, [request_row(clock, 1)])
    queries, end = Queries(services.database), clock.now() + 1
    assert [row.requests for row in await queries.usage((), end - 900, end, {"team": "acme", **asked})] == [0]
    assert await queries.recent_requests(5, where=asked) == []
    assert await queries.recent_requests(5, where={"team": "a\0b"}) == []
    assert [rows async for rows in queries.export(end - 900, end, asked) if rows] == []


async def test_tags_are_named_from_the_days_and_from_the_newest_requests(
    services: Services, clock: FrozenClock
) -> None:
    """Yesterday's tags are in the sums, today's are not yet; how a database orders colons must not hide any."""
    assert await tag_names(services.database) == []
    old = [request_row(clock, 3 * 24 * 60 + n, tags={name: "v"}) for n, name in enumerate(("app", "Zone", "über"))]
    await happened(
        services.database, [*old, *(request_row(clock, 9_000 + n, tags=None, user=f"u{n}") for n in range(9))]
    )
    await sums.make_days(services.database, clock.now())
    await happened(services.database, [request_row(clock, 1, tags={"fresh": "v"}, id="new")])
    await happened(services.database, [request_row(clock, n, tags=None, id=f"no{n}") for n in range(2, 250)])
    assert await tag_names(services.database) == ["Zone", "app", "fresh", "über"]
