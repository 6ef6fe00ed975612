"""Two workers under one supervisor, on a real PostgreSQL and a real Redis: one gateway as far as anybody can tell."""

import asyncio
import concurrent.futures
import os
import signal
import subprocess
import threading
import time
from collections.abc import Generator
from decimal import Decimal
from pathlib import Path

import httpx
import msgspec
import pytest

from tests import proofs
from tests.e2e.process import Process, new_key, scripted, serving_lightly
from tests.empty_database import fresh_postgres
from tests.services import redis_server

ADMIN = {"authorization": "Bearer sk-e2e-admin-key-long-enough"}


class Fleet:
    """The gateway and the upstream it sends to."""

    def __init__(self, process: Process, lab: Process) -> None:
        self.process = process
        self.lab = lab

    def workers(self) -> list[int]:
        """Process ids of the gateway's workers."""
        return self.process.workers()

    def ask(self, key: str, texts: list[str], **headers: str) -> list[httpx.Response]:
        """All at once, each over a connection of its own, so that both workers get some; failures are left out."""

        async def one(text: str) -> httpx.Response:
            body = {"model": "lab/scripted", "messages": [{"role": "user", "content": text}], "max_tokens": 20}
            async with httpx.AsyncClient(timeout=30) as client:
                told = {"authorization": f"Bearer {key}", **headers}
                return await client.post(f"{self.process.url}/v1/chat/completions", json=body, headers=told)

        async def every() -> list[httpx.Response]:
            found = await asyncio.gather(*(one(text) for text in texts), return_exceptions=True)
            return [response for response in found if isinstance(response, httpx.Response)]

        return asyncio.run(every())


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, postgres_url: str) -> Generator[Fleet, None, None]:
    """One for the module: starting it takes seconds."""
    home = tmp_path_factory.mktemp("fleet")
    database = asyncio.run(fresh_postgres(postgres_url)).replace("postgresql+asyncpg://", "postgresql://")
    with (
        redis_server() as redis,
        scripted(home / "lab", "--stop-on-close", "--tpot-ms", "2") as lab,
        scripted(home / "slow", "--tpot-ms", "50") as slow,
    ):
        config = (
            f"database: {database}\nredis: {redis}\nserver: {{workers: 2}}\nengines: {{}}\ncache: {{mode: exact}}\n"
            "providers: {lab: {kind: openai, api_key: none, billing: stops-on-close, "
            f"base_url: 'http://127.0.0.1:{lab.port}/v1'}}, "
            f"slow: {{kind: openai, api_key: none, base_url: 'http://127.0.0.1:{slow.port}/v1'}}}}\n"
            "models: {story: {route: [slow/scripted], free: true}}\n"
        )
        with serving_lightly(home / "gateway", config=config) as process:
            priced = process.run("prices", "set", "lab/scripted", "1", "2", "--effective-from", "2026-01-01")
            assert priced.returncode == 0, priced.stderr
            time.sleep(6.0)  # both workers must have heard of the price
            yield Fleet(process, lab)


def _kept(response: httpx.Response) -> bool:
    return response.json()["choices"][0]["finish_reason"] == "stop"


def test_what_one_worker_keeps_every_worker_serves(fleet: Fleet) -> None:
    """A cache per worker would answer the same question twice and bill it twice."""
    key = new_key(fleet.process)
    first = fleet.ask(key, [f"Is this shared, number {n}?" for n in range(20)])
    assert {response.status_code for response in first} == {200}
    shared = [f"Is this shared, number {n}?" for n, response in enumerate(first) if _kept(response)]
    assert shared
    marks: set[str] = set()
    until = time.monotonic() + 60  # a busy machine may miss Redis's deadline, and then an answer is fetched once more
    while marks != {"hit-exact"}:
        assert time.monotonic() < until, marks
        time.sleep(1.0)
        marks = {response.headers["x-nearhit-cache"] for response in fleet.ask(key, shared * 5)}
    counted = list((fleet.process.home / "run" / "metrics").glob("counter_*.db"))
    assert len(counted) >= 2, "one worker answered everything, so nothing was shared"


