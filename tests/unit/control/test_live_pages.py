"""The live pages: what the last moments come to, who sees what, and that many rows do not slow them down."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event

from gateway.db.lately import Ended, lately
from gateway.db.nearness import nearness
from gateway.gauges import Gauges
from gateway.metrics import Metrics
from gateway.web.moment import BARS, Target, histogram, moment, spread
from tests.clock import FrozenClock
from tests.unit.control.house import House, explained, happened, hit_row, house, request_row
from tests.unit.control.test_pages import sign_in

TARGET = Target(ttft=1_000.0, tpot=50.0)


def ended(at: float, **changes: object) -> Ended:
    values: dict[str, object] = {
        "at": at,
        "status": 200,
        "source": "upstream",
        "provider": "lab",
        "model_used": "m",
        "stream": True,
        "completion": 10,
        "ttft_ms": 100.0,
        "tpot_ms": 10.0,
        "total_ms": 200.0,
        "overhead_ms": 1.0,
        "similarity": None,
        "confidence": None,
    }
    return Ended(**{**values, **changes})  # pyright: ignore[reportArgumentType] - a test's shorthand


@pytest.fixture
async def home(tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[House, None]:
    async with house(tmp_path, clock) as found:
        yield found


def test_goodput_asks_both_of_the_first_token_and_of_the_pace() -> None:
    """An answer that begins in time and then crawls is no good answer; failed ones are none at all."""
    rows = [
        ended(99.0),
        ended(98.0, tpot_ms=51.0),
        ended(97.0, ttft_ms=1_001.0),
        ended(96.0, tpot_ms=None),  # one token: there is no pace
        ended(95.0, status=502, ttft_ms=None),
        ended(94.0, stream=False, ttft_ms=None),
    ]
    found = moment(rows, 100.0, 60.0, TARGET, cut=False)
    assert (found.streamed, found.goodput, found.errors) == (4, 0.5, 1)
    assert found.rps == 6 / 60
    assert found.tps == 1.0
    assert (found.upstreams[0].name, found.upstreams[0].errors) == ("lab", 1)


def test_where_there_were_too_many_the_stretch_is_shorter() -> None:
    """A bound on what is read must not make a busy gateway look idle."""
    rows = [ended(100.0 - n / 1_000) for n in range(5_000)]
    assert moment(rows, 100.0, 60.0, TARGET, cut=True).rps == pytest.approx(1_000, rel=0.01)


@given(st.lists(st.floats(0, 60), max_size=60), st.integers(0, 5))
def test_no_request_falls_out_of_the_bars(ages: list[float], failed: int) -> None:
    """Every request of the window is in exactly one bar, errors among them."""
    rows = [ended(1_000.0 - age, status=500 if n < failed else 200) for n, age in enumerate(sorted(ages))]
    found = moment(rows, 1_000.0, 60.0, TARGET, cut=False)
    assert len(found.bars) == BARS
    assert sum(all_ for all_, _ in found.bars) == len(rows)
    assert sum(bad for _, bad in found.bars) == found.errors


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
def test_percentiles_are_values_that_happened(values: list[float]) -> None:
    """Nearest rank: nobody can say that the number shown never occurred; and they are in order."""
    found = spread(values)
    assert {found.p50, found.p95, found.p99} <= set(values)
    assert found.p50 is not None
    assert found.p95 is not None
    assert found.p99 is not None
    assert found.p50 <= found.p95 <= found.p99
    assert sum(1 for value in values if value <= found.p50) * 2 >= len(values)


@given(st.lists(st.floats(-1, 2) | st.none(), max_size=50))
def test_a_histogram_counts_everything_once(values: list[float | None]) -> None:
    """Cosines can lie a hair outside of 0 to 1."""
    columns = histogram(values, (0.0, 0.5, 0.9, 1.0))
    assert sum(column.count for column in columns) == sum(1 for value in values if value is not None)


async def test_a_teams_reader_sees_its_own_minute(home: House) -> None:
    """Another team's load and errors are its own business, and so is what the whole machine does."""
    mine = [request_row(home.clock, 0, id=f"m{n}", stream=True) for n in range(2)]
    theirs = [request_row(home.clock, 0, id=f"t{n}", team="zeta", provider="hushed", status=500) for n in range(3)]
    await happened(home.services.database, mine + theirs)
    metrics = Metrics()
    metrics.attempt("hushed", "timeout")
    metrics.pour()
    home.services.gauges = Gauges(metrics.exposition, monotonic=home.clock.monotonic)
    async with home.client(None) as visitor:
        await sign_in(visitor, await home.key("operator", "acme"))
        page = (await visitor.get("/ui/live")).text
        assert "2 in 60 s" in page
        assert "In flight" not in page
        assert "hushed" not in page + (await visitor.get("/ui/upstreams")).text
        assert (await visitor.get("/ui/policies")).status_code == 403
    async with home.client(None) as visitor:
        await sign_in(visitor)
        page = (await visitor.get("/ui/parts/live")).text
        assert "5 in 60 s" in page
        assert "In flight" in page


async def test_gauges_are_read_once_a_second_however_many_look() -> None:
    """In multi-process mode one reading opens every worker's files."""
    clock, read = FrozenClock(), list[int]()

    def exposition() -> bytes:
        read.append(1)
        return b'# TYPE a counter\na_total{x="1"} 2\na_total{x="2"} 3\n'

    gauges = Gauges(exposition, monotonic=clock.monotonic)
    assert await gauges.total("a_total") == 5
    assert await gauges.total("nothing") == 0
    assert len(read) == 1
    clock.advance(1.1)
    await gauges.total("a_total")
    assert len(read) == 2


async def test_nearness_tells_served_answers_from_the_nearest_that_were_not(home: House) -> None:
    """The histogram shows where the boundary runs; a miss that looked at nothing says nothing about it."""
    clock, database = home.clock, home.services.database
    await happened(database, [hit_row(clock, 1, id="hit"), request_row(clock, 2, id="near"), request_row(clock, 3)])
    await explained(database, "hit", clock.now(), {"looked": []})
    looked = [{"similarity": 0.7, "confidence": 0.2}, {"similarity": 0.9, "confidence": 0.6}]
    await explained(database, "near", clock.now(), {"looked": looked})
    found = await nearness(database, clock.now() - 3_600, None)
    assert [(one.served, one.similarity) for one in found] == [(True, 0.943), (False, 0.9)]
    assert await nearness(database, clock.now() - 3_600, "zeta") == []


async def test_the_live_reads_use_an_index(home: House) -> None:
    """With 100,000 rows a page that is renewed every two seconds must not read them all."""
    seen: list[tuple[str, object]] = []
    engine = home.services.database._reader.sync_engine

    def note(_c: object, _k: object, statement: str, parameters: object, *_rest: object) -> None:
        seen.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    for team in (None, "acme"):
        await lately(home.services.database, 1.0, team)
        await nearness(home.services.database, 1.0, team)
    event.remove(engine, "before_cursor_execute", note)
    asked = [one for one in seen if "FROM request" in one[0]]
    assert len(asked) == 4
    async with home.services.database.read() as connection:
        for statement, parameters in asked:
            plan = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)  # pyright: ignore[reportArgumentType] - as recorded
            words = " ".join(str(row[-1]) for row in plan.all())
            assert "USING INDEX ix_request" in words, words
            assert "SCAN request" not in words, words
            assert "TEMP B-TREE" not in words, words
