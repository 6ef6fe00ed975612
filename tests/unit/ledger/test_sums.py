"""Sums equal a plain count of the rows, whatever the batches, repeats, late rows and corrections."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.db.queries import DIMENSIONS, Pruned, Queries
from gateway.db.session import Database
from gateway.db.sums import BUCKETS, EDGES, day_starts, percentile
from gateway.ledger import sum_blocks, sum_proof, sum_upgrade, sums
from gateway.ledger.inserts import Repeated
from gateway.ledger.request_rows import RequestRows, rows_from
from gateway.ledger.retention import Kept, Retention
from tests import empty_database
from tests.proofs import examples
from tests.unit.ledger import version_before
from tests.unit.ledger.sum_world import REQUEST, START, Told, counted, numbers, row, told

DAY = 86_400
GROUPS = [name.replace("<name>", "app") for name in DIMENSIONS] + ["tag:env"]
_some = st.sampled_from
STEP = st.one_of(
    st.tuples(st.just("write"), st.lists(st.integers(0, 59), min_size=1, max_size=20)),
    st.tuples(st.just("correct"), st.tuples(st.integers(0, 59), _some([-5, -1, 5]))),
    st.tuples(st.just("make"), st.floats(0.3, 5)),
    st.tuples(st.just("make"), st.integers(1, 5)),
    st.tuples(st.just("rebuild"), st.none()),
    st.tuples(st.just("prune"), st.tuples(st.integers(1, 6), st.integers(1, 3), _some([0, 1, 3]))),
    st.tuples(_some(["upgrade", "some of it", "take along"]), st.none()),
    st.tuples(st.just("written before"), st.lists(st.integers(0, 59), min_size=1, max_size=20)),
    st.tuples(st.just("made before"), st.integers(1, 5)),
)
INSTANT = st.one_of(
    st.integers(-1, 5 * 24).map(lambda hour: START + hour * 3_600.0),
    st.integers(-1, 5).map(lambda day: START + day * float(DAY)),
    st.floats(START - 10, START + 5 * DAY),
    _some([0.0, START - 61.0 * DAY, START - 3.0 * DAY, START + 40.0 * DAY]),  # more than the days that have anything
)
CONDITION = st.fixed_dictionaries(
    {},
    optional={
        "team": _some(["a", "b"]),
        "user": _some(["ann", ""]),
        "tag:app": _some(["web", ""]),
        "status": _some(["200", "500"]),
        "source": _some(["exact", "none"]),
    },
)
ASKED = st.tuples(st.lists(_some(GROUPS), max_size=3, unique=True), INSTANT, INSTANT, CONDITION)

CUTTING: list[Any] = [  # spans nearer to the next whole day or hour than to the one inside: what is too much goes again
    (["team"], START + 0.4 * DAY, START + 2.8 * DAY, {}),
    (["user", "model"], START + 1.3 * DAY, START + 3.7 * DAY, {}),
    ([], START + 1.6 * DAY + 1_000.5, START + 1.9 * DAY + 3_000.25, {}),
    (["provider"], START - 61.0 * DAY, START + 2.7 * DAY, {}),  # sixty-four days, less what they have too much
    (["user"], START - 3.0 * DAY, START + 3.7 * DAY, {"team": "a"}),
    (["tag:app", "key"], 0.0, START + 2.2 * DAY, {}),
]


class World:
    """A database that is written to in steps, and what should be in it."""

    def __init__(self, database: Database, requests: list[Told]) -> None:
        self.database = database
        self.requests = requests
        self.written: dict[str, Told] = {}
        self.corrections: dict[str, int] = {}
        self._rows = RequestRows("sqlite")
        self._before = version_before.Before("sqlite")
        self._beside = False  # a process of the version before has counted something, and no turn was taken since
        self._numbers = 0
        self._floor = 0.0  # from here on rows are kept

    async def do(self, step: tuple[str, Any]) -> None:
        kind, value = step
        if kind == "write":
            await self._write([self.requests[i % len(self.requests)] for i in value], self._rows)
        elif kind == "make":
            await sums.make_days(self.database, START + value * DAY)
            await sum_blocks.make_blocks(self.database)
        elif kind == "rebuild":
            await sums.rebuild(self.database)
        elif kind == "prune":
            await self._turn()  # of days whose rows are gone nothing is mended
            await self._prune(*value)
        elif kind != "correct":
            await self._of_versions(kind, value)
        elif (one := self.requests[value[0] % len(self.requests)])["id"] in self.written and one["at"] >= self._floor:
            await self._correct(one, value[1])

    async def _of_versions(self, kind: str, value: Any) -> None:
        if kind == "written before":
            await self._write([self.requests[i % len(self.requests)] for i in value], self._before)
            self._beside = True
        elif kind == "made before":
            await self.database.transact(version_before.make_day, START // DAY + value)
            self._beside = True
        elif kind == "upgrade":
            await self._turn()  # what it counted late for blocks is not to be told from what it left
            await self.database.transact(version_before.leave)
        else:
            stopping = asyncio.Event()
            if kind == "some of it":
                stopping.set()
            await sum_upgrade.take_along(self.database, stopping)

    async def _prune(self, day: int, requests: int, hours: int) -> None:
        """Rows of requests, and hours where `hours` says for how many days more; days stay."""
        kept = Kept(requests=requests, hours=hours and requests + hours, days=0)
        await Retention(self.database, kept, now=lambda: START + day * DAY).prune()
        async with self.database.read() as connection:
            self._floor = await connection.run_sync(rows_from)

    async def _turn(self) -> None:
        """What finds out every ten minutes that a process of the version before was there."""
        await sums.make_days(self.database, START - DAY)
        await sum_upgrade.mend(self.database)
        self._beside = False

    async def _write(self, those: list[Told], writer: RequestRows) -> None:
        """As the recorder does: as if all were new, and again with a look where they were not."""
        rows = [row(one) for one in those]
        try:
            new = await self.database.transact(writer.add, rows, new=True)
        except Repeated:
            new = await self.database.transact(writer.add, rows)
        writer.committed()
        counted = {one["id"]: one for one in those if one["at"] >= self._floor}
        assert new == len(counted.keys() - self.written.keys())
        self.written |= counted

    async def _correct(self, one: Told, amount: int) -> None:
        self._numbers += 1
        correction = {"id": f"c{self._numbers}", "request_id": one["id"], "at": 1.0, "team": "", "project": ""}
        correction |= {"model": "", "amount_nano": amount, "reason": "", "actor": ""}
        await self.database.transact(self._rows.correct, one["id"], correction)
        self.corrections[one["id"]] = self.corrections.get(one["id"], 0) + amount

    async def check(self, asked: list[tuple[list[str], float, float, dict[str, str]]]) -> None:
        if self._beside:
            await self._turn()
        assert await sum_proof.differences(self.database) == []
        for group_by, start, end, where in asked:
            try:
                rows = await Queries(self.database).usage(group_by, start, end, where)
            except Pruned:
                assert self._floor > start
                continue
            wanted = counted(self.written.values(), self.corrections, (group_by, start, end, where))
            if not group_by and not wanted:
                assert rows[0].requests == 0
                continue
            assert numbers(rows) == {group: of for group, of in wanted.items() if any(of.values())}
        for group_by, start, end, where in asked:
            await self._check_days(group_by[:1], min(start, end), where)

    async def _check_days(self, group_by: list[str], start: float, where: dict[str, str]) -> None:
        """Local days of a zone that is half an hour off, and what they cost: read another way than one span is."""
        bounds = day_starts("Asia/Kolkata", max(start, START - DAY), START + 5 * DAY)
        queries, told = Queries(self.database), self.written.values()
        try:
            found = await queries.series(bounds, group_by, where), await queries.costs(bounds, group_by, where)
        except Pruned:
            assert self._floor > bounds[0]
            return
        for (a, b), rows, costs in zip(pairwise(bounds), *found, strict=True):
            wanted = counted(told, self.corrections, (group_by, a, b, where))
            assert numbers(rows) == {group: of for group, of in wanted.items() if any(of.values())}
            spent = {group: of["cost_nano"] for group, of in wanted.items() if of["cost_nano"]}
            assert {group: cost for group, cost in costs.items() if cost} == spent


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    drawn=st.lists(REQUEST, min_size=1, max_size=60),
    steps=st.lists(STEP, min_size=1, max_size=8),
    asked=st.lists(ASKED, min_size=1, max_size=6),
)
def test_sums_equal_a_plain_count(tmp_path: Path, drawn: list[Any], steps: list[Any], asked: list[Any]) -> None:
    """Finance must be able to trust a sum: no batch, repeat, late row or correction may count twice or not at all."""
    path = tmp_path / "world.db"
    for name in tmp_path.iterdir():
        name.unlink()
    empty_database.put(path)

    async def run() -> None:
        database = Database(f"sqlite:///{path}")
        world = World(database, [told(i, one) for i, one in enumerate(drawn)])
        for step in steps:
            await world.do(step)
        await world.check(asked)
        await sums.make_days(database, START + 5 * DAY)
        await sum_blocks.make_blocks(database)
        await world.check(CUTTING)
        await database.close()

    asyncio.run(run())


@given(st.lists(st.floats(0, 3e5), min_size=1, max_size=200), _some([50, 95, 99]))
def test_a_percentile_is_within_its_bucket(durations: list[float], share: int) -> None:
    """What the histogram tells is off by less than the width of the bucket that the true value lies in."""
    counts = [0] * len(BUCKETS)
    for ms in durations:
        counts[sum(edge <= ms for edge in EDGES)] += 1
    true = sorted(durations)[-(-len(durations) * share // 100) - 1]
    found = percentile(counts, share)
    assert found is not None
    place = sum(edge <= true for edge in EDGES)
    lower = EDGES[place - 1] if place else 0.0
    assert lower <= found <= (EDGES[place] if place < len(EDGES) else EDGES[-1])
    assert percentile([0] * len(BUCKETS), share) is None


def test_a_percentile_of_less_than_nothing_is_told_as_of_nothing() -> None:
    """Blocks lack for minutes what an older process counted late: where its day is taken away, less than none is."""
    some = [0] * len(BUCKETS)
    some[3] = 4
    less = some.copy()
    less[2], less[5] = -3, -4
    assert percentile(less, 95) == percentile(some, 95)
    less[3] = 0
    assert percentile(less, 50) is None


def test_days_of_a_zone_follow_each_other() -> None:
    """A day of 23 or 25 hours is one bucket, and the first one holds the start."""
    began = 1_792_540_800.0  # the clocks go back within the week that follows
    starts = day_starts("Europe/Berlin", began, began + 6 * DAY)
    assert starts[0] <= began
    assert starts[-1] >= began + 6 * DAY
    lengths = {b - a for a, b in pairwise(starts)}
    assert lengths == {DAY, DAY + 3_600}