@pytest.mark.reduced
def test_workers_together_never_overspend(fleet: Fleet) -> None:
    """Each worker holds a lease on the budget; together they may not spend a nano-dollar more than it is."""
    key = new_key(fleet.process, team="thrifty")
    limit = "0.002"
    wanted = {"limit_usd": limit, "window": "total", "timezone": "UTC", "mode": "hard"}
    put = httpx.put(f"{fleet.process.url}/api/v1/budgets/team:thrifty", json=wanted, headers=ADMIN, timeout=10)
    assert put.status_code < 300, put.text
    time.sleep(6.0)  # the other worker follows budgets every few seconds
    statuses: set[int] = set()
    for turn in range(4 if proofs.wanted() else 2):  # each asks for more than the budget pays
        answers = fleet.ask(key, [f"spend {n}, turn {turn}" for n in range(60)], **{"cache-control": "no-store"})
        statuses |= {response.status_code for response in answers}
    assert statuses == {200, 429}, statuses
    time.sleep(1.0)
    usage = httpx.get(f"{fleet.process.url}/api/v1/usage?group_by=team", headers=ADMIN, timeout=10).json()
    (spent,) = [Decimal(row["cost_usd"]) for row in usage["data"] if row["team"] == "thrifty"]
    assert 0 < spent <= Decimal(limit)


def _streamed(fleet: Fleet, key: str, number: int, begun: threading.Barrier) -> tuple[str, list[str]]:
    """The finish reason and the data lines of one long answer; `begun` is passed once its first line has come."""
    body = {
        "model": "story",
        "messages": [{"role": "user", "content": f"a long story, number {number}"}],
        "max_tokens": 80,
        "stream": True,
    }
    with httpx.stream(
        "POST",
        f"{fleet.process.url}/v1/chat/completions",
        json=body,
        headers={"authorization": f"Bearer {key}"},
        timeout=60,
    ) as response:
        assert response.status_code == 200, response.read()
        lines = (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: "))
        told = [next(lines)]
        begun.wait(60)
        told += lines
    return str(msgspec.json.decode(told[-2])["choices"][0]["finish_reason"]), told


@pytest.mark.reduced
def test_a_rolling_restart_breaks_no_stream(fleet: Fleet) -> None:
    """A new version or setting comes in at noon: every answer under way ends whole, every new one is taken."""
    streams = 50 if proofs.wanted() else 16
    key, before, began = new_key(fleet.process), fleet.workers(), threading.Barrier(streams + 1)
    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        running = [pool.submit(_streamed, fleet, key, number, began) for number in range(streams)]
        began.wait(60)
        fleet.process.process.send_signal(signal.SIGUSR2)
        assert not all(one.done() for one in running)
        asked: list[int] = []
        end = time.monotonic() + 60
        while "every worker has been started anew" not in fleet.process.log.read_text():
            assert time.monotonic() < end, fleet.process.log.read_text()
            asked += [response.status_code for response in fleet.ask(key, [f"meanwhile {len(asked)}"])]
            time.sleep(0.05)
        ended = [one.result(60) for one in running]
    assert {finish for finish, _ in ended} <= {"stop", "length"}
    assert {told[-1] for _, told in ended} == {"[DONE]"}
    assert set(asked) == {200}
    assert set(fleet.workers()).isdisjoint(before)
    assert len(fleet.workers()) == 2


def test_a_killed_worker_loses_nothing_and_is_replaced(fleet: Fleet) -> None:
    """kill -9 in the middle of traffic: its sibling answers on, its journal is settled, its gauges are forgotten."""
    key = new_key(fleet.process, team="steady")
    before = fleet.workers()
    assert len(before) == 2
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        storm = pool.submit(fleet.ask, key, [f"storm {n}" for n in range(60)])
        time.sleep(0.25)
        os.kill(before[0], signal.SIGKILL)
        assert {response.status_code for response in storm.result(60)} == {200}
    end = time.monotonic() + 60
    while len(fleet.workers()) < 2 or before[0] in fleet.workers():
        assert time.monotonic() < end, "the killed worker was not replaced"
        time.sleep(0.2)
    assert {response.status_code for response in fleet.ask(key, ["still there?"] * 10)} == {200}
    until_settled = time.monotonic() + 60
    while (told := _reconciled(fleet)).returncode != 0 and time.monotonic() < until_settled:
        time.sleep(1.0)
    assert told.returncode == 0, told.stdout + told.stderr
    assert fleet.process.run("ledger", "verify").returncode == 0
    folder: Path = fleet.process.home / "run" / "metrics"
    assert not list(folder.glob(f"gauge_live*_{before[0]}.db"))


def _reconciled(fleet: Fleet) -> subprocess.CompletedProcess[str]:
    return fleet.process.run("ledger", "reconcile", "--bill", str(fleet.lab.home / "bill.jsonl"), "--json")
