"""Money under real processes: gateways on one PostgreSQL, killed, cut and left without their database."""

import asyncio
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests import proofs
from tests.e2e.process import Process, nearhit, new_key, scripted, serving_lightly
from tests.empty_database import fresh_postgres
from tests.faults import FaultProxy, fault_proxy

ADMIN = {"authorization": "Bearer sk-e2e-admin-key-long-enough"}
HEARD = 2.5  # seconds in which every process has heard of the others
_BETWEEN_KILLS = 20  # calls that the upstream has billed meanwhile
COST_NANO = 160_000  # of a request: 16 tokens at 10 USD a million
SECRET = {"NEARHIT_SECRET": "one-secret-for-all-gateways-of-this-test"}  # they verify each other's keys


class House:
    """Some gateways, the upstream they send to, and the proxy between them and their database."""

    def __init__(self, gateways: list[Process], lab: Process, database: FaultProxy) -> None:
        self.gateways = gateways
        self.lab = lab
        self.database = database

    def ask(self, path: str, content: bytes = b"") -> httpx.Response:
        return httpx.post(f"{self.gateways[0].url}/api/v1/ledger/{path}", content=content, headers=ADMIN, timeout=60)

    def until_reconciled(self, patience: float = 60.0) -> float:
        """Seconds until every attempt is in the ledger and the upstream's bill agrees: exactly where confirmed, never
        below it where estimated.
        """
        began, bill = time.monotonic(), self.lab.home / "bill.jsonl"
        while True:
            told = self.ask("reconcile", bill.read_bytes())
            if told.status_code < 300 and not told.json()["problems"]:
                return time.monotonic() - began
            assert time.monotonic() - began < patience, told.text
            time.sleep(0.1)

    def verify(self) -> None:
        """Every balance can be made anew from the entries."""
        told = self.ask("verify")
        assert told.status_code < 300, told.text
        assert told.json()["problems"] == [], told.text


@contextmanager
def house(
    home: Path,
    server: str,
    count: int,
    *lab_options: str,
    workers: int = 1,
    budgets: Mapping[str, int] | None = None,
) -> Generator[House]:
    """`count` gateways on a database of their own at `server`, reached through a proxy; output costs, input does not.

    `budgets`: how many requests each scope pays for. They stand in the configuration, and the price in the database,
    before any gateway starts: so nobody has to wait until all have heard of them.
    """
    with ExitStack() as stack:
        url = asyncio.run(fresh_postgres(server))
        parts = urlsplit(url)
        proxy = stack.enter_context(fault_proxy("127.0.0.1", parts.port or 0))
        lab = stack.enter_context(scripted(home / "lab", "--stop-on-close", *lab_options))
        config = (
            f"database: postgresql://{parts.username}@127.0.0.1:{proxy.port}{parts.path}\n"
            f"server: {{workers: {workers}}}\nengines: {{}}\ncache: {{mode: 'off'}}\n"
            "providers: {lab: {kind: openai, api_key: none, billing: stops-on-close, "
            f"base_url: 'http://127.0.0.1:{lab.port}/v1'}}}}\nbudgets:\n"
        )
        for scope, requests in (budgets or {"org": 1_000_000}).items():
            limit = f"{requests * COST_NANO / 1e9:.9f}"
            config += f"  - {{scope: '{scope}', limit_usd: '{limit}', window: total}}\n"
        homes = [home / f"gateway{n}" for n in range(count)]
        homes[0].mkdir(parents=True)
        (homes[0] / "nearhit.yaml").write_text(config)
        priced = nearhit(homes[0], "prices", "set", "lab/scripted", "0", "10", "--effective-from", "2026-01-01")
        assert priced.returncode == 0, priced.stderr
        starting = [serving_lightly(one, config=config, **SECRET) for one in homes]
        with ThreadPoolExecutor(count) as together:
            gateways = [one.result() for one in [together.submit(stack.enter_context, one) for one in starting]]
        time.sleep(HEARD)
        yield House(gateways, lab, proxy)


async def _ask_all(urls: list[str], key: str, texts: list[str], **more: object) -> list[int]:
    """Statuses, in no order; every request over a connection of its own, gateways in turn."""

    async def one(number: int, text: str) -> int:
        body = {"model": "lab/scripted", "messages": [{"role": "user", "content": text}], "max_tokens": 16, **more}
        async with httpx.AsyncClient(timeout=60) as client:
            url = f"{urls[number % len(urls)]}/v1/chat/completions"
            answer = await client.post(url, json=body, headers={"authorization": f"Bearer {key}"})
            if answer.status_code >= 500:
                print(answer.status_code, answer.text)  # noqa: T201 - why, where a test fails of it
            return answer.status_code

    return list(await asyncio.gather(*(one(number, text) for number, text in enumerate(texts))))


