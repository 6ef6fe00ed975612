"""Gateways as processes of their own on one Redis and one PostgreSQL: a herd at all of them is one upstream call."""

import asyncio
import time
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import aiohttp
import httpx
import msgspec

from tests.e2e.process import Process, new_key, scripted, serving_lightly
from tests.empty_database import fresh_postgres
from tests.services import redis_server

ADMIN = {"authorization": "Bearer sk-e2e-admin-key-long-enough"}
SECRET = {"NEARHIT_SECRET": "one-secret-for-all-gateways-of-this-test"}
HERD = 500


class Hosts:
    """Gateways, each as if on a host of its own, and the upstream that they all send to."""

    def __init__(self, gateways: list[Process], lab: Process, key: str) -> None:
        self.gateways = gateways
        self.lab = lab
        self.key = key

    def calls(self) -> int:
        """Of the upstream's own bill."""
        bill = self.lab.home / "bill.jsonl"
        return len(bill.read_text("utf-8").splitlines()) if bill.exists() else 0

    async def herd(self, text: str, count: int) -> list[tuple[int, str, str]]:
        """The same question at all of them at once, half of it as streams: status, mark and model's words of each."""
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(60)
        ) as client:
            return await asyncio.gather(*(self._one(client, text, number) for number in range(count)))

    async def _one(self, client: aiohttp.ClientSession, text: str, number: int) -> tuple[int, str, str]:
        url = f"{self.gateways[number % len(self.gateways)].url}/v1/chat/completions"
        body = {"model": "lab/scripted", "messages": [{"role": "user", "content": text}], "stream": number % 4 < 2}
        async with client.post(url, json=body, headers={"authorization": f"Bearer {self.key}"}) as response:
            raw = await response.read()
            return response.status, response.headers.get("x-nearhit-cache", ""), _words(raw)

    def waits(self) -> Counter[str]:
        """How waits have ended, over all of them."""
        found: Counter[str] = Counter()
        for gateway in self.gateways:
            for line in httpx.get(f"{gateway.url}/metrics", headers=ADMIN, timeout=10).text.splitlines():
                if line.startswith("nearhit_cache_waits_total{"):
                    found[line.split('"')[1]] += int(float(line.rsplit(" ", 1)[1]))
        return found


def _words(raw: bytes) -> str:
    """What was answered, whichever form it came in."""
    if not raw.startswith(b"data: "):
        told = msgspec.json.decode(raw)
        return str(told["choices"][0]["message"]["content"] if "choices" in told else told)
    pieces = [msgspec.json.decode(line[6:]) for line in raw.split(b"\n\n") if line and line != b"data: [DONE]"]
    return "".join(choice["delta"].get("content") or "" for piece in pieces for choice in piece["choices"])


@contextmanager
def hosts(home: Path, postgres_url: str, count: int, *lab_options: str, workers: int = 1) -> Generator[Hosts]:
    database = asyncio.run(fresh_postgres(postgres_url)).replace("postgresql+asyncpg://", "postgresql://")
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server())
        lab = stack.enter_context(scripted(home / "lab", "--stop-on-close", "--tokens", "16", *lab_options))
        config = (
            f"database: {database}\nredis: {redis}\nserver: {{workers: {workers}}}\nengines: {{}}\n"
            "cache: {mode: exact}\nproviders: {lab: {kind: openai, api_key: none, billing: stops-on-close, "
            f"base_url: 'http://127.0.0.1:{lab.port}/v1'}}}}\nmodels: {{free: {{route: [lab/scripted], free: true}}}}\n"
        )
        gateways = [
            stack.enter_context(serving_lightly(home / str(number), config=config, **SECRET)) for number in range(count)
        ]
        priced = gateways[0].run("prices", "set", "lab/scripted", "1", "2", "--effective-from", "2026-01-01")
        assert priced.returncode == 0, priced.stderr
        key = new_key(gateways[0])
        found = Hosts(gateways, lab, key)
        _await_all(found)
        yield found


def _await_all(found: Hosts) -> None:
    """Until every worker knows the price and the key; the upstream, which may be slow, is not asked for that."""
    asked = {"model": "lab/scripted", "messages": [{"role": "user", "content": "warm"}]}
    headers = {"authorization": f"Bearer {found.key}", "x-nearhit-dry-run": "1", "connection": "close"}
    end = time.monotonic() + 60
    for gateway in found.gateways:
        known = 0
        while known < 8:  # in a row: another worker may take the next one
            told = httpx.post(f"{gateway.url}/v1/chat/completions", json=asked, headers=headers, timeout=10)
            known = known + 1 if told.status_code == 200 and told.json()["would_refuse"] is None else 0
            assert time.monotonic() < end, told.text
            if not known:
                time.sleep(0.5)


def test_500_identical_requests_at_three_hosts_make_one_upstream_call(tmp_path: Path, postgres_url: str) -> None:
    """The proof the product promises, with as many processes as there are: streams and whole answers mixed."""
    with hosts(tmp_path, postgres_url, 3, "--ttft-ms", "2500") as found:
        marks, before = set[str](), 0
        for turn in range(5):
            before = found.calls()
            told = asyncio.run(found.herd(f"what do {HERD} ask at once, turn {turn}?", HERD))
            marks = {mark for _, mark, _ in told}
            assert {status for status, _, _ in told} == {200}, {words for _, _, words in told}
            assert len({words for _, _, words in told}) == 1
            assert found.calls() - before <= len(found.gateways)
            if "bypass" not in marks:  # a busy machine may miss Redis's deadline, and then a host asks by itself
                break
        assert marks == {"miss", "shared", "hit-exact"}
        assert found.calls() - before == 1
        assert found.waits()["kept"] > 0


def test_a_host_that_is_killed_while_it_answers_is_followed_by_one(tmp_path: Path, postgres_url: str) -> None:
    """kill -9 of the one who makes the answer: its lease runs out, and of all who wait exactly one calls anew."""
    with hosts(tmp_path, postgres_url, 3, "--ttft-ms", "9000") as found:
        victim, text = found.gateways.pop(0), "who answers when the first one dies?"
        before = found.calls()

        async def run() -> tuple[list[tuple[int, str, str]], float]:
            async with aiohttp.ClientSession() as client:
                first = asyncio.get_running_loop().create_task(_lost(found, client, victim, text))
                await asyncio.sleep(1.0)  # it has the lease and has called
                others = asyncio.get_running_loop().create_task(found.herd(text, 60))
                await asyncio.sleep(1.0)
                victim.kill()
                began = time.monotonic()
                await first
                return await others, time.monotonic() - began

        told, took = asyncio.run(run())
        assert {status for status, _, _ in told} == {200}
        assert {mark for _, mark, _ in told} <= {"miss", "shared", "hit-exact"}
        assert [mark for _, mark, _ in told].count("miss") == 1, (Counter(mark for _, mark, _ in told), took)
        assert found.calls() - before == 2  # what the victim had asked for was billed as far as it came
        assert took < 3.0 + 9.0 + 20.0  # the lease's life, the answer's, and patience with this machine


async def _lost(found: Hosts, client: aiohttp.ClientSession, victim: Process, text: str) -> None:
    """Ask a gateway that is about to die."""
    url = f"{victim.url}/v1/chat/completions"
    body = {"model": "lab/scripted", "messages": [{"role": "user", "content": text}]}
    with suppress(aiohttp.ClientError):
        async with client.post(url, json=body, headers={"authorization": f"Bearer {found.key}"}) as response:
            await response.read()
