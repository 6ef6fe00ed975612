"""What each page's queries take over a million requests, and what a request costs to write and to keep.

`python -m gateway.bench.pages --database sqlite:///FILE --requests 1000000 --save docs/benchmarks`

How: the recorder's own writer fills an empty database with the rows of `gateway.bench.traffic`, in batches of 100 as a
busy gateway writes them; then each query runs five times after one that is not counted. Writing is the CPU time of the
writing thread (on PostgreSQL of this process; the server's is its own). The last line of standard output is one JSON
object. Caveats: one machine; nothing else reads or writes meanwhile; the database's pages are in memory by then.
"""

import argparse
import asyncio
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from sqlalchemy import func, select, text
from sqlalchemy.engine import Connection

from gateway.bench.report import machine
from gateway.bench.traffic import Shape, rows
from gateway.db.queries import Queries
from gateway.db.session import Database
from gateway.db.sums import DAY, Row, day_starts
from gateway.ledger import sum_blocks, sum_proof, sum_upgrade, sums
from gateway.ledger.request_rows import RequestRows
from gateway.routes.anomalies_view import anomalies
from gateway.routes.spend_view import read_view, spending
from gateway.web.reads import first_piece, series

_BATCH = 100
_ROUNDS = 5
_LIMIT_MS = 300.0
_SPEND_PAGES = (
    *(("team", "UTC"), ("user", "UTC"), ("tag:customer", "UTC"), ("team", "Asia/Kolkata")),
    *(("user", "Asia/Kolkata"), ("tag:customer", "Asia/Kolkata"), ("user", "America/New_York")),
    ("provider", "America/New_York"),
)
_SUMS = ("usage_hour", "usage_day", "usage_days8", "usage_days64")


class Report(Struct, kw_only=True):
    """`queries`: name -> ms: median, least and most over the rounds, and the CPU time of this process (median), which
    on SQLite is all there is. `written_us`: CPU per request, None for a database that was filled before.
    `bytes_per_row`: None on SQLite.
    """

    database: str
    requests: int
    written_us: float | None
    queries: dict[str, dict[str, float]]
    days_made_s: float
    verified_s: float
    exported_s: float
    exported_rows: int
    export_grew_mb: float
    bytes_per_row: dict[str, float] | None
    sums: dict[str, int]
    machine: Any


async def fill(database: Database, shape: Shape) -> float:
    """Write every row; answers CPU µs per request of the thread that writes."""
    writer, spent = RequestRows(database.dialect), 0.0
    for some in rows(shape):
        spent += await database.transact(_write, writer, some)
        writer.committed()
    return spent / shape.requests * 1e6


def _write(connection: Connection, writer: RequestRows, some: list[Row]) -> float:
    began = time.thread_time()
    for i in range(0, len(some), _BATCH):
        writer.add(connection, some[i : i + _BATCH], new=True)
    return time.thread_time() - began


def cases(queries: Queries, shape: Shape) -> dict[str, Callable[[], Awaitable[object]]]:
    """What pages ask, by name: `spend page` all that one asks, `usage` what the API and its CSV do, with percentiles.

    `now` lies in the middle of an hour, as it does.
    """
    now = _now(shape)
    start, day, week = shape.end - shape.days * DAY, now - DAY, now - 7 * DAY
    zone = day_starts("America/New_York", start + DAY, now)
    odd = day_starts("Asia/Kolkata", start + DAY, now)
    usage, recent = queries.usage, queries.recent_requests
    found: dict[str, Callable[[], Awaitable[object]]] = {
        "overview: total with percentiles, month": lambda: usage((), start, now),
        "overview: total with percentiles, 24 h": lambda: usage((), day, now),
        "overview: total of a team, month": lambda: usage((), start, now, {"team": "search"}),
        "overview: time to first piece, month": lambda: first_piece(queries, start, now, {}),
        "overview: time to first piece of a team, 24 h": lambda: first_piece(queries, day, now, {"team": "search"}),
        "overview: series by day": lambda: series(queries, start, now, {}),
        "overview: series by hour, 24 h": lambda: series(queries, day, now, {}),
        "usage: team x model": lambda: usage(("team", "model"), start, now),
        "usage: day x team": lambda: usage(("day", "team"), start, now, latencies=False),
        "usage: project of a model": lambda: usage(("project",), start, now, {"model": "smart"}),
        "usage: user": lambda: usage(("user",), start, now),
        "usage: user x model of a team": lambda: usage(("user", "model"), start, now, {"team": "search"}),
        "usage: one user by day": lambda: usage(("day",), start, now, {"user": "user-3-0@example.com"}),
        "usage: tag customer": lambda: usage(("tag:customer",), start, now),
        "usage: tag feature x team": lambda: usage(("tag:feature", "team"), start, now),
        "usage: days of New York x team": lambda: queries.series(zone, ("team",)),
        "usage: days of Kolkata x team": lambda: queries.series(odd, ("team",)),
        "OpenAI costs: day x project x model": lambda: usage(
            ("day", "project", "model_used"), start, now, latencies=False
        ),
        "OpenAI usage: hour x key, week": lambda: usage(("hour", "key"), week, now, latencies=False),
        "OpenAI usage: minute, day": lambda: usage(("minute",), day, now, latencies=False),
        "cache: team x project x model, week": lambda: usage(("team", "project", "model"), week, now, latencies=False),
        "requests: newest": lambda: recent(50),
        "requests: newest of a team": lambda: recent(50, where={"team": "legal"}),
        "requests: newest of a key": lambda: recent(50, where={"key": "k0000031"}),
        "requests: failed of a key": lambda: recent(50, where={"key": "k0000031"}, failed=True),
        "requests: of a model and source": lambda: recent(50, where={"model": "legacy", "source": "shared"}),
        "requests: of a user who rarely asks": lambda: recent(50, where={"user": "user-30-31@example.com"}),
        "requests: of a customer who rarely asks": lambda: recent(50, where={"tag:customer": "customer-5-of-31"}),
        "cache: audits of a month by day": lambda: usage(("day",), start, now, {"cache": "audit"}, latencies=False),
        "requests: of a model nobody asked for": lambda: recent(50, where={"model": "none"}),
    }
    ninety = read_view({"from": _date(now - 89 * DAY)}, now)
    found["anomalies page, 90 days"] = lambda: anomalies(queries, ninety, {})
    for by, zone_name in _SPEND_PAGES:
        asked = {"by": by, "zone": zone_name, "from": _date(start), "to": _date(now)}
        found[f"spend page: {by}, {zone_name}"] = lambda asked=asked: spending(queries, read_view(asked, now), {})
    for name in ("team", "project", "key", "model", "model_used", "provider", "operation", "source", "cache", "status"):
        found[f"usage by {name}"] = lambda name=name: usage((name,), start, now)
    return found