def _exact(rounds: int, admitted: int) -> dict[str, int]:
    """A budget for exactly so many requests for the team of each round."""
    return {f"team:exact{number}": admitted for number in range(rounds)}


def _exactly(house: House, rounds: int, at_once: int) -> list[Counter[int]]:
    """Each round: `at_once` requests of its team over all gateways at one moment."""
    teams = [f"exact{number}" for number in range(rounds)]
    keys = [new_key(house.gateways[0], team=team) for team in teams]
    urls = [gateway.url for gateway in house.gateways]
    return [
        Counter(asyncio.run(_ask_all(urls, key, [f"{team} {n}" for n in range(at_once)])))
        for team, key in zip(teams, keys, strict=True)
    ]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, postgres_url: str) -> Generator[House]:
    """Two gateways, for the tests that leave them as they were."""
    budgets = {**_exact(rounds=3, admitted=9), "team:outage": 6_250}
    home, lab = tmp_path_factory.mktemp("pair"), ("--tokens", "16", "--ttft-ms", "20")
    with house(home, postgres_url, 2, *lab, budgets=budgets) as found:
        yield found


def test_a_budget_for_so_many_requests_admits_exactly_so_many(pair: House) -> None:
    """Two gateways, one budget: one request more would overspend, one less would refuse what was paid for."""
    assert _exactly(pair, rounds=3, at_once=32) == [Counter({429: 23, 200: 9})] * 3


@pytest.mark.proof
def test_four_gateways_admit_exactly_as_many_as_the_budget_pays(tmp_path: Path, postgres_url: str) -> None:
    """The same at full size: four gateways, 64 at once, twenty times."""
    lab = ("--tokens", "16", "--ttft-ms", "20")
    with house(tmp_path, postgres_url, 4, *lab, budgets=_exact(rounds=20, admitted=17)) as found:
        rounds = _exactly(found, rounds=20, at_once=64)
        seconds = found.until_reconciled()
    assert rounds == [Counter({429: 47, 200: 17})] * 20
    proofs.keep("exact-admission", gateways=4, at_once=64, rounds=20, admitted_each=17, reconciled_after_s=seconds)


def _workers(gateway: Process) -> list[int]:
    pattern = f"serve_child {gateway.process.pid} gateway.server"
    found = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True, check=False).stdout
    return [int(pid) for pid in found.split()]


class Storm:
    """Load from many clients until told to stop: some stream, some leave in the middle, some go away at once."""

    def __init__(self, url: str, key: str, clients: int, seed: int) -> None:
        self.seen: Counter[str] = Counter()
        self._url = f"{url}/v1/chat/completions"
        self._key = key
        self._clients = clients
        self._chance = random.Random(seed)
        self._over = False

    async def blow(self) -> None:
        await asyncio.gather(*(self._client(number) for number in range(self._clients)))

    def end(self) -> None:
        self._over = True

    async def _client(self, number: int) -> None:
        turn = 0
        while not self._over:
            turn += 1
            stream = self._chance.random() < 0.6
            patience = 20.0 if self._chance.random() < 0.6 else self._chance.uniform(0.005, 0.15)
            body = {
                "model": "lab/scripted",
                "messages": [{"role": "user", "content": f"client {number} turn {turn}"}],
                "max_tokens": 32,
                "stream": stream,
            }
            try:
                async with asyncio.timeout(patience), httpx.AsyncClient(timeout=60) as client:
                    head = {"authorization": f"Bearer {self._key}"}
                    async with client.stream("POST", self._url, json=body, headers=head) as response:
                        async for _ in response.aiter_bytes():
                            pass
                        self.seen[str(response.status_code)] += 1
            except TimeoutError:
                self.seen["left"] += 1
            except httpx.HTTPError:
                self.seen["broken"] += 1  # a worker was killed under it
                await asyncio.sleep(0.05)


def _killed_under_load(home: Path, server: str, *, kills: int, every: float, clients: int) -> dict[str, object]:
    """kill -9 of a worker again and again while clients come and go; then the books are compared with the bill.

    `every`: seconds from one to the next, and longer where the upstream has not billed some more calls meanwhile.
    """
    options = ("--tokens", "24", "--tpot-ms", "3", "--cut-rate", "0.03", "--fail-rate", "0.03")
    with house(home, server, 1, *options, workers=2) as found:
        gateway = found.gateways[0]
        key, chance = new_key(gateway), random.Random(7)

        async def run() -> Counter[str]:
            storm, billed, killed = Storm(gateway.url, key, clients, seed=11), 0, 0
            blowing = asyncio.create_task(storm.blow())
            while killed < kills:
                await asyncio.sleep(every)
                while (now := len(_bill(found))) < billed + _BETWEEN_KILLS:  # noqa: ASYNC110 - a file sets no event
                    await asyncio.sleep(0.02)
                if alive := _workers(gateway):
                    os.kill(chance.choice(alive), signal.SIGKILL)
                    billed, killed = now, killed + 1
            storm.end()
            await blowing
            return storm.seen

        seen = asyncio.run(run())
        took = found.until_reconciled()
        told = gateway.run("ledger", "verify")  # as an operator would ask
        assert told.returncode == 0, told.stdout + told.stderr
        return {"kills": kills, "seen": dict(seen), "reconciled_after_s": round(took, 2), "bill": len(_bill(found))}


def _bill(found: House) -> list[str]:
    bill = found.lab.home / "bill.jsonl"
    return bill.read_text().splitlines() if bill.exists() else []


def test_killed_again_and_again_the_books_still_equal_the_bill(tmp_path: Path, postgres_url: str) -> None:
    """Cancelled, cut, refused and killed in the middle: nothing that the upstream bills may be missing."""
    figures = _killed_under_load(tmp_path, postgres_url, kills=3, every=0.3, clients=12)
    assert isinstance(figures["bill"], int)
    assert figures["bill"] >= 3 * _BETWEEN_KILLS


@pytest.mark.proof
@pytest.mark.timeout(1_800)
def test_ten_minutes_of_kills_lose_nothing(tmp_path: Path, postgres_url: str) -> None:
    """The same for ten minutes."""
    figures = _killed_under_load(tmp_path, postgres_url, kills=300, every=2.0, clients=24)
    proofs.keep("killed-under-load", every_s=2.0, clients=24, **figures)


def test_without_its_database_a_gateway_goes_on_inside_its_leases(pair: House) -> None:
    """An outage of the database must not be an outage of the gateway, nor a hole in the budget or the books."""
    gateway = pair.gateways[0]
    key = new_key(gateway, team="outage")
    assert asyncio.run(_ask_all([gateway.url], key, ["warm"] * 4)) == [200] * 4
    pair.database.become("refusing")
    answered = asyncio.run(_ask_all([gateway.url], key, [f"down {n}" for n in range(20)]))
    pair.database.become("up")
    assert Counter(answered)[200] > 0, answered
    assert set(answered) <= {200, 503}, answered
    pair.until_reconciled()
    deadline = time.monotonic() + 30
    while asyncio.run(_ask_all([gateway.url], key, ["back?"])) != [200]:
        assert time.monotonic() < deadline, "it never came back"
        time.sleep(0.1)
    pair.verify()


@pytest.mark.proof
@pytest.mark.timeout(300)
def test_a_minute_without_a_database_is_no_outage(tmp_path: Path, postgres_url: str) -> None:
    """Inside its leases a gateway answers for a whole minute, and nothing of it is missing afterwards."""
    with house(tmp_path, postgres_url, 1, "--tokens", "16") as found:
        gateway = found.gateways[0]
        key = new_key(gateway)
        for turn in range(5):  # a rate of spending, so that leases have a size
            assert set(asyncio.run(_ask_all([gateway.url], key, [f"warm {turn} {n}" for n in range(10)]))) == {200}
            time.sleep(1.0)
        found.database.become("refusing")
        seen: Counter[int] = Counter()
        until = time.monotonic() + 60
        while time.monotonic() < until:
            seen.update(asyncio.run(_ask_all([gateway.url], key, [f"down {time.monotonic()}"] * 2)))
            time.sleep(0.5)
        found.database.become("up")
        took = found.until_reconciled()
        found.verify()
    proofs.keep("database-down", seconds=60, statuses={str(k): v for k, v in seen.items()}, reconciled_after_s=took)
    assert set(seen) == {200}, seen