def _date(instant: float) -> str:
    return datetime.fromtimestamp(instant, UTC).date().isoformat()


def _now(shape: Shape) -> float:
    return shape.end - 5_400.5


def _analyze(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":  # as its autovacuum does; SQLite has nothing that would
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("ANALYZE"))


async def timed(case: Callable[[], Awaitable[object]]) -> dict[str, float]:
    taken: list[float] = []
    cpu: list[float] = []
    for _ in range(_ROUNDS + 1):
        began, spent = time.perf_counter(), time.process_time()
        await case()
        taken.append((time.perf_counter() - began) * 1e3)
        cpu.append((time.process_time() - spent) * 1e3)
    figures = {"median": statistics.median(taken[1:]), "least": min(taken[1:]), "most": max(taken[1:])}
    return {name: round(ms, 1) for name, ms in {**figures, "cpu": statistics.median(cpu[1:])}.items()}


async def measure(url: str, shape: Shape) -> Report:
    database = Database(url)
    await database.start()
    async with database.read() as connection:
        there = await connection.scalar(text("SELECT COUNT(*) FROM request")) or 0
    if there not in (0, shape.requests):
        raise SystemExit(f"the database holds {there} requests already")
    written = None if there else round(await fill(database, shape), 1)
    began = time.perf_counter()
    await sums.make_days(database, _now(shape))
    await sum_upgrade.take_along(database)
    await sum_blocks.make_blocks(database)
    made = time.perf_counter() - began
    await database.transact(_analyze)
    queries = Queries(database)
    found: dict[str, dict[str, float]] = {}
    for name, case in cases(queries, shape).items():
        found[name] = await timed(case)
    began = time.perf_counter()
    wrong = await sum_proof.differences(database)
    verified = time.perf_counter() - began
    assert not wrong, wrong[0]
    before, began, exported = _memory_mb(), time.perf_counter(), 0
    async for page in queries.export(0.0, shape.end):
        exported += len(page)
    report = Report(
        database=database.dialect,
        requests=shape.requests,
        written_us=written,
        queries=found,
        days_made_s=round(made, 1),
        verified_s=round(verified, 1),
        exported_s=round(time.perf_counter() - began, 1),
        exported_rows=exported,
        export_grew_mb=round(_memory_mb() - before, 1),
        bytes_per_row=await _bytes(database, shape.requests),
        sums=await _sizes(database),
        machine=machine(),
    )
    await database.close()
    return report


def _memory_mb() -> float:
    """The most this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024


async def _bytes(database: Database, requests: int) -> dict[str, float] | None:
    if database.dialect != "postgresql":
        return None
    async with database.begin() as connection:
        found: dict[str, float] = {}
        for name, of in (("row", "pg_table_size"), ("row and indexes", "pg_total_relation_size")):
            size = await connection.scalar(text(f"SELECT {of}('request')"))
            found[name] = round(size / requests, 1)
        sizes = [await connection.scalar(select(func.pg_total_relation_size(name))) or 0 for name in _SUMS]
        found["sums"] = round(sum(sizes) / requests, 1)
    return found


async def _sizes(database: Database) -> dict[str, int]:
    async with database.begin() as connection:
        return {
            name: await connection.scalar(text(f"SELECT COUNT(*) FROM {name}")) or 0  # noqa: S608 - names of our own
            for name in ("usage_who", *_SUMS)
        }


def main() -> int:
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("--database", required=True, help="an empty database: sqlite:///FILE or postgresql://…")
    read.add_argument("--requests", type=int, default=1_000_000)
    read.add_argument("--days", type=int, default=30)
    read.add_argument("--save", type=Path, help="folder to keep the result in")
    given = read.parse_args()
    report = asyncio.run(measure(given.database, Shape(requests=given.requests, days=given.days)))
    slow = {name: taken for name, taken in report.queries.items() if taken["median"] > _LIMIT_MS}
    for name, taken in report.queries.items():
        sys.stderr.write(f"{taken['median']:8.1f} ms  (least {taken['least']}, CPU {taken['cpu']})  {name}\n")
    sys.stderr.write(f"slower than {_LIMIT_MS:.0f} ms: {', '.join(slow) or 'none'}\n")
    if given.save is not None:
        today = time.strftime("%Y-%m-%d", time.gmtime())
        path = given.save / f"pages-{report.database}-{given.requests}-{today}.json"
        path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
